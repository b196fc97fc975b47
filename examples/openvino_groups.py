"""OpenVINO's GroupConvolutionBackpropData on a photograph: ``python examples/openvino_groups.py [FOLDER]``.

Shapes and attributes are those of the example in OpenVINO's specification: data (1, 20, 224, 224), a filter (4, 5, 2, 3, 3) of
four groups, strides 2 and pads 1. The data are 20 copies of a photograph from matplotlib's sample data, each more blurred than
the one before. Each out-channel is the difference of two in-channels of its group, enlarged. The program compares the result
with SciPy's, and with OpenVINO's if OpenVINO is installed, and writes the eight out-channels to FOLDER/openvino_groups.png. It
needs ``pip install -e ".[bench]"``.
"""

import sys
from pathlib import Path

import matplotlib.cbook
import matplotlib.image
import numpy as np
import scipy.ndimage

import convt.openvino

TENTS = np.outer([0.5, 1, 0.5], [0.5, 1, 0.5])
ATTRIBUTES = dict(strides=[2, 2], pads_begin=[1, 1], pads_end=[1, 1], dilations=[1, 1])


def channels():
    """Return the photograph's brightness, (1, 20, 224, 224), with one strength of blur for each channel."""
    with matplotlib.cbook.get_sample_data("grace_hopper.jpg") as file:
        image = matplotlib.image.imread(file).astype(np.float32)[20:244, 120:344].mean(-1) / 255
    return np.stack([scipy.ndimage.gaussian_filter(image, 0.5 * 1.15**n) for n in range(20)])[None]


def differences():
    """Return a filter (groups, in, out, kernel, kernel): tents for channel 0 of each group minus channel 1 or 4."""
    filter = np.zeros((4, 5, 2, 3, 3), np.float32)
    filter[:, 0, :] = TENTS
    filter[:, 1, 0] = filter[:, 4, 1] = -TENTS
    return filter


def by_scipy(data):
    """Return the expected result by SciPy: differences with zeros inserted between pixels, convolved with tents."""
    found = []
    for first, second in ((5 * group, 5 * group + n) for group in range(4) for n in (1, 4)):
        apart = np.zeros((447, 447))
        apart[::2, ::2] = data[0, first].astype(float) - data[0, second]
        found.append(scipy.ndimage.convolve(apart, TENTS, mode="constant"))
    return np.stack(found)[None]


def by_openvino(data, filter):
    """Return the result of OpenVINO, or None if it is not installed."""
    try:
        import openvino
        from openvino import opset1
    except ImportError:
        return None
    parameter = opset1.parameter(data.shape, np.float32)
    node = opset1.group_convolution_backprop_data(parameter, opset1.constant(filter), **ATTRIBUTES)
    settings = {"INFERENCE_PRECISION_HINT": "f32"}
    return openvino.compile_model(openvino.Model([node], [parameter]), "CPU", settings)([data])[0]


def main(folder="."):
    data, filter = channels(), differences()
    result = convt.openvino.group_convolution_backprop_data(data, filter, **ATTRIBUTES)
    wanted = {"SciPy": by_scipy(data), "OpenVINO": by_openvino(data, filter)}
    errors = {name: float(abs(result - want).max()) for name, want in wanted.items() if want is not None}
    shown = result[0] / abs(result[0]).max(axis=(1, 2), keepdims=True)
    path = Path(folder) / "openvino_groups.png"
    matplotlib.image.imsave(path, np.vstack([np.hstack(shown[:4]), np.hstack(shown[4:])]), cmap="gray", vmin=-1, vmax=1)
    print(f"{data.shape} -> {result.shape}, largest differences {errors}: {path}")
    return max(errors.values())


if __name__ == "__main__":
    main(*sys.argv[1:])
