"""Bilinear enlargement of a photograph by a factor of 4: ``python examples/photo.py [FOLDER]``.

Bilinear interpolation by a factor s is a transposed convolution with stride s, a triangular (tent) kernel, and one group for
each colour. The program enlarges a photograph from matplotlib's sample data, compares the result with SciPy's and writes it to
FOLDER/photo.png. It needs ``pip install -e ".[bench]"``.
"""

import sys
from pathlib import Path

import matplotlib.cbook
import matplotlib.image
import numpy as np
import scipy.ndimage

import convt

FACTOR = 4


def bilinear(factor, colours):
    """Return the tent filter in XOI order, (kernel, kernel, out-channels of a group: 1, in-channels: colours)."""
    size = 2 * factor - factor % 2
    tent = 1 - abs((np.arange(size) - (size - 1) / 2) / factor)
    return np.broadcast_to(np.outer(tent, tent)[:, :, None, None], (size, size, 1, colours)).astype(np.float32)


def enlarged(image, factor):
    """Return an image (height, width, colours) with both sides enlarged by ``factor``. Border pixels are repeated outwards."""
    padded = np.pad(image, ((1, 1), (1, 1), (0, 0)), mode="edge")[None]
    filter = bilinear(factor, image.shape[-1])
    crop = (filter.shape[0] - factor) // 2 + factor  # the enlarged padding pixel, and the overhang of the kernel
    rest = filter.shape[0] - factor - (crop - factor) + factor
    return convt.conv_transpose(
        padded, filter, strides=factor, pads_begin=crop, pads_end=rest, groups=image.shape[-1], filter_format="XOI"
    )[0]


def main(folder="."):
    with matplotlib.cbook.get_sample_data("grace_hopper.jpg") as file:
        image = matplotlib.image.imread(file).astype(np.float32)[:256, 100:356] / 255
    large = enlarged(image, FACTOR)
    want = np.stack(
        [scipy.ndimage.zoom(image[..., n], FACTOR, order=1, mode="nearest", grid_mode=True) for n in range(3)], axis=-1
    )
    path = Path(folder) / "photo.png"
    matplotlib.image.imsave(path, large.clip(0, 1))
    error = float(abs(large - want).max())
    print(f"{image.shape} -> {large.shape}, largest difference from scipy's {error:.1e}: {path}")
    return error


if __name__ == "__main__":
    main(*sys.argv[1:])
