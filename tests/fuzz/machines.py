"""Machines that plans are made for: random caches, limits, constants and efficiencies, and a context that uses them."""

import contextlib
import math

import numpy as np
from cases import pretend

from convt._model import costs, machine
from convt._model.constants import Constants
from convt.algorithms import common

KIB = 1 << 10
CACHES = {
    "l1": [0, 8 * KIB, 32 * KIB, 48 * KIB, 64 * KIB, 192 * KIB],
    "l2": [0, 4 * KIB, 64 * KIB, 256 * KIB, 512 * KIB, 1 << 20, 2 << 20, 16 << 20],
    "l3": [0, 64 * KIB, 1 << 20, 8 << 20, 32 << 20, 512 << 20],
}
# Limits in bytes, cycles or operations: zero, small, or more than any case has.
SIZES = [0, 0, 1, 64, 500, 2 * KIB, 16 * KIB, 256 * KIB, 1 << 40]
# Combinations that are too rare by chance: outputs that no cache holds, and one-shot calls that pack on the fly.
NO_CACHES = {"l2": 0, "l3": 0}
ON_THE_FLY = {"pack_on_the_fly": 0, "pack_on_the_fly_again": 1000}


def draw(rng):
    """Return a machine for JSON: caches, limits, factors of the current machine's constants, and seed and spread of the
    efficiencies."""
    found = {}
    if rng.random() < 0.5:
        found |= {name: rng.choice(sizes) for name, sizes in CACHES.items() if rng.random() < 0.5}
    if rng.random() < 0.7:
        share = rng.choice([0.15, 0.5])
        found["limits"] = {name: _limit(rng, name) for name in costs.Limits._fields if rng.random() < share}
        found["limits"].setdefault("single_thread_cycles", 0)  # otherwise small problems have one thread only
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
    return rng.choice(SIZES) or (name == "same_set")  # a modulus, so not 0


@contextlib.contextmanager
def using(found):
    """Use a machine for the plans made inside."""
    here = machine.current()
    unit, factors = here.info("float32"), found.get("constants", {})
    constants = here.constants._replace(**{name: getattr(here.constants, name) * factor for name, factor in factors.items()})
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
