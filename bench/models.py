"""Times of whole models before and after convt, in PyTorch and ONNX Runtime.

Run ``python -m bench.models``.

PyTorch models have random weights. A model whose package is missing is skipped with a message. Each model is timed with and
without convt in turns. Its transposed convolutions are also timed alone, on the inputs that they have in the model.

Columns: "before" and "convt" are the times of the model without and with convt. "share" is the part of "before" that transposed
convolutions take. Hooks measure it in PyTorch. In ONNX Runtime the profiler does, and nodes that convt fuses count too.
"speedup" is before / convt. "layers" is the speedup of the layers timed alone. "of Amdahl" is the speedup divided by the
speedup that Amdahl's law predicts from "share" and "layers". "difference" is the largest difference of the two outputs,
relative to the largest output.
"""

import itertools
import statistics
import sys
import tempfile
import time

from . import command, tables, timing
from .shared import terminal

with command.packages(__name__):
    import torch

    import convt.torch
    from convt._call.worth import in_turns

    from . import published

nn = torch.nn
_TRANSPOSED = nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d


# ---------------------------------------------------------------- models: name -> (module, input)


def dcgan():
    """The generator of DCGAN, 64x64, batch 16."""
    layers = []
    for n, (ci, co) in enumerate(itertools.pairwise((100, 512, 256, 128, 64))):
        up = nn.ConvTranspose2d(ci, co, 4, 2, 1, bias=False) if n else nn.ConvTranspose2d(ci, co, 4, bias=False)
        layers += [up, nn.BatchNorm2d(co), nn.ReLU()]
    return nn.Sequential(*layers, nn.ConvTranspose2d(64, 3, 4, 2, 1, bias=False), nn.Tanh()), torch.randn(16, 100, 1, 1)


class _Unet(nn.Module):
    """One level of pix2pix's U-Net, around the next."""

    def __init__(self, outer, inner, inside=None, outermost=False):
        super().__init__()
        conv = nn.Conv2d(3 if outermost else outer, inner, 4, 2, 1)
        up = nn.ConvTranspose2d(inner * (2 if inside else 1), outer, 4, 2, 1)
        self.down = nn.Sequential(nn.LeakyReLU(0.2), conv, nn.BatchNorm2d(inner))
        self.inside = inside
        self.up = nn.Sequential(nn.ReLU(), up, nn.BatchNorm2d(outer))
        self.outermost = outermost

    def forward(self, x):
        y = self.down(x)
        y = self.up(y if self.inside is None else self.inside(y))
        return torch.tanh(y) if self.outermost else torch.cat([x, y], 1)


def pix2pix():
    """The U-Net of pix2pix, 256x256, batch 1."""
    model = _Unet(512, 512)
    for outer, inner in ((512, 512), (512, 512), (512, 512), (256, 512), (128, 256), (64, 128)):
        model = _Unet(outer, inner, model)
    return _Unet(3, 64, model, outermost=True), torch.randn(1, 3, 256, 256)


class _Residual(nn.Module):
    """A block of HiFi-GAN: dilated convolutions with residuals."""

    def __init__(self, channels, kernel):
        super().__init__()
        conv = lambda d: nn.Conv1d(channels, channels, kernel, dilation=d, padding=d * (kernel - 1) // 2)  # noqa: E731
        step = lambda d: nn.Sequential(nn.LeakyReLU(0.1), conv(d), nn.LeakyReLU(0.1), conv(1))  # noqa: E731
        self.steps = nn.ModuleList(step(d) for d in (1, 3, 5))

    def forward(self, x):
        for step in self.steps:
            x = x + step(x)
        return x


class _Hifigan(nn.Module):
    """HiFi-GAN's generator, V1."""

    def __init__(self):
        super().__init__()
        self.first, self.ups, self.blocks, channels = nn.Conv1d(80, 512, 7, padding=3), nn.ModuleList(), nn.ModuleList(), 512
        for kernel, stride in ((16, 8), (16, 8), (4, 2), (4, 2)):
            self.ups.append(nn.ConvTranspose1d(channels, channels // 2, kernel, stride, (kernel - stride) // 2))
            channels //= 2
            self.blocks.append(nn.ModuleList(_Residual(channels, k) for k in (3, 7, 11)))
        self.last = nn.Conv1d(channels, 1, 7, padding=3)

    def forward(self, x):
        x = self.first(x)
        for up, blocks in zip(self.ups, self.blocks, strict=True):
            x = up(nn.functional.leaky_relu(x, 0.1))
            x = sum(block(x) for block in blocks) / len(blocks)
        return torch.tanh(self.last(nn.functional.leaky_relu(x)))


def hifigan():
    """HiFi-GAN's generator, V1, a second of speech at 22 kHz."""
    return _Hifigan(), torch.randn(1, 80, 86)


def mask_head():
    """Mask R-CNN's mask head, 100 boxes."""
    convs = [each for _ in range(4) for each in (nn.Conv2d(256, 256, 3, padding=1), nn.ReLU())]
    up = nn.ConvTranspose2d(256, 256, 2, 2), nn.ReLU(), nn.Conv2d(256, 91, 1)
    return nn.Sequential(*convs, *up), torch.randn(100, 256, 14, 14)


def monai_unet():
    """MONAI's 3-D UNet for the spleen, a patch of 96 voxels an axis."""
    from monai.networks.nets import UNet

    model = UNet(3, 1, 2, (16, 32, 64, 128, 256), (2, 2, 2, 2), num_res_units=2, norm="batch")
    return model, torch.randn(1, 1, 96, 96, 96)


class _Causal(nn.Module):
    """A causal convolution of EnCodec, with weight norm."""

    def __init__(self, ci, co, kernel):
        super().__init__()
        self.pad, self.conv = kernel - 1, nn.utils.parametrizations.weight_norm(nn.Conv1d(ci, co, kernel))

    def forward(self, x):
        return self.conv(nn.functional.pad(x, (self.pad, 0), "reflect" if self.pad < x.shape[-1] else "constant"))


class _CausalUp(nn.Module):
    """A causal transposed convolution of EnCodec, with weight norm: outputs past the end are cut off."""

    def __init__(self, ci, co, stride):
        super().__init__()
        self.stride, self.conv = stride, nn.utils.parametrizations.weight_norm(nn.ConvTranspose1d(ci, co, 2 * stride, stride))

    def forward(self, x):
        return self.conv(x)[..., : -self.stride]


class _Encodec(nn.Module):
    """EnCodec's decoder, 24 kHz."""

    def __init__(self):
        super().__init__()
        self.first, self.lstm, channels = _Causal(128, 512, 7), nn.LSTM(512, 512, 2), 512
        self.ups, self.blocks = nn.ModuleList(), nn.ModuleList()
        for stride in (8, 5, 4, 2):
            self.ups.append(_CausalUp(channels, channels // 2, stride))
            channels //= 2
            inner = nn.ELU(), _Causal(channels, channels // 2, 3), nn.ELU(), _Causal(channels // 2, channels, 1)
            self.blocks.append(nn.ModuleList([nn.Sequential(*inner), _Causal(channels, channels, 1)]))
        self.last = _Causal(channels, 1, 7)

    def forward(self, x):
        x = self.first(x)
        x = x + self.lstm(x.permute(2, 0, 1))[0].permute(1, 2, 0)
        for up, (block, shortcut) in zip(self.ups, self.blocks, strict=True):
            x = up(nn.functional.elu(x))
            x = shortcut(x) + block(x)
        return self.last(nn.functional.elu(x))


def encodec():
    """EnCodec's decoder, 24 kHz, a second."""
    return _Encodec(), torch.randn(1, 128, 75)


MODELS = {f.__name__: f for f in (dcgan, pix2pix, hifigan, mask_head, monai_unet, encodec)}
ONNX_MODELS = ("text_detector", *published.PUBLISHED)  # only for ONNX Runtime
_NAMES = (*MODELS, "text_detector")  # the default: models that need no download


# ---------------------------------------------------------------- times


def _layers(model, x):
    """Return [(module, input)] of the transposed convolutions that a call of the model runs."""
    found, hooks = {}, []
    for module in model.modules():
        if isinstance(module, _TRANSPOSED):
            hooks.append(module.register_forward_pre_hook(lambda m, inputs: found.setdefault(m, []).append(inputs[0].clone())))
    model(x)
    for hook in hooks:
        hook.remove()
    return [(module, each) for module, inputs in found.items() for each in inputs]


def _difference(a, b):
    """Return the largest difference of two outputs, relative to the largest element of ``a``."""
    a, b = (t if isinstance(t, torch.Tensor) else t[0] for t in (a, b))
    return float((a - b).abs().max() / a.abs().max().clamp_min(1e-30))


def _transposed_time(model, x, budget):
    """Return the median time of all transposed convolutions in a call of the model, in seconds."""
    started, each, hooks = [], [], []
    for module in model.modules():
        if isinstance(module, _TRANSPOSED):
            hooks.append(module.register_forward_pre_hook(lambda *_: started.append(time.perf_counter())))
            hooks.append(module.register_forward_hook(lambda *_: each.append(time.perf_counter() - started.pop())))
    totals = []

    def call():
        model(x)
        totals.append(sum(each))
        each.clear()

    timing.durations(call, budget, least=3)
    for hook in hooks:
        hook.remove()
    return statistics.median(totals)


def _model_and_input(name, channels_last):
    """Return a PyTorch model and its input."""
    torch.manual_seed(0)
    model, x = MODELS[name]()
    if channels_last and x.dim() == 4:
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    return model.eval(), x


def measure(name, way="eager", channels_last=False, budget=1.0, rounds=3):
    """Yield a dict of seconds and ratios for each input size of a model."""
    figures = _measure_onnx if way == "onnxruntime" else _measure_torch
    row = {"model": name, "way": way, "format": "channels_last" if channels_last else "contiguous"}
    for each in figures(name, way, channels_last, budget, rounds):
        yield row | each


def _measure_onnx(name, _, channels_last, budget, rounds):
    from . import models_onnx

    with tempfile.TemporaryDirectory() as folder:
        path, feeds = models_onnx.feeds_of(name, lambda: _model_and_input(name, channels_last), folder)
        yield from models_onnx.measure(path, feeds, torch.get_num_threads(), budget)


def _measure_torch(name, way, channels_last, budget, rounds):
    (model, x), (other, _) = _model_and_input(name, channels_last), _model_and_input(name, channels_last)
    convt.torch.accelerate(other)
    with torch.no_grad():
        layers = list(zip(_layers(model, x), _layers(other, x), strict=True))
        alone = [in_turns([lambda m=m, i=i: m(i) for m, i in pair], budget / len(layers), rounds=rounds) for pair in layers]
        torchs, ours = (sum(column) for column in zip(*alone, strict=True))
        calls = [torch.compile(m) if way == "compile" else m for m in (model, other)]
        before, after = in_turns([lambda m=m: m(x) for m in calls], budget, rounds=rounds)
        share = _transposed_time(model, x, budget / rounds) / before
        difference = _difference(calls[0](x), calls[1](x))
    yield {
        "size": "x".join(map(str, x.shape)),
        "before": before, "share": share, "after": after, "speed_up": before / after, "layers": torchs / ours,
        "of_amdahl": before * (1 - share + share * ours / torchs) / after, "difference": difference,
    }  # fmt: skip


_COLUMNS = {
    "model": 12, "way": 11, "format": 13, "size": 14, "before ms": 9, "share": 5, "convt ms": 8, "speedup": 7, "layers": 6,
    "of Amdahl": 9, "difference": 10,
}  # fmt: skip
_IMPORTANT = "model", "speedup", "before ms", "convt ms", "way", "size", "share", "difference"


def _cells(row):
    """Return a row of the table."""
    return [
        row["model"], row["way"], row["format"], row["size"], f"{row['before'] * 1e3:.2f}", f"{row['share']:.0%}",
        f"{row['after'] * 1e3:.2f}", f"{row['speed_up']:.2f}", f"{row['layers']:.2f}", f"{row['of_amdahl']:.2f}",
        f"{row['difference']:.1e}",
    ]  # fmt: skip


def _details(row):
    """Return indented lines with loading costs, first runs and layers of a model in ONNX Runtime."""
    (seconds, size), (our_seconds, our_size) = row["loading"]
    first, our_first = (each * 1e3 for each in row["first_runs"])
    lines = [
        f"loading {seconds * 1e3:.0f} -> {our_seconds * 1e3:.0f} ms, {size / 2**20:.1f} -> {our_size / 2**20:.1f} MiB; "
        f"first run {first:.1f} -> {our_first:.1f} ms; ONNX Runtime unoptimised differs by {row['own_difference']:.1e}"
    ]
    for name, layer in row["each"].items():
        before, after, shape = layer["before"], layer["after"], "x".join(map(str, layer["in"]))
        lines.append(f"{name} on {shape}: {before * 1e6:.1f} -> {after * 1e6:.1f} us, speedup {before / after:.2f}")
    return ["    " + line for line in lines]


def main(arguments=None):
    parser = command.parser(
        "models", __doc__.splitlines()[0], "--models dcgan --ways eager,onnxruntime", "--ways onnxruntime --each --json -"
    )
    names, ways = (*MODELS, *ONNX_MODELS), ("eager", "compile", "onnxruntime")
    parser.add_argument("--models", type=command.words_of(names), default=list(_NAMES), metavar="MODEL,...",
                        help=f"{', '.join(names)}; {', '.join(published.PUBLISHED)} are downloaded "
                        "(default: all others)")  # fmt: skip
    parser.add_argument("--ways", type=command.words_of(ways), default=["eager"], metavar="WAY,...",
                        help=f"{', '.join(ways)} (default: eager)")  # fmt: skip
    parser.add_argument(
        "--channels-last", action="store_true", help="also time image models in the channels_last memory format"
    )
    command.add_threads(parser, torch.get_num_threads())
    parser.add_argument("--budget", type=command.positive, default=2.0, help="seconds of each measurement (default: 2)")
    parser.add_argument("--each", action="store_true", help="also print loading, first runs and each layer, in ONNX Runtime")
    command.add_json(parser)
    asked = parser.parse_args(arguments)
    torch.set_num_threads(asked.threads)
    with command.printing(asked.json) as write_json:
        write_json({"torch": torch.__version__, "threads": asked.threads, "rows": _measure_all(asked)})
    return 0


def _measure_all(asked):
    """Measure what is asked for, and print a line for each input size of a model. Return the results."""
    lines, found = tables.Lines(_COLUMNS, _IMPORTANT, ("model", "way", "format", "size")), []
    steps = [
        (name, way, channels_last)
        for name in asked.models for way in asked.ways if way == "onnxruntime" or name not in ONNX_MODELS
        for channels_last in ((False, True) if asked.channels_last and way != "onnxruntime" else (False,))
    ]  # fmt: skip
    with terminal.progress(len(steps)) as begin:
        for name, way, channels_last in steps:
            begin(f"{name} {way}")
            try:
                for row in measure(name, way, channels_last, asked.budget):
                    found.append(row)
                    lines.print(_cells(row))
                    if asked.each and "each" in row:
                        print("\n".join(_details(row)), flush=True)
            except ImportError as error:
                print(f"{name} {way}: skipped: {error}", file=sys.stderr)
    return found


if __name__ == "__main__":
    sys.exit(main())
