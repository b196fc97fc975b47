"""Tests of the fuzzer in tests/fuzz/models: it finds planted errors, reduces them, and takes no rounding for an error."""

import itertools
import warnings

import pytest

torch = pytest.importorskip("torch")

from convt.torch import _accelerate, _compute, _forward, _fuse, _modules, _weights  # noqa: E402
from convt.torch._operator import _WithGradients  # noqa: E402
from fuzz import shrinking  # noqa: E402
from fuzz.models import perform, shrink, tolerance  # noqa: E402

MODEL = """
model = nn.Sequential(nn.ConvTranspose2d(3, 4, 3, 2), nn.BatchNorm2d(4), nn.ReLU()).eval()
randomize(model)
x = tensor(0, 2, 3, 4, 4)
ct.accelerate(model)
with torch.no_grad(): y = [model(x), model(x), model(x)]
"""


def drifting(compute):
    """Return a function whose result grows a little with each call."""
    calls = itertools.count()
    return lambda *a: compute(*a) * (1 + 2e-7 * next(calls))


CALL, ONE_CALL = "with torch.no_grad(): y = model(x)", "y = model(x)"
# Fault -> what is replaced, a function that makes the replacement, the statements that show it, and the kind of the difference.
PLANTED = {
    "stale weights": (_weights, "checksum", lambda inner: lambda *a: 1,
                      "with torch.no_grad(): conv(model, 0).weight.mul_(1.001)\n" + CALL, "values"),
    "inexact": (_compute, "_compute", lambda inner: lambda *a: inner(*a) * (1 + 1e-5), CALL, "values"),
    "not repeated": (_compute, "_compute", drifting, "with torch.no_grad(): y = [model(x), model(x)]", "repeat"),
    "other strides": (_compute, "_compute", lambda inner: lambda *a: inner(*a).transpose(0, 1).contiguous().transpose(0, 1),
                      CALL, "form"),
    "another error": (_modules, "call", lambda inner: lambda *a: 1 / 0, "model[0](x[:, :2])", "error"),
    "a warning": (_fuse.SequentialForward, "__call__",
                  lambda inner: lambda *a: (warnings.warn("slow", stacklevel=1), inner(*a))[1], ONE_CALL, "warnings"),
    "a rest": (_forward, "remove", lambda inner: lambda module: None, "ct.restore(model)", "fault"),
    "a false report": (_accelerate, "_install_fusion", lambda inner: lambda model, changes: {"7": ("ReLU",)},
                       "ct.accelerate(model)", "fault"),
    "other gradients": (_WithGradients, "backward",
                        lambda inner: lambda *a: tuple(None if g is None else g * 1.001 for g in inner(*a)),
                        "y = gradients(model, x.requires_grad_())", "values"),
}  # fmt: skip


def plant(name, monkeypatch):
    place, attribute, make, *_ = PLANTED[name]
    monkeypatch.setattr(place, attribute, make(getattr(place, attribute)))


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_error_is_found(name, monkeypatch):
    perform.agree(MODEL)
    *_, statements, kind = PLANTED[name]
    with monkeypatch.context() as patched:
        plant(name, patched)
        with pytest.raises(perform.Difference) as found:
            perform.agree(MODEL + statements)
        assert found.value.kind.split()[1] == kind
    perform.agree(MODEL + statements)


def test_a_finding_is_made_smaller(monkeypatch):
    plant("inexact", monkeypatch)

    def fails(case):
        try:
            perform.agree(case)
        except perform.Difference as found:
            return found.kind == "wrong values"
        return False

    plain = MODEL.replace("nn.BatchNorm2d(4), ", "").replace("randomize(model)\n", "")
    case = "twin = nn.Sequential(nn.ReLU())\n" + plain + "model.train()\n"
    smaller = shrinking.shrink(case, shrink.smaller, fails)
    assert fails(smaller) and len(smaller.splitlines()) <= 5 and "twin" not in smaller and "ReLU" not in smaller
    assert "nn.ConvTranspose2d(1, 1, 1)" in smaller


def test_a_spectral_norm_in_training_need_not_repeat_its_results():
    """Check a model whose calls have other weights each, because the norm iterates, although torch's results are equal."""
    perform.agree("""
model = Residual(hooked(nn.Sequential(Residual(nn.Sequential(spectral_norm(ct.ConvTranspose2d(2, 2, 1, bias=False)),
    nn.BatchNorm2d(2, affine=False), nn.Softmax(1))), ct.ConvTranspose2d(2, 2, (2, 3), stride=(1, 2), padding=1, bias=False),
    hooked(nn.BatchNorm2d(2), 'full_backward', double), nn.Hardswish()), 'full_backward', double))
randomize(model)
x = tensor(46, 2, 2, 1, 2, layout='transposed')
ct.accelerate(model)
model.to(torch.float64)
x = tensor(16, 1, 2, 4, 1, dtype=torch.float64)
with ct.functional(), torch.no_grad(): y = [model(x), model(x), model(x)]
conv(model, 1).stride = (1, 3)
conv(model, 1).reset_parameters()
y = [model(x), model(x)]
""")


def test_the_tolerance_is_what_rounding_may_change():
    """Check the tolerance where products cancel: a multiple of the sums of absolute products, and not much more."""
    source = "x = tensor(0, 1, 8, 1) * 1000\ny = nn.ConvTranspose1d(8, 1, 1, bias=False)(torch.cat([x, -x], 1)[:, 4:12])"
    wanted = perform.execute(source, perform.Plain())[-1].found["y"].values

    def executions():
        for seed in range(40):
            yield perform.execute(source, perform.Plain(), lambda: tolerance.Perturbed(seed))[-1].found["y"].values  # noqa: B023

    assert tolerance.allowed(wanted + 1e-4, wanted, executions) is None
    assert "differ" in tolerance.allowed(wanted + 0.1, wanted, executions)
    assert "differ" in tolerance.allowed(wanted * float("nan"), wanted, executions)
