"""Cost of the check for changed weights that accelerated PyTorch modules make at each call.

Run ``python -m bench.checksums``.

The built-in layers, as PyTorch modules in NCX, and whole models are accelerated with and without ``freeze=True`` and timed in
turns. The checksums of the weights, which make the difference, are also timed alone, because other processes disturb this
shorter measurement less.
"""

import copy
import statistics
import sys

from convt._call.worth import in_turns
from convt._run.checksum import checksum

from . import command, layers, tables, timing
from .shared import terminal

with command.packages(__name__):
    import torch

    import convt.torch

    from . import models

COLUMNS = {  # head -> width
    "layer or model": 16, "weights, KiB": 12, "default ms": 10, "frozen ms": 10, "cost": 6, "checksums us": 12, "share": 6,
}  # fmt: skip
_MODELS = "dcgan", "pix2pix"
_CLASSES = torch.nn.ConvTranspose1d, torch.nn.ConvTranspose2d, torch.nn.ConvTranspose3d


def module_of(layer):
    """Return a layer as ``(PyTorch module, input)``, or None if PyTorch does not support its pads or output padding."""
    more = [max(s, d) for s, d in zip(layer.strides, layer.dilations, strict=True)]
    if layer.pads_begin != layer.pads_end or any(op >= most for op, most in zip(layer.output_padding, more, strict=True)):
        return None
    module = _CLASSES[len(layer.size) - 1](
        layer.cin, layer.cout, layer.kernel, layer.strides, layer.pads_begin, layer.output_padding, layer.groups, False,
        layer.dilations,
    )  # fmt: skip
    return module.eval(), torch.randn(layer.batch, layer.cin, *layer.size)


def measure(module, x, budget, rounds=4):
    """Return ``(seconds without freeze, seconds with freeze=True)`` of a module or model."""
    usual, frozen = copy.deepcopy(module), module
    convt.torch.accelerate(usual)
    convt.torch.accelerate(frozen, freeze=True)
    with torch.no_grad():
        return in_turns([lambda: usual(x), lambda: frozen(x)], budget, rounds=rounds)


def checksum_time(module, threads):
    """Return ``(median seconds of the checksums, bytes of the weights)`` of a module's or model's transposed convolutions."""
    filters = [each.weight.detach().numpy() for each in module.modules() if isinstance(each, _CLASSES)]
    times = timing.durations(lambda: [checksum(filter, threads) for filter in filters], 0, least=50)
    return statistics.median(times), sum(filter.nbytes for filter in filters)


def main(arguments=None):
    parser = command.parser("checksums", __doc__.splitlines()[0], "--names selfie_seg", "--threads 1 --json checksums.json")
    parser.add_argument("--names", type=command.several(str), metavar="NAME,...", help="layers and models (default: all)")
    command.add_threads(parser, torch.get_num_threads())
    parser.add_argument("--budget", type=command.positive, default=1.0, help="seconds of each measurement (default: 1)")
    command.add_json(parser)
    asked = parser.parse_args(arguments)
    torch.set_num_threads(asked.threads)
    torch.manual_seed(0)
    cases = {layer.name: lambda layer=layer: module_of(layer) for layer in layers.parse(layers.TABLE)}
    cases |= {name: lambda name=name: models._model_and_input(name, False) for name in _MODELS}
    names = asked.names or list(cases)
    if unknown := set(names).difference(cases):
        parser.error(f"--names: got {sorted(unknown)[0]!r}, wanted some of {', '.join(cases)}")
    rows = []
    with command.printing(asked.json) as write_json:
        lines = tables.Lines(COLUMNS, ("layer or model", "cost", "share", "default ms", "frozen ms"), ("layer or model",))
        with terminal.progress(len(names)) as begin:
            for name in names:
                begin(name)
                case = cases[name]()
                if case is None:
                    continue
                sums, size = checksum_time(case[0], asked.threads)
                usual, frozen = measure(*case, asked.budget)
                row = {"name": name, "weight_bytes": size, "usual": usual, "frozen": frozen, "checksums": sums}
                rows.append(row | {"share": sums / frozen})
                lines.print([name, f"{size / 1024:.1f}", f"{usual * 1e3:.4f}", f"{frozen * 1e3:.4f}",
                             f"{usual / frozen - 1:.1%}", f"{sums * 1e6:.1f}", f"{sums / frozen:.2%}"])  # fmt: skip
        small = [row for row in rows if row["name"] not in _MODELS and row["weight_bytes"] < 1 << 20]
        if small:
            mean, worst = statistics.mean(row["share"] for row in small), max(small, key=lambda row: row["share"])
            print("layers with less than 1 MiB of weights: checksums take", end=" ")
            print(f"{mean:.2%} of the frozen time on average, at most {worst['share']:.2%} ({worst['name']})")
        write_json({"torch": torch.__version__, "threads": asked.threads, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
