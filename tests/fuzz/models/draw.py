"""The case of a seed: `case`. Rare operations and arguments are drawn much more often than programs use them."""

import random

from convt._base.activation import ACTIVATIONS

from . import steps

_WIDTHS = (1, 1, 2, 2, 3, 3, 4, 5, 6, 8, 16)
_DTYPES = ("float64", "float16", "bfloat16", "float32")
_LAYOUTS = ("contiguous", "transposed", "strided", "expanded", "offset", "negative", "channels_last")
_STATISTICS = ("weight", "bias", "running_mean", "running_var")
_PRECISIONS = ("highest", "high", "medium", "torch")
_ACTIVATIONS = (
    "ReLU()", "ReLU(inplace=True)", "ReLU6()", "LeakyReLU({n})", "LeakyReLU(inplace=True)", "Tanh()", "Sigmoid()", "GELU()",
    "GELU('tanh')", "SiLU()", "Hardswish()", "ELU({n})", "PReLU()", "PReLU({c})", "PReLU(init={n})", "Softplus()", "Mish()",
    "Hardtanh()", "Hardsigmoid()", "CELU()", "SELU()", "Softmax(1)", "Identity()", "Identity()", "Dropout(0.5)",
    "Dropout{r}d(0.5)", "Threshold(0.1, 2.0)", "LogSigmoid()", "Softsign()",
)  # fmt: skip
_FUSED = ("PReLU()", *(f"{each.torch[0]}()" for each in ACTIVATIONS.values() if each.torch))


def case(seed):
    """Return the case of a seed, a text. It depends only on the seed."""
    return _Draw(random.Random(seed)).text()


class _Draw:
    def __init__(self, rng):
        self.rng = rng
        self.rank = rng.choice([1, 2, 2, 2, 2, 3])
        self.lines, self.names, self.hard = [], 0, rng.random() < 0.3  # hard: with operations that make later calls fail
        self.large = rng.random() < 0.05
        self.dtype = rng.choice(_DTYPES) if rng.random() < 0.2 else "float32"
        self.frozen = rng.random() < 0.15

    def chance(self, p):
        return self.rng.random() < p

    def text(self):
        rng = self.rng
        self.channels = self.width()
        model = ""
        while "Transpose" not in "".join([model, *self.lines]):
            self.lines.clear()
            model, _ = self.model(self.channels)
        if self.dtype != "float32":
            model += f".to(torch.{self.dtype})"
        self.lines.append(f"model = {model}")
        if self.chance(0.8):
            self.lines.append("randomize(model)")
        if self.chance(0.1):
            self.lines.append("as_integers(model)")
        if self.chance(0.7):
            self.lines.append("model.eval()")
        self.lines.append(f"x = {self.input()}")
        if self.chance(0.8):
            self.lines.append(self.accelerate())
        for _ in range(rng.randint(2, 12)):
            self.lines.append(self.step())
        self.lines.append(self.call())
        if self.chance(0.3):
            self.lines += ["ct.restore(model)", self.call()]
        if self.frozen:  # a promise: weights change only between calls of one statement, each of which refreshes first
            self.lines = [line for each in self.lines for line in self.refreshed(each)]
        return "\n".join(self.lines) + "\n"

    def refreshed(self, line):
        calls = "y =" in line or "descend(" in line
        twin = ["ct.refresh(twin)"] if "twin" in line else []
        return ["ct.refresh(model)", *twin, line] if calls else [line]

    # ------------------------------------------------------------ models

    def width(self):
        return self.rng.choice([8, 16, 24, 32, 48]) if self.large else self.rng.choice(_WIDTHS)

    def model(self, ci):
        """Return (text, out-channels) of a model."""
        kind = self.rng.random()
        if kind < 0.08:
            return self.conv(ci)
        text, co = self.sequential(ci, 0)
        if kind < 0.15:
            text = f"Residual({text})"
        return text, co

    def sequential(self, c, depth):
        parts = []
        for _ in range(self.rng.choice([1, 1, 2, 2, 3]) if depth == 0 else self.rng.choice([1, 1, 2])):
            part, c = self.block(c, depth)
            parts += part
        name = self.rng.choice(["nn.Sequential"] * 12 + ["Chain", "Doubling", "Listed"])
        text = f"{name}({', '.join(parts)})"
        if self.chance(0.04):
            text = self.hook(text)
        return text, c

    def block(self, c, depth):
        """Return (texts of modules in a row, out-channels)."""
        rng = self.rng
        if depth < 2 and self.chance(0.2):
            text, co = self.sequential(c, depth + 1)
            kind = rng.random()
            if kind < 0.15:
                text = f"Residual({text})"
            elif kind < 0.22 and "ct." not in text + "".join(self.lines):
                text = f"torch.jit.script({text})"
            elif kind < 0.25:
                text = f"traced({text}, {self.input(c, plain=True)})"
            return [text], co
        parts, co = [], c
        if self.chance(0.9):
            conv, co = self.conv(c)
            if co == c and self.chance(0.12):
                self.names += 1
                self.lines.append(f"part{self.names} = {conv}")
                conv = f"part{self.names}"
                parts.append(conv)
                if self.chance(0.5):
                    parts.append(f"nn.{rng.choice(_FUSED)}")
            parts.append(conv)
        if self.chance(0.15):
            parts.append(f"nn.{rng.choice(['Identity()', 'Dropout(0.5)', f'Dropout{self.rank}d(0.5)'])}")
        if self.chance(0.55):
            parts.append(self.norm(co))
        if self.chance(0.7):
            parts.append(self.activation(co))
        if self.chance(0.06):
            parts.append(rng.choice([f"nn.Conv{self.rank}d({co}, {co}, 1)", "nn.Upsample(scale_factor=2)"]))
        if self.chance(0.1):
            text, co = self.by_function(co)
            parts.append(text)
        return parts or ["nn.ReLU()"], co

    def by_function(self, c):
        """Return (text, out-channels) of a module that calls a function of torch.nn.functional."""
        if self.chance(0.5):
            words = self.rng.choice(["", ", stride=2", ", stride=2, padding=1, output_padding=1", ", dilation=2"])
            return f"Filtering({c}, {self.rank}{words})", c
        co = self.width()
        words = self.rng.choice(["", ", 2", ", 1, 1", ", 3, 0, 1", ", 0"])
        return f"Weighted({c}, {co}, {self.rank}{words})", co

    def conv(self, ci):
        """Return (text, out-channels) of a transposed convolution."""
        rng, r = self.rng, self.rank
        co = ci if self.chance(0.6) else self.width()
        groups = rng.choice([g for g in range(1, 17) if ci % g == co % g == 0]) if self.chance(0.3) else 1
        axis = lambda values: self.axes([rng.choice(values) for _ in range(r)])  # noqa: E731
        kernel = axis([1, 2, 3, 3, 4, 5] if r < 3 else [1, 2, 3])
        words = {}
        stride, dilation = axis([1, 1, 2, 2, 3]), axis([1, 1, 1, 2])
        if self.chance(0.8):
            words["stride"] = stride
        if self.chance(0.15):
            words["dilation"] = dilation
        if self.chance(0.4):
            words["padding"] = axis([0, 1, 1, 2]) if self.chance(0.4) else 1
        if self.chance(0.2):
            words["output_padding"] = axis([0, 0, 1]) if "stride" in words else 0
        if groups > 1:
            words["groups"] = groups
        if self.chance(0.3):
            words["bias"] = False
        name, wrapped = f"nn.ConvTranspose{r}d", self.chance(0.22)
        if self.chance(0.2):
            name = f"ct.ConvTranspose{r}d"
            if self.chance(0.2):
                words["precision"] = repr(rng.choice(_PRECISIONS))
            if self.frozen and self.chance(0.3):
                words["freeze"] = True
        elif self.chance(0.04):
            name = f"nn.LazyConvTranspose{r}d"
        elif r == 2 and self.chance(0.05):
            name = rng.choice(["Kin2d", "Own2d"])
        elif r == 1 and self.chance(0.15):
            name = "Squeezing1d"
        channels = [co] if "Lazy" in name else [ci, co]
        text = f"{name}({', '.join([*map(str, channels), kernel, *(f'{k}={v}' for k, v in words.items())])})"
        if "Lazy" not in name and wrapped:
            text = self.wrap(text)
        return text, co

    def wrap(self, text):
        wraps = [
            "weight_norm({})", "spectral_norm({})", "parametrized({})", "parametrized({}, 'bias')", "old_weight_norm({})",
            "{}.requires_grad_(False)", "{}.eval()", "Computed({})", "torch.nn.utils.spectral_norm({})",
            "{}.to(memory_format=torch.channels_last)", "own_forward({})", "weight_norm({}, dim=1)", "nn.Sequential({})",
        ]  # fmt: skip
        return self.hook(text) if self.chance(0.25) else self.rng.choice(wraps).format(text)

    def hook(self, text):
        kind = self.rng.choice(["forward", "forward", "forward_pre", "full_backward", "full_backward_pre"])
        hook = "flip" if kind == "forward_pre" and not self.frozen and self.chance(0.5) else "double"
        return f"hooked({text}, '{kind}', {hook})"

    def axes(self, values):
        """Return the text of one value per axis, as an integer if all are equal and now and then as a list."""
        if len(set(values)) == 1 and self.chance(0.6):
            return str(values[0])
        return f"[{', '.join(map(str, values))}]" if self.chance(0.05) else str(tuple(values))

    def norm(self, c):
        rng, r = self.rng, self.rank
        kind = rng.random()
        if kind < 0.82:
            words = {"eps": rng.choice(["0.001", "0", "1"])} if self.chance(0.2) else {}
            if self.chance(0.2):
                words["affine"] = False
            if self.chance(0.1):
                words["track_running_stats"] = False
            if self.chance(0.1):
                words["momentum"] = rng.choice(["None", "0.9"])
            name = "SyncBatchNorm" if self.chance(0.02) else f"BatchNorm{r}d"
            text = f"nn.{name}({', '.join([str(c), *(f'{k}={v}' for k, v in words.items())])})"
            return self.hook(text) if self.chance(0.05) else text
        if kind < 0.88:
            return f"nn.LazyBatchNorm{r}d()"
        if kind < 0.94:
            return f"nn.GroupNorm(1, {c})"
        return f"nn.InstanceNorm{r}d({c}, affine=True, track_running_stats={self.chance(0.5)})"

    def activation(self, c):
        number = self.rng.choice(["0.3", "-0.5", "1.0", "0.0", "2.5"])
        kinds = _FUSED if self.chance(0.5) else _ACTIVATIONS
        text = "nn." + self.rng.choice(kinds).format(n=number, c=c, r=self.rank)
        return self.hook(text) if self.chance(0.04) else text

    # ------------------------------------------------------------ inputs

    def input(self, channels=None, plain=False, grad=False):
        rng, c = self.rng, channels or self.channels
        sizes = [rng.choice([1, 2, 3, 4, 5] if self.rank < 3 else [1, 2, 3]) for _ in range(self.rank)]
        if self.large:
            sizes = [n * rng.choice([1, 2, 3]) for n in sizes]
        batch = [] if self.chance(0.08) and not plain else [rng.choice([0, 1, 1, 2, 2, 3, 3, 4]) if not plain else 2]
        if batch == [0] and self.chance(0.5):
            batch = [2]
        if self.hard and not plain and self.chance(0.1):
            rng.choice([lambda: sizes.append(2), lambda: sizes.__setitem__(0, 0), sizes.pop, batch.clear])()
            c += rng.choice([0, 0, 1])
        shape = ", ".join(map(str, [rng.randrange(100), *batch, c, *sizes]))
        words = {}
        dtype = rng.choice(_DTYPES) if self.chance(0.05) else self.dtype
        if dtype != "float32":
            words["dtype"] = f"torch.{dtype}"
        if self.chance(0.4) and not plain:
            words["layout"] = repr(rng.choice(["channels_last", "channels_last", *_LAYOUTS]))
        if self.chance(0.15) and not plain:
            words["values"] = repr(rng.choice(["zeros", "integers", "large", "nan", "inf", "denormal"]))
        if grad or (self.chance(0.1) and not plain):
            words["grad"] = True
        return f"tensor({shape}{''.join(f', {k}={v}' for k, v in words.items())})"

    # ------------------------------------------------------------ statements

    def step(self):
        kind = self.rng.random()
        if kind < 0.34:
            return self.call()
        if kind < 0.40:
            return f"x = {self.input()}"
        if kind < 0.45:
            return self.accelerate()
        (group,) = self.rng.choices(list(steps.GROUPS), steps.GROUPS.values())
        if group in ("WEIGHTS", "ATTRIBUTES") and self.hard and self.chance(0.35):
            group = f"HARD_{group}"
        fields = _Fields(self)
        text = self.rng.choice(steps.templates(group)).format_map(fields)
        self.dtype = fields.get("dtype", self.dtype)
        return text

    def accelerate(self):
        words = {}
        if self.frozen and self.chance(0.7):
            words["freeze"] = True
        if self.chance(0.15):
            words["precision"] = repr(self.rng.choice(_PRECISIONS))
        if self.chance(0.004):
            words["tune"] = True
        if self.chance(0.3):
            words["functional"] = True
        model = "part(model, 1)" if self.chance(0.05) else "model"
        text = f"ct.accelerate({', '.join([model, *(f'{k}={v}' for k, v in words.items())])})"
        return f"model, report = {text}" if model == "model" and self.chance(0.5) else text

    def call(self):
        rng = self.rng
        target, arguments = "model", "x"
        if self.chance(0.1):
            target = f"conv(model, {rng.randrange(3)})"
            if self.chance(0.5):
                sizes = [rng.choice([2, 3, 4, 5, 6, 7, 9]) for _ in range(self.rank)]
                arguments = f"x, {rng.choice([str(sizes), f'output_size={sizes}'])}"
        elif self.chance(0.05):
            target = f"part(model, {rng.randrange(1, 5)})"
        elif self.chance(0.03):
            target = "twin"
        if self.chance(0.04):
            arguments = arguments.replace("x", f"laid(x, {rng.choice(_LAYOUTS)!r})", 1)
        calls = [f"{target}({arguments})"] * rng.choice([1, 1, 2, 2, 3])
        y = calls[0] if len(calls) == 1 else f"[{', '.join(calls)}]"
        context = rng.choice(steps.CONTEXTS)
        return f"with {context}: y = {y}" if context else f"y = {y}"


def _axes(draw, rng, fields):
    values = [rng.choice([1, 2, 3]) for _ in range(draw.rank)]
    return rng.choice([str(values[0]), str(values), str(tuple(values)), str(tuple(values))])


def _context(draw, rng, fields):
    more = "torch.inference_mode()", "torch.autocast('cpu')", "ct.functional()"
    contexts = "", "torch.no_grad()", "torch.no_grad()", *more
    return f"with {context}: " if (context := rng.choice(contexts)) else ""


_FIELDS = {  # field of a statement's template -> function that draws its text
    "weight": lambda draw, rng, fields: rng.choice(["weight", "weight", "weight", "bias"]),
    "tensor": lambda draw, rng, fields: f"conv(model, {fields['n']}).{fields['weight']}",
    "statistic": lambda draw, rng, fields: f"norm(model, {fields['n']}).{rng.choice(_STATISTICS)}",
    "number": lambda draw, rng, fields: rng.choice(["-0.0", "1e-30", "1e20"]),
    "layout": lambda draw, rng, fields: repr(rng.choice(_LAYOUTS)),
    "bool": lambda draw, rng, fields: draw.chance(0.5),
    "axes": _axes,
    "channels_last": lambda draw, rng, fields: {1: "preserve_format", 2: "channels_last", 3: "channels_last_3d"}[draw.rank],
    "dtype": lambda draw, rng, fields: rng.choice(_DTYPES),
    "leaf": lambda draw, rng, fields: draw.input(grad=True),
    "context": _context,
    "conv": lambda draw, rng, fields: draw.conv(draw.channels)[0],
    "fused": lambda draw, rng, fields: f"nn.{rng.choice(_FUSED)}",
    "hooked": lambda draw, rng, fields: draw.hook(rng.choice([f"{of}(model, {fields['n']})" for of in ("conv", "part")])),
    "subclass": lambda draw, rng, fields: "Kin2d" if draw.rank == 2 else f"nn.ConvTranspose{draw.rank}d",
}


class _Fields(dict):
    """The fields of a statement's template. A field that occurs twice has one value."""

    def __init__(self, draw):
        super().__init__(n=draw.rng.randrange(3), rank=draw.rank, channels=draw.channels)
        self.draw = draw

    def __missing__(self, name):
        self[name] = found = _FIELDS[name](self.draw, self.draw.rng, self)
        return found
