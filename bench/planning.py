"""Cost of planning, and what the automatic choice takes on other CPUs.

Run ``python -m bench.planning``.

Each part (`--part`) prints Markdown tables:

shapes   extra time, relative to a warm call, of a new shape, of a new batch size, and of a one-shot call with a large filter
memory   memory kept for the plans of a thousand lengths, and for weights packed for six image sizes

``--choices FILE`` writes the algorithms chosen on other CPUs, which are simulated. ``--against FILE`` lists choices that differ
from such a file. ``--checkout FOLDER`` measures the convt of another checkout with built kernels.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from . import command, layers, machine, peers, tables
from .layers import Layer
from .planning_worker import CPUS, NewShapesOfTorch, Planning
from .problem import LAYOUTS
from .shared import files, terminal
from .worker import Setting, Worker

PARTS = ("shapes", "memory")
TORCH = peers.Peer("torch", f"{peers.__name__}.torch", "torch")
TARGETS = {"shape": 1.0, "worst shape": 3.0, "batch": 0.3, "one-shot": 5.0}  # milliseconds in addition to a warm call

# Seven layers whose shapes change. SIZE_STEPS and SIZE_STEPS_2D say by how much: in 1-D, and on the first and the last axis.
CHANGING_LAYERS = layers.parse(
    """
    name           family  N  Cin  Cout  g   in        k      s  pads  op  d  source
    hifigan_first  audio   1  512  256   1   860       16     8  4     0   1  HiFi-GAN v1, 10 s
    hifigan_last   audio   1  64   32    1   55040     4      2  1     0   1  HiFi-GAN v1, 10 s
    encodec        audio   1  256  128   1   6000      10     5  0:5   0   1  EnCodec-24k, 10 s
    unet_2d        seg     1  128  64    1   192x192   2x2    2  0     0   1  U-Net
    dcgan          gan     1  512  256   1   9x9       4x4    2  1     0   1  DCGAN
    unet_3d        3d      1  64   32    1   40x64x64  2x2x2  2  0     0   1  nnU-Net
    depthwise      flow    1  64   64    64  28x28     4x4    2  1     0   1  bilinear upsampling
    """
)
SIZE_STEPS = (1, 2, 3, 5, 8, 13, 21)
SIZE_STEPS_2D = ((1, 0), (0, 1), (2, 1), (1, 3), (3, 3), (2, 0), (0, 2))
LARGE_FILTERS = layers.parse(
    """
    name      family  N  Cin  Cout  g   in     k      s  pads  op  d  source
    dense     test    1  16   16    1   32x32  31x31  2  15    0   1  one-shot
    depthwise test    1  64   64    64  32x32  31x31  2  15    0   1  one-shot
    """
)
LENGTHS = layers.parse("name family N Cin Cout g in k s pads op d source\nspeech audio 1 64 32 1 1100 4 2 1 0 1 lengths")[0]
# A decoder of 145 MB of weights: each layer is 4x4 with stride 2.
DECODER = ((1024, 1024), (1024, 768), (768, 384), (384, 256), (256, 128), (128, 64))
IMAGES = ((8, 8), (16, 16), (4, 4), (32, 32), (2, 2), (12, 20))


def new_sizes(layer: Layer) -> list[Layer]:
    """Return a layer with seven other sizes, each slightly smaller than its own."""
    if len(layer.size) == 1:
        return [replace(layer, size=(layer.size[0] - less,)) for less in SIZE_STEPS]
    return [
        replace(layer, size=(layer.size[0] - first, *layer.size[1:-1], layer.size[-1] - last)) for first, last in SIZE_STEPS_2D
    ]


def new_batches(layer: Layer) -> tuple[Layer, list[Layer]]:
    """Return a layer with half of its image and the largest batch, and the same layer with smaller batches."""
    half = replace(layer, size=tuple(-(-n // 2) for n in layer.size), batch=5)
    return half, [replace(half, batch=n) for n in (4, 2, 3, 1)]


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    return "\n".join([*tables.markdown(head, rows), ""])


def tables_of(text: str) -> list[list[dict[str, str]]]:
    """Return the Markdown tables of a text, a dict for each row."""
    found: list[list[list[str]]] = []
    for above, line in itertools.pairwise(["", *text.splitlines()]):
        if line.startswith("| "):
            if not above.startswith("| "):
                found.append([])
            found[-1].append(line[2:-2].split(" | "))
    return [[dict(zip(head, row, strict=True)) for row in rows] for head, _, *rows in found]


def _ms(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def shapes(ask, ask_torch, options) -> str:
    """Return the tables of the part `shapes`."""

    def rows_of(what: str, cases) -> list[list[str]]:
        rows, medians, worst = [], [], []
        for layer, layout, others in cases:
            begin(f"{layer.name} {layout}")
            if others is None:
                found, theirs = ask("one_shot", layer, layout, options.rounds), None
            else:
                found = ask("new_shapes", layer, layout, others, options.rounds)
                theirs = ask_torch and ask_torch("new_shapes", layer, layout, others, 1)
            medians.append(median(found["least"]))
            worst.append(max(found["least"]))
            rows.append([layer.name, layout, _ms(found["warm"]), _ms(medians[-1]), _ms(worst[-1]), _ms(median(found["first"])),
                         f"{found['calls']:,.0f}", _ms(median(theirs["least"])) if theirs else "-"])  # fmt: skip
        most = f"{TARGETS['worst shape']:g}" if what == "shape" else ""
        rows.append(["median", "", "", _ms(median(medians)), _ms(max(worst)), "", "", ""])
        rows.append(["target", "", "", f"{TARGETS[what]:g}", most, "", "", ""])
        return rows

    head = ["layer", "layout", "warm ms", "extra ms", "worst extra", "first round", "Python calls", "PyTorch's extra"]
    sizes = [(layer, layout, new_sizes(layer)) for layout in options.layout for layer in CHANGING_LAYERS]
    batches = [
        (*new_batches(layer), layout) for layout in options.layout for layer in CHANGING_LAYERS if layer.name != "unet_3d"
    ]
    large = [(layer, layout, None) for layout in options.layout for layer in LARGE_FILTERS]
    batches = [(layer, layout, others) for layer, others, layout in batches]
    with terminal.progress(len(sizes) + len(batches) + len(large)) as begin:
        rows = rows_of("shape", sizes), rows_of("batch", batches), rows_of("one-shot", large)
    return (
        "### New shape\n\n*Extra* is the time of the first call minus the least time of a warm call, in milliseconds: the\n"
        "median and the worst of seven new sizes, each the least of several rounds. *First round* is the median of the\n"
        "first round, whose calls may also pack weights in another form. *Python calls* counts additional calls of Python\n"
        "functions.\n\n"
        + table(head, rows[0])
        + "\n### New batch size\n\n"
        + table(head, rows[1])
        + "\n### One-shot call with a 31x31 filter\n\n"
        + table(head, rows[2])
    )


def memory(ask, ask_torch, options) -> str:
    """Return the tables of the part `memory`."""
    found = ask("lengths", LENGTHS, 1000)
    kept = ", ".join(f"{count:,}: {_mib(size)}" for count, size in found["kept"].items())
    text = (
        f"### Plans of many lengths\n\nMiB kept after calls with many lengths of a 1-D layer (number of lengths: MiB): {kept}. "
        f"A repeated length takes {_ms(found['again'])} ms more than a warm call if all others are called in between.\n\n"
        "### Packed weights\n\nA decoder of six layers runs on images of six sizes, one after another. Cells are the "
        "memory that it keeps in addition to its filters, in MiB and (in parentheses) as a multiple of the filters.\n\n"
    )
    rows = []
    for layout in options.layout:
        packed = ask("packed", DECODER, IMAGES, layout)
        size = packed["filters"]
        rows.append([layout, _mib(size), *(f"{_mib(each)} ({each / size:.2f})" for each in packed["kept"])])
    return text + table(["layout", "filters", *("x".join(map(str, image)) for image in IMAGES)], rows)


def _mib(size: float) -> str:
    return f"{size / (1 << 20):,.1f}" if size < 10 << 20 else f"{size / (1 << 20):,.0f}"


def choices(ask, layouts: list[str]) -> dict[str, Any]:
    """Return CPU -> layout -> layer -> (chosen algorithm, expected cycles of all algorithms), for all `CPUS`."""
    return {cpu: ask("chosen", layers.parse(layers.TABLE), layouts, cpu) for cpu in CPUS}


def differences(before: dict[str, Any], now: dict[str, Any]) -> str:
    """Return a table of the choices that differ."""
    rows, total = [], 0
    for cpu, layouts in now.items():
        for layout, found in layouts.items():
            for name, (chosen, costs) in found.items():
                total += 1
                old = before.get(cpu, {}).get(layout, {}).get(name, [chosen, costs])
                if old[0] != chosen:
                    ratio = [f"{each[old[0]] / each[chosen]:.2f}" if {old[0], chosen} <= each.keys() else "-"
                             for each in (old[1], costs)]  # fmt: skip
                    rows.append([cpu, layout, name, old[0], chosen, *ratio])
    head = ["CPU", "layout", "layer", "before", "now", "before / now, cycles expected before", "cycles expected now"]
    return f"### Changed choices: {len(rows)} of {total}\n\n{table(head, rows)}"


def _parser() -> argparse.ArgumentParser:
    parser = command.parser(
        "planning", __doc__.splitlines()[0], "--part shapes --layout NHWC", "--choices choices.json --threads 2"
    )
    add = parser.add_argument
    add("--part", type=command.words_of(PARTS), default=list(PARTS), metavar="PART,...",
        help=f"{', '.join(PARTS)} (default: all)")  # fmt: skip
    command.add_layout(parser, list(LAYOUTS))
    command.add_threads(parser, machine.cores())
    add("--isa", choices=list(peers.CAPS), help="limit of the instruction set (default: no limit)")
    add("--rounds", type=command.integer, default=3, metavar="N", help="rounds of the part shapes (default: 3)")
    add("--checkout", default="", metavar="FOLDER", help="measure the convt of this checkout")
    command.add_json(parser)
    add("--save", type=files.argument, metavar="FILE", help="also write the tables to this file")
    add("--choices", type=files.argument, metavar="FILE", help="only write the algorithms chosen on other CPUs, as JSON")
    add("--against", metavar="FILE", help="only list choices that differ from this file")
    return parser


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    setting = Setting(options.threads, options.isa)
    convt = Worker(peers.convt_in(options.checkout), setting, Planning)
    torch = Worker(TORCH, setting, NewShapesOfTorch)

    def asking(worker):
        return lambda *words: worker.ask(*words, timeout=600.0)

    try:
        about = f"{machine.cpu_model()}, {convt.ask('about')}"
        if options.choices or options.against:
            now = choices(asking(convt), options.layout)
            if options.against:
                print(differences(json.loads(Path(options.against).read_text(encoding="utf-8")), now))
            if options.choices:
                files.write(options.choices, json.dumps(now, indent=1) + "\n")
            return 0
        ask_torch = None
        if "shapes" in options.part:
            with contextlib.suppress(peers.Absent):
                torch.ask("version", timeout=600.0)
                ask_torch = asking(torch)
        texts, functions = {"about": f"{about}.\n"}, {"shapes": shapes, "memory": memory}
        with command.printing(options.json) as write_json:
            print(texts["about"], flush=True)
            for part in options.part:
                texts[part] = functions[part](asking(convt), ask_torch, options)
                print(texts[part], flush=True)
            write_json({"about": about} | {part: tables_of(texts[part]) for part in options.part})
        if options.save:
            files.write(options.save, "\n".join(texts.values()))
    finally:
        convt.close()
        torch.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
