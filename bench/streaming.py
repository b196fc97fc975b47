"""Cost of streams on layers of audio decoders: ``python -m bench.streaming``.

The table has for each layer and layout:

* over 1, over 8: microseconds that a chunk of 1 and of 8 frames takes in addition to its kernel, which is a call of the step's
  plan on inputs that are joined already;
* per frame: the time per frame of a stream in chunks of 64 frames, relative to a call on the whole of the same operator;
* auto: the same relative to a call on the whole with ``algorithm="auto"``.

Each time is the least of the medians of several rounds, in which the calls take turns.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import convt

from . import command, tables, timing

# name -> (channels in, channels out, groups, kernel, stride)
LAYERS = {
    "encodec 1": (512, 256, 1, 16, 8), "encodec 2": (256, 128, 1, 10, 5), "encodec 3": (128, 64, 1, 8, 4),
    "encodec 4": (64, 32, 1, 4, 2), "mimi upsample": (512, 512, 512, 4, 2), "hifigan 1": (512, 256, 1, 16, 8),
    "vocos istft": (1026, 1, 1, 1024, 256), "small": (16, 8, 1, 4, 2),
}  # fmt: skip
WHOLE, CHUNK = 1024, 64
TURN = 2e-3  # seconds of a call in a round


def row(layer: tuple[int, ...], data_format: str, rounds: int) -> list[float]:
    """Return the figures of a layer: over 1, over 8, per frame, auto."""
    ci, co, groups, kernel, stride = layer
    rng = np.random.default_rng(0)
    filter = rng.standard_normal((kernel, ci, co // groups), np.float32)
    keywords: dict[str, Any] = dict(strides=stride, groups=groups, data_format=data_format)
    op, auto = convt.ConvTranspose(filter, algorithm="invariant", **keywords), convt.ConvTranspose(filter, **keywords)
    shape = lambda n: (1, n, ci) if data_format == "NXC" else (1, ci, n)  # noqa: E731
    place, found = shape(-1).index(-1), []
    for length in (1, 8):
        stream, chunk = op.stream(trim="right"), rng.standard_normal(shape(length), np.float32)
        for _ in range(kernel + 2):
            stream(chunk)
        step = stream._alike[chunk.shape]
        joined = np.zeros(shape(step.problem.in_sizes[0]), np.float32)
        both = timing.in_turns([lambda: stream(chunk), lambda: step(joined)], rounds * TURN, rounds)  # noqa: B023
        found.append((both[0] - both[1]) * 1e6)
    whole = rng.standard_normal(shape(WHOLE), np.float32)
    chunks = [np.ascontiguousarray(each) for each in np.split(whole, WHOLE // CHUNK, place)]
    stream = op.stream(trim="right")
    calls = lambda: [stream(each) for each in chunks], lambda: op(whole), lambda: auto(whole)
    times = timing.in_turns(calls, rounds * TURN, rounds)
    return [*found, times[0] / times[1], times[0] / times[2]]


def main(arguments: list[str] | None = None) -> None:
    parser = command.parser("streaming", __doc__, "", "--rounds 5")
    parser.add_argument("--rounds", type=command.integer, default=15, metavar="N", help="turns of each call (default: 15)")
    rounds = parser.parse_args(arguments).rounds
    print(f"threads {convt.get_num_threads()}\n")
    print("\n".join(tables.markdown(("layer", "layout", "over 1", "over 8", "per frame", "auto"), ())))
    for name, layer in LAYERS.items():
        for data_format in ("NXC", "NCX"):
            one, eight, frame, auto = row(layer, data_format, rounds)
            print(f"| {name} | {data_format} | {one:.1f} | {eight:.1f} | {frame:.2f} | {auto:.2f} |", flush=True)


if __name__ == "__main__":
    main()
