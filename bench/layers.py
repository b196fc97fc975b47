"""The table of built-in layers, and the reader of `--layers FILE`.

A row of the table is one transposed convolution of a public network. A single number applies to every spatial axis, `8x1` gives
one number per axis, and pads are `begin` or `begin:end`. `python -m bench.batch` prints the same layers in benchdnn's notation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from math import gcd, prod
from typing import Any

from .shared import layer_format

TABLE = """
name               family  N   Cin  Cout g   in       k     s     pads  op d    source
dcgan_first        gan     64  100  512  1   1x1      4x4   1     0     0  1    pytorch/examples dcgan
dcgan_mid          gan     64  256  128  1   8x8      4x4   2     1     0  1    pytorch/examples dcgan
dcgan_last         gan     64  64   3    1   32x32    4x4   2     1     0  1    pytorch/examples dcgan
pix2pix_up7        gan     1   256  64   1   64x64    4x4   2     1     0  1    CycleGAN-and-pix2pix unet_256
cyclegan_up2       gan     1   128  64   1   128x128  3x3   2     1     1  1    CycleGAN-and-pix2pix resnet
stylegan2_b64      gan     1   512  512  1   32x32    3x3   2     0     0  1    NVlabs/stylegan2-ada-pytorch
unet_up1           seg     1   1024 512  1   40x60    2x2   2     0     0  1    milesial/Pytorch-UNet 640x960
unet_up4           seg     1   128  64   1   320x480  2x2   2     0     0  1    milesial/Pytorch-UNet 640x960
fcn32s             seg     1   21   21   1   16x16    64x64 32    19:25 0  1    voc-fcn32s
fcn8s              seg     1   21   21   1   70x70    16x16 8     31:37 0  1    voc-fcn8s
fcn8s_bilinear_dw  seg     1   21   21   21  70x70    16x16 8     4     0  1    voc-fcn8s as bilinear upsampling
pose_deconv1       det     1   2048 256  1   8x6      4x4   2     1     0  1    SimpleBaseline R50 256x192
pose_deconv3       det     1   256  256  1   32x24    4x4   2     1     0  1    SimpleBaseline R50 256x192
centernet_dla_up2  det     1   64   64   64  32x32    8x8   4     2     0  1    CenterNet DLA up_2
pointpillars_1     det     1   64   128  1   248x216  1x1   1     0     0  1    OpenPCDet deblock1
pointpillars_4     det     1   256  128  1   62x54    4x4   4     0     0  1    OpenPCDet deblock3
maskrcnn           det     100 256  256  1   14x14    2x2   2     0     0  1    detectron2 mask_head
sam_up0            seg     16  256  64   1   64x64    2x2   2     0     0  1    segment-anything, 16 prompts
depthanything_4    seg     1   256  256  1   37x37    4x4   4     0     0  1    Depth-Anything-V2-L
ppocr_conv3        ocr     1   24   1    1   480x480  2x2   2     0     0  1    PaddleOCR DB head 960
selfie_seg         seg     1   16   1    1   72x128   2x2   2     0     0  1    MediaPipe selfie
fsrcnn_x3          sr      1   56   1    1   360x640  9x9   3     4     2  1    FSRCNN x3 1080p
compressai_last    sr      1   128  3    1   256x384  5x5   2     2     1  1    CompressAI google
flownets_deconv2   flow    1   386  64   1   48x128   4x4   2     1     0  1    FlowNetS
liteflownet_dw     flow    1   49   49   49  112x256  4x4   2     1     0  1    LiteFlowNet upcorr
rife_block2        flow    1   90   5    1   272x480  4x4   2     1     0  1    RIFE 1088x1920
openvino_seed      group   1   20   8    4   224x224  3x3   2     1     0  1    GroupConvolutionBackpropData example
hifigan_ups0       audio   1   512  256  1   860      16    8     4     0  1    HiFi-GAN v1, 10 s
hifigan_ups1       audio   1   256  128  1   6880     16    8     4     0  1    HiFi-GAN v1, 10 s
melotts_ups2       audio   1   128  64   1   27520    8     2     3     0  1    MeloTTS, 5 s
rvc_ups0           audio   1   512  256  1   500      16    10    3     0  1    RVC v1-40k, 5 s
bigvgan_aa_dw      audio   1   24   24   24  240650   12    2     15    0  1    BigVGAN anti-alias
waveglow_istft     audio   1   1026 1    1   861      1024  256   0     0  1    WaveGlow denoiser iSTFT
demucs_freq        audio   1   384  192  1   8x336    8x1   4x1   2x0   0  1    HTDemucs freq
encodec_24k        audio   1   256  128  1   6000     10    5     0:5   0  1    EnCodec-24k, 10 s
convtasnet_dec     audio   2   512  1    1   4001     16    8     8     0  1    Conv-TasNet decoder
mimi_dw            audio   1   512  512  512 125      4     2     0:2   0  1    Mimi upsample
spleeter_up1       audio   1   512  256  1   8x16     5x5   2     1:2   0  1    Spleeter
gtcrn_dw           audio   1   16   16   16  73x33    3x3   1     10x1  0  5x1  GTCRN depthwise
diffwave_up        audio   1   1    1    1   80x860   3x32  1x16  1x8   0  1    DiffWave upsampler
nnunet3d_deep      3d      1   320  320  1   5x5x5    1x2x2 1x2x2 0     0  1    nnU-Net Toothfairy2
nnunet3d_top       3d      1   64   32   1   40x64x64 2x2x2 2     0     0  1    nnU-Net (80x160x160, cut)
resunet3d          3d      1   128  64   1   16x42x42 3x3x3 2     1     0  1    pytorch-3dunet (40x85x85, cut)
monai_top          3d      1   32   2    1   48x48x48 3x3x3 2     1     1  1    MONAI spleen UNet
gan3d_conv3        3d      1   128  64   1   16x16x16 4x4x4 2     1     0  1    3D-GAN conv3
"""

# Single frames, as streaming decoders call their layers. They are measured if --suite or --names asks for them.
FRAMES = """
name               family  N   Cin  Cout g   in       k     s     pads  op d    source
frame_hifigan_0    frames  1   512  256  1   1        16    8     0     0  1    HiFi-GAN v1, one frame
frame_hifigan_1    frames  1   256  128  1   8        16    8     0     0  1    HiFi-GAN v1, one frame
frame_hop_256      frames  1   256  128  1   1        16    8     0     0  1    one input of HiFi-GAN's second layer
frame_dac_0        frames  1   1536 768  1   4        16    8     0     0  1    DAC 44 kHz, four frames
frame_dac_1        frames  1   768  384  1   8        16    8     0     0  1    DAC 44 kHz, one frame
frame_mimi_dw      frames  1   512  512  512 1        4     2     0     0  1    Mimi upsample, one frame
frame_mimi_0       frames  1   1024 512  1   2        16    8     0     0  1    Mimi decoder, one frame
frame_mimi_1       frames  1   512  256  1   8        12    6     0     0  1    Mimi decoder, half a frame
frame_encodec_1    frames  1   256  128  1   8        10    5     0     0  1    EnCodec-24k, one frame
frame_encodec_3    frames  1   64   32   1   8        4     2     0     0  1    EnCodec-24k, eight inputs of the last layer
"""

# One or two layers of each family, of different shape classes, for --quick.
QUICK = (
    "dcgan_mid",
    "cyclegan_up2",
    "unet_up1",
    "pose_deconv1",
    "ppocr_conv3",
    "compressai_last",
    "liteflownet_dw",
    "openvino_seed",
    "hifigan_ups0",
    "gan3d_conv3",
)


@dataclass(frozen=True)
class Layer:
    """One transposed convolution. Values per axis are tuples with one entry for each spatial axis."""

    name: str
    family: str
    batch: int
    cin: int
    cout: int
    groups: int
    size: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads_begin: tuple[int, ...]
    pads_end: tuple[int, ...]
    output_padding: tuple[int, ...]
    dilations: tuple[int, ...]
    source: str

    def __post_init__(self):
        _checked(self.to_row(), self.name)

    @property
    def natural(self) -> tuple[int, ...]:
        """Return the spatial size of the full scatter, before output_padding is added and pads are cut off."""
        axes = zip(self.size, self.kernel, self.strides, self.dilations, strict=True)
        return tuple(s * (i - 1) + d * (k - 1) + 1 for i, k, s, d in axes)

    @property
    def output(self) -> tuple[int, ...]:
        """Return the spatial size of the result."""
        axes = zip(self.natural, self.output_padding, self.pads_begin, self.pads_end, strict=True)
        return tuple(n + op - a - b for n, op, a, b in axes)

    @property
    def data_shape(self) -> tuple[int, ...]:
        """Return the shape of the data in NXC."""
        return (self.batch, *self.size, self.cin)

    @property
    def filter_shape(self) -> tuple[int, ...]:
        """Return the shape of the filter in XIO."""
        return (*self.kernel, self.cin, self.cout // self.groups)

    @property
    def result_shape(self) -> tuple[int, ...]:
        """Return the shape of the result in NXC."""
        return (self.batch, *self.output, self.cout)

    @cached_property
    def flops(self) -> int:
        """Return the operations that the result needs: two for each product of an input and a weight that is part of an output.

        Products with zeros between or around inputs do not count, nor products that the pads cut off. The GFLOP/s of every
        library are based on this number. An algorithm with fewer multiplications, such as Winograd, can exceed the peak.
        """
        axes = zip(self.size, self.kernel, self.strides, self.dilations, self.pads_begin, self.output, strict=True)
        products = prod(_useful_products(*axis) for axis in axes)
        return 2 * self.batch * products * self.cin * self.cout // self.groups

    @cached_property
    def least_flops(self) -> float:
        """Return the operations after the best known reduction, which the hardware limit counts.

        It is Winograd with four points, which is as exact as the direct sum: F(3, 2) and F(2, 3) need two thirds of the
        multiplications along each axis, for phases of several taps. The additions of the transforms do not count. With few
        channels they take longer than the multiplications that they save, so that nothing is reduced.
        """
        if min(self.cin, self.cout) < WINOGRAD_CHANNELS * self.groups:
            return self.flops
        axes = zip(self.kernel, self.strides, self.dilations, strict=True)
        return self.flops * prod(_winograd_share(*axis) for axis in axes)

    @property
    def elements(self) -> int:
        """Return the number of elements of data, filter and result together."""
        return prod(self.data_shape) + prod(self.filter_shape) + prod(self.result_shape)

    def to_row(self) -> dict:
        """Return the layer as an object of a `--layers` file."""
        return {key: list(value) if isinstance(value := getattr(self, field), tuple) else value for key, field in KEYS.items()}


def _useful_products(size: int, kernel: int, stride: int, dilation: int, begin: int, output: int) -> int:
    """Count the pairs (input i, tap t) of an axis whose product is inside the output: 0 <= i s + t d - begin < output."""
    first = ((-((t * dilation - begin) // stride)) for t in range(kernel))
    last = ((-((t * dilation - begin - output) // stride)) for t in range(kernel))
    return sum(max(0, min(size, b) - max(0, a)) for a, b in zip(first, last, strict=True))


def _winograd_share(kernel: int, stride: int, dilation: int) -> float:
    """Return the share of the multiplications along an axis that Winograd with four points needs."""
    apart = stride // gcd(stride, dilation)  # taps at this distance belong to one phase
    taps = [len(range(first, kernel, apart)) for first in range(min(apart, kernel))]
    return sum(n if n < 2 else n * 2 / 3 for n in taps) / kernel


# The fewest in-channels and out-channels of a group for which `least_flops` counts a reduction.
WINOGRAD_CHANNELS = 16

# The keys of a `--layers` file and the corresponding fields of a `Layer`.
KEYS = {
    "name": "name",
    "family": "family",
    "N": "batch",
    "Cin": "cin",
    "Cout": "cout",
    "g": "groups",
    "in": "size",
    "k": "kernel",
    "s": "strides",
    "pb": "pads_begin",
    "pe": "pads_end",
    "op": "output_padding",
    "d": "dilations",
    "source": "source",
}


def _checked(row: dict, name: str) -> dict:
    try:
        return layer_format.checked(row, name)
    except ValueError as exc:
        raise ValueError(f"{layer_format.message_name(name)}: {exc}") from exc


def from_row(row: dict, name: str = "layer") -> Layer:
    """Make a layer from one object of a `--layers` file. An int applies to every spatial axis."""
    found = _checked(row, name)
    return Layer(**{field: found[key] for key, field in KEYS.items()})


def parse(table: str) -> list[Layer]:
    """Parse a text table of layers, whose first line names the columns."""
    header, *lines = (line for line in table.splitlines() if line.strip())
    columns = header.split()
    layers = []
    for line in lines:
        row = dict(zip(columns, line.split(maxsplit=len(columns) - 1), strict=True))
        begin, _, end = row.pop("pads").partition(":")
        row |= {"pb": begin, "pe": end or begin}
        for key in row.keys() - {"name", "family", "source"}:
            numbers = [int(number) for number in row[key].split("x")]
            row[key] = numbers if len(numbers) > 1 else numbers[0]
        layers.append(from_row(row))
    return layers


def built_in(families: list[str] | None = None, names: list[str] | None = None) -> list[Layer]:
    """Return the layers of TABLE, and those of FRAMES if families or names are to be selected."""
    return parse(TABLE) + (parse(FRAMES) if families or names else [])


def select(
    known: list, families: list[str] | None, names: list[str] | None, layer_of: Callable[[Any], Layer] = lambda each: each
) -> list:
    """Return the elements of ``known`` whose layers have these families and names. None stands for all."""
    for what, wanted, attribute in (("family", families, "family"), ("layer", names, "name")):
        if wanted is None:
            continue
        words = sorted({getattr(layer_of(each), attribute) for each in known})
        if unknown := [word for word in wanted if word not in words]:
            near = get_close_matches(unknown[0], words)
            hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(words)}"
            raise ValueError(f"unknown {what} {unknown[0]!r}; {hint}")
        known = [each for each in known if getattr(layer_of(each), attribute) in wanted]
    return known


def read(path: str) -> list[Layer]:
    """Read the layers of a JSON file in the format of `python -m convt plan`."""
    try:
        return [from_row(row, name) for name, row in layer_format.rows(layer_format.text_of(path))]
    except ValueError as exc:
        raise ValueError(f"{path}: {exc}") from exc
