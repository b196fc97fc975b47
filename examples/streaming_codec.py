"""A causal audio decoder, whole and in chunks: ``python examples/streaming_codec.py [FOLDER]``.

The decoder has the structure of neural codecs: four transposed convolutions turn frames of 10 ms into samples at 24 kHz. Its
weights are random. Each layer is trimmed on the right, so that no output waits for a later frame. The program decodes two
seconds as a whole and in chunks of 1 frame, 7 frames and 80 ms. It prints the latency of each, checks that all sounds are equal
bit by bit, and writes the sound to FOLDER/streaming_codec.wav. It needs ``pip install -e ".[bench]"``.
"""

import sys
import time
from pathlib import Path

import numpy as np
import scipy.io.wavfile

import convt

RATE, FRAMES = 24_000, 200
LAYERS = [(128, 64, 16, 8, ("elu", 1.0)), (64, 32, 10, 5, ("elu", 1.0)), (32, 16, 6, 3, ("elu", 1.0)), (16, 1, 4, 2, "tanh")]
FRAME = 240  # samples of a frame: the product of the strides


def decoder():
    """Return the operators of the decoder. "invariant" gives the same bits at all lengths."""
    rng, found = np.random.default_rng(0), []
    for ci, co, kernel, stride, activation in LAYERS:
        filter = rng.normal(0, (2 * stride / (kernel * ci)) ** 0.5, (kernel, ci, co)).astype(np.float32)
        keywords = dict(strides=stride, pads_end=kernel - stride, activation=activation, algorithm="invariant")
        found.append(convt.ConvTranspose(filter, np.zeros(co, np.float32), **keywords))
    return found


def frames():
    """Return random frames that change slowly, (1, FRAMES, channels)."""
    rng = np.random.default_rng(1)
    steps = rng.normal(0, 0.3, (FRAMES, LAYERS[0][0])).cumsum(0)
    return (steps / (1 + abs(steps))).astype(np.float32)[None]


def decoded(layers, x):
    for layer in layers:
        x = layer(x)
    return x


def in_chunks(operators, x, length):
    """Return the sound made in chunks of ``length`` frames, and the seconds that each chunk took."""
    streams, sound, seconds = [op.stream(trim="right") for op in operators], [], []
    for first in range(0, x.shape[1], length):
        start = time.perf_counter()
        sound.append(decoded(streams, x[:, first : first + length]))
        seconds.append(time.perf_counter() - start)
    return np.concatenate(sound, 1), seconds


def main(folder="."):
    operators, x = decoder(), frames()
    whole = decoded(operators, x)
    start = time.perf_counter()
    decoded(operators, x)
    per_frame = (time.perf_counter() - start) / FRAMES
    print(f"whole: {FRAMES} frames, {whole.shape[1]} samples, {per_frame * FRAMES * 1e3:.2f} ms")
    differ = 0
    for name, length in ("1 frame", 1), ("7 frames", 7), ("80 ms", 80 * RATE // FRAME // 1000), ("64 frames", 64):
        in_chunks(operators, x, length)  # the first chunk of each length makes a plan
        sound, seconds = in_chunks(operators, x, length)
        differ += int((sound != whole).sum())
        latency = np.median(seconds)
        print(
            f"chunks of {name}: {'equal' if (sound == whole).all() else 'NOT EQUAL'}, latency {latency * 1e3:.3f} ms "
            f"(at most {max(seconds) * 1e3:.3f}) for {length * FRAME / RATE * 1e3:.0f} ms of sound, "
            f"{latency / length / per_frame:.2f} times the whole per frame"
        )
    path = Path(folder) / "streaming_codec.wav"
    scipy.io.wavfile.write(path, RATE, (whole[0, :, 0] * 32_000).astype(np.int16))
    print(f"{differ} samples differ: {path}")
    return float(differ)


if __name__ == "__main__":
    main(*sys.argv[1:])
