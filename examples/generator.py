"""Image generator with the structure of DCGAN's: ``python examples/generator.py [FOLDER]``.

Four transposed convolutions with kernel 4 and stride 2, with ReLU between them, compute an image of 512 x 512 pixels from a
latent of 32 x 32 vectors. The network is not trained on many images. Its weights are fitted by least squares, layer by layer,
to one photograph from matplotlib's sample data. The targets of each layer but the last are the strongest principal components
of the photograph's patches, whose sides are halved from layer to layer. The target of the last layer is the photograph. The
program writes the photograph and the generated image side by side to FOLDER/generator.png. It needs
``pip install -e ".[bench]"``.
"""

import sys
from pathlib import Path

import matplotlib.cbook
import matplotlib.image
import numpy as np

import convt

CHANNELS = 32  # maximum number of principal components of a patch, at each layer


def photograph():
    with matplotlib.cbook.get_sample_data("grace_hopper.jpg") as file:
        return matplotlib.image.imread(file).astype(np.float32)[:512, :512] / 255


def components(image, side):
    """Return the strongest principal components of an image's patches, (height / side, width / side, components)."""
    height, width, colours = image.shape
    patches = (
        image.reshape(height // side, side, width // side, side, colours).swapaxes(1, 2).reshape(-1, side * side * colours)
    )
    patches = patches - patches.mean(0)
    _, axes = np.linalg.eigh(patches.T @ patches)
    return (patches @ axes[:, ::-1][:, :CHANNELS]).reshape(height // side, width // side, -1)


def two_sided(values):
    """Return the values and their negatives as channels, because a ReLU then keeps both signs."""
    return np.concatenate([values, -values], axis=-1)


def fitted(inputs, targets):
    """Return filter (4, 4, in, out) and bias of a layer, fitted by least squares. Targets are twice the size of inputs."""
    height, width, channels = inputs.shape
    padded = np.pad(inputs, ((1, 1), (1, 1), (0, 0)))
    filter, biases = np.empty((4, 4, channels, targets.shape[-1]), np.float32), []
    for y, x in np.ndindex(2, 2):  # each phase of the outputs has two taps on each axis
        columns = [padded[y + i : y + i + height, x + j : x + j + width] for i, j in np.ndindex(2, 2)]
        matrix = np.concatenate([*columns, np.ones((height, width, 1))], axis=-1).reshape(height * width, -1)
        ridge = 1e-4 * np.eye(matrix.shape[1]) * height * width
        found = np.linalg.solve(matrix.T @ matrix + ridge, matrix.T @ targets[y::2, x::2].reshape(height * width, -1))
        for n, (i, j) in enumerate(np.ndindex(2, 2)):
            filter[3 - y - 2 * i, 3 - x - 2 * j] = found[n * channels : (n + 1) * channels]
        biases.append(found[-1])
    return filter, np.mean(biases, axis=0, dtype=np.float32)


def generator(image, backend="auto"):
    """Return the layers of a generator fitted to an image, and the latent from which they generate it."""
    values = latent = np.maximum(two_sided(components(image, 16)), 0).astype(np.float32)
    layers = []
    for side in (8, 4, 2, 1):
        targets = image if side == 1 else two_sided(components(image, side))
        filter, bias = fitted(values, targets)
        activation = ("clip", 0, 1) if side == 1 else "relu"
        keywords = dict(strides=2, pads_begin=1, pads_end=1, activation=activation, backend=backend)
        layers.append(convt.ConvTranspose(filter, bias, **keywords))
        values = layers[-1](values[None])[0]
    return layers, latent


def generated(layers, latent):
    values = latent[None]
    for layer in layers:
        values = layer(values)
    return values[0]


def main(folder="."):
    image = photograph()
    layers, latent = generator(image)
    picture = generated(layers, latent)
    error = float(np.sqrt(np.mean((picture - image) ** 2)))
    path = Path(folder) / "generator.png"
    matplotlib.image.imsave(path, np.concatenate([image, picture], axis=1))
    print(f"{latent.shape} -> {picture.shape}, {-20 * np.log10(error):.1f} dB beside the photograph: {path}")
    return error


if __name__ == "__main__":
    main(*sys.argv[1:])
