"""Machines that plans are made for: caches, limits, constants and efficiencies, drawn and put in force."""

import contextlib
import math

import numpy as np
from cases import pretend

from convt.algorithms import common, costs, machine
from convt.algorithms.constants import Constants

KIB = 1 << 10
CACHES = {
    "l1": [0, 8 * KIB, 32 * KIB, 48 * KIB, 64 * KIB, 192 * KIB],
    "l2": [0, 4 * KIB, 64 * KIB, 256 * KIB, 512 * KIB, 1 << 20, 2 << 20, 16 << 20],
    "l3": [0, 64 * KIB, 1 << 20, 8 << 20, 32 << 20, 512 << 20],
}
# How limits in bytes, cycles or operations are drawn: none, little, more than cases have.
SIZES = [0, 0, 1, 64, 500, 2 * KIB, 16 * KIB, 256 * KIB, 1 << 40]
# What chance would bring together too seldom: outputs that no cache holds, and one-shot calls that pack as they compute.
NO_CACHES = {"l2": 0, "l3": 0}
ON_THE_FLY = {"pack_on_the_fly": 0, "pack_on_the_fly_again": 1000}


def draw(rng):
    """A machine, as JSON has it: caches, limits, by how much its constants are those of the machine there is, and the seed and
    spread of its efficiencies."""
    found = {}
    if rng.random() < 0.5:
        found |= {name: rng.choice(sizes) for name, sizes in CACHES.items() if rng.random() < 0.5}
    if rng.random() < 0.7:
        share = rng.choice([0.15, 0.5])
        found["limits"] = {name: _limit(rng, name) for name in costs.Limits._fields if rng.random() < share}
        found["limits"].setdefault("single_thread_cycles", 0)  # or no small problem has two threads
    if rng.random() < 0.6:
        spread = rng.choice([0.3, 2, 6])
        found["constants"] = {name: math.exp(rng.uniform(-spread, spread)) for name in Constants._fields if rng.random() < 0.5}
    if rng.random() < 0.4:
        found["efficiencies"] = [rng.randrange(1 << 16), rng.choice([0.3, 2, 6])]
    if rng.random() < 0.2:
        found |= NO_CACHES
    if rng.random() < 0.2:
        found["limits"] = found.get("limits", {}) | ON_THE_FLY
    return found


def _limit(rng, name):
    if name == "ordinary_stores":
        return rng.random() < 0.5
    if name == "pack_on_the_fly_again":
        return rng.choice([0, 1, 2, 1000])
    return rng.choice(SIZES) or (name == "same_set")  # a modulus


@contextlib.contextmanager
def using(found):
    """Plans made inside are those of a machine."""
    here = machine.current()
    unit, by = here.info("float32"), found.get("constants", {})
    constants = here.constants._replace(**{name: getattr(here.constants, name) * factor for name, factor in by.items()})
    efficiencies = dict(costs.EFFICIENCIES)
    if "efficiencies" in found:
        seed, spread = found["efficiencies"]
        rng = np.random.default_rng(seed)
        efficiencies = {name: value * float(np.exp(rng.uniform(-spread, spread))) for name, value in efficiencies.items()}
    profile = costs.profile_of("fuzz", constants, 8 * unit.vl * unit.t_size, efficiencies)
    kept = common._KEPT_OUTPUT
    try:
        if found.get("l3") == 0:
            common._KEPT_OUTPUT = 0
        with pretend(**{name: found[name] for name in CACHES if name in found}, profile=profile, **found.get("limits", {})):
            yield
    finally:
        common._KEPT_OUTPUT = kept
