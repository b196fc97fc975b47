"""What it costs in PyTorch to compare all weights with the packed ones at each call: ``python -m bench.comparing``.

Layers of the benchmark, as torch's modules in NCX, and whole models run in turns, accelerated with and without ``freeze=True``.
"""

import argparse
import copy
import json
import math
import sys

import torch

import convt.torch

from . import layers, models

_MODELS = "dcgan", "pix2pix"
_CLASSES = torch.nn.ConvTranspose1d, torch.nn.ConvTranspose2d, torch.nn.ConvTranspose3d


def module_of(layer):
    """A layer as ``(torch's module, input)``; None where the module has no such pads or output padding."""
    more = [max(s, d) for s, d in zip(layer.strides, layer.dilations, strict=True)]
    if layer.pads_begin != layer.pads_end or any(op >= most for op, most in zip(layer.output_padding, more, strict=True)):
        return None
    module = _CLASSES[len(layer.size) - 1](
        layer.cin, layer.cout, layer.kernel, layer.strides, layer.pads_begin, layer.output_padding, layer.groups, False,
        layer.dilations,
    )  # fmt: skip
    return module.eval(), torch.randn(layer.batch, layer.cin, *layer.size)


def measure(module, x, budget, rounds=4):
    """``(seconds as usual, seconds with freeze=True)`` of a module or model."""
    usual, frozen = copy.deepcopy(module), module
    convt.torch.accelerate(usual)
    convt.torch.accelerate(frozen, freeze=True)
    with torch.no_grad():
        return models._in_turns([lambda: usual(x), lambda: frozen(x)], budget, rounds)


def main(arguments=None):
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}.comparing", description=__doc__.splitlines()[0])
    parser.add_argument("--names", help="layers and models, separated by commas (default: all)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="torch's threads")
    parser.add_argument("--budget", type=float, default=1.0, help="seconds of each measurement (default: 1)")
    parser.add_argument("--json", help="a file for the figures")
    asked = parser.parse_args(arguments)
    torch.set_num_threads(asked.threads)
    torch.manual_seed(0)
    cases = {layer.name: lambda layer=layer: module_of(layer) for layer in layers.parse(layers.TABLE)}
    cases |= {name: lambda name=name: models._made(name, False) for name in _MODELS}
    names = asked.names.split(",") if asked.names else list(cases)
    if unknown := set(names).difference(cases):
        parser.error(f"--names: got {sorted(unknown)[0]!r}, wanted some of {', '.join(cases)}")
    found = []
    print(f"{'layer or model':20}{'weights, KiB':>13}{'usual ms':>11}{'frozen ms':>11}{'cost':>8}")
    for name in names:
        made = cases[name]()
        if made is None:
            continue
        kib = sum(each.nbytes for key, each in made[0].named_parameters() if "weight" in key and each.dim() > 2) / 1024
        usual, frozen = measure(*made, asked.budget)
        found.append({"name": name, "weights_kib": kib, "usual": usual, "frozen": frozen, "cost": usual / frozen - 1})
        print(f"{name:20}{kib:13.1f}{usual * 1e3:11.4f}{frozen * 1e3:11.4f}{usual / frozen - 1:8.1%}", flush=True)
    small = [row for row in found if row["name"] not in _MODELS and row["weights_kib"] < 1024]
    if small:
        mean = math.exp(sum(math.log(row["usual"] / row["frozen"]) for row in small) / len(small)) - 1
        worst = max(small, key=lambda row: row["cost"])
        print(f"layers with less than 1 MiB of weights: {mean:.1%} in geometric mean,", end=" ")
        print(f"at most {worst['cost']:.1%} ({worst['name']})")
    if asked.json:
        with open(asked.json, "w", encoding="utf-8") as file:
            json.dump({"torch": torch.__version__, "threads": asked.threads, "rows": found}, file, indent=1)
            file.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
