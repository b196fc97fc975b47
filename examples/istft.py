"""Inverse short-time Fourier transform as a transposed convolution: ``python examples/istft.py [FOLDER]``.

Each frame of the spectrum is a pixel, and its real and imaginary parts are the channels. The filter has the windowed wave of
each frequency, and the stride is the hop. A transposed convolution sums the overlapping frames. The program synthesises a
sound, transforms it, restores it, prints the largest error and writes the restored sound to FOLDER/istft.wav. It needs
``pip install -e ".[bench]"``.
"""

import sys
from pathlib import Path

import numpy as np
import scipy.io.wavfile

import convt

RATE, SIZE, HOP = 16_000, 512, 128


def speech_like(seconds=2.0):
    """Return a synthetic sound like speech: harmonics of a gliding pitch, with a formant, in syllables."""
    t = np.arange(int(seconds * RATE)) / RATE
    phase = 2 * np.pi * np.cumsum(120 + 25 * np.sin(2 * np.pi * 0.7 * t) + 3 * np.sin(2 * np.pi * 5.5 * t)) / RATE
    voice = sum(np.exp(-(((120 * n - 700) / 900) ** 2)) / n**0.5 * np.sin(n * phase) for n in range(1, 40))
    return (voice * np.clip(np.sin(2 * np.pi * 2.5 * t), 0, 1) ** 0.5 / 6).astype(np.float32)


def window():
    return np.hanning(SIZE + 1)[:-1]


def spectrum(sound):
    """Return the transform of a sound, (1, frames, 2 * frequencies), with the real parts before the imaginary parts."""
    frames = np.lib.stride_tricks.sliding_window_view(sound, SIZE)[::HOP] * window()
    found = np.fft.rfft(frames)
    return np.concatenate([found.real, found.imag], axis=1).astype(np.float32)[None]


def inverse():
    """Return the operator that maps a spectrum (1, frames, 2 * frequencies) to the sum of windowed frames (1, samples, 1)."""
    waves = np.fft.irfft(np.eye(SIZE // 2 + 1), axis=1), np.fft.irfft(1j * np.eye(SIZE // 2 + 1), axis=1)
    filter = np.concatenate(waves) * window()  # (2 * frequencies, samples)
    return convt.ConvTranspose(filter.astype(np.float32)[:, None], strides=HOP, filter_format="IOX")


def main(folder="."):
    sound = speech_like()
    frames = spectrum(sound)
    summed = inverse()(frames)[0, :, 0]
    weights = convt.conv_transpose(np.ones((1, frames.shape[1], 1)), (window() ** 2)[:, None, None], strides=HOP)[0, :, 0]
    inside = slice(SIZE, len(summed) - SIZE)  # where all windows overlap
    again = summed[inside] / weights[inside]
    error = float(abs(again - sound[inside]).max() / abs(sound).max())
    path = Path(folder) / "istft.wav"
    scipy.io.wavfile.write(path, RATE, (again / abs(again).max() * 32_000).astype(np.int16))
    print(f"{frames.shape} -> {len(again)} samples, largest error {error:.1e} of the loudest sample: {path}")
    return error


if __name__ == "__main__":
    main(*sys.argv[1:])
