"""Tests of the fuzzer in tests/fuzz/models: it finds planted errors, reduces them, and takes no rounding for an error."""

import pytest

torch = pytest.importorskip("torch")

from convt.torch import _compute, _fuse, _modules, _weights  # noqa: E402
from fuzz import shrinking  # noqa: E402
from fuzz.models import perform, shrink, tolerance  # noqa: E402

MODEL = """
model = nn.Sequential(nn.ConvTranspose2d(3, 4, 3, 2), nn.BatchNorm2d(4), nn.ReLU()).eval()
randomize(model)
x = tensor(0, 2, 3, 4, 4)
ct.accelerate(model)
with torch.no_grad(): y = [model(x), model(x), model(x)]
"""


def stale(monkeypatch):
    monkeypatch.setattr(_weights, "checksum", lambda *a: 1)
    return "with torch.no_grad():\n  conv(model, 0).weight.mul_(1.001)\n  y = model(x)"


def inexact(monkeypatch):
    compute = _compute._compute
    monkeypatch.setattr(_compute, "_compute", lambda *a: compute(*a) * (1 + 1e-5))
    return "with torch.no_grad(): y = model(x)"


def not_repeated(monkeypatch):
    compute, count = _compute._compute, iter(range(99))
    monkeypatch.setattr(_compute, "_compute", lambda *a: compute(*a) * (1 + 2e-7 * next(count)))
    return "with torch.no_grad(): y = [model(x), model(x)]"


def other_strides(monkeypatch):
    compute = _compute._compute
    monkeypatch.setattr(_compute, "_compute", lambda *a: compute(*a).transpose(0, 1).contiguous().transpose(0, 1))
    return "with torch.no_grad(): y = model(x)"


def other_error(monkeypatch):
    def refuse(*arguments):
        raise RuntimeError("something else")

    monkeypatch.setattr(_modules, "call", refuse)
    return "model[0](x[:, :2])"


def a_warning(monkeypatch):
    import warnings

    call = _fuse.SequentialForward.__call__
    monkeypatch.setattr(_fuse.SequentialForward, "__call__", lambda *a: (warnings.warn("slow", stacklevel=1), call(*a))[1])
    return "y = model(x)"


def a_rest(monkeypatch):
    monkeypatch.setattr("convt.torch._forward.remove", lambda module: None)
    return "ct.restore(model)"


def a_false_report(monkeypatch):
    monkeypatch.setattr("convt.torch._accelerate._install_fusion", lambda model, changes: {"7": ("ReLU",)})
    return "ct.accelerate(model)"


def other_gradients(monkeypatch):
    from convt.torch._operator import _WithGradients

    backward = _WithGradients.backward
    monkeypatch.setattr(_WithGradients, "backward", lambda *a: tuple(None if g is None else g * 1.001 for g in backward(*a)))
    return "y = gradients(model, x.requires_grad_())"


PLANTED = [
    (stale, "values"), (inexact, "values"), (not_repeated, "repeat"), (other_strides, "form"), (other_error, "error"),
    (a_warning, "warnings"), (a_rest, "fault"), (a_false_report, "fault"), (other_gradients, "values"),
]  # fmt: skip


@pytest.mark.parametrize("plant, kind", PLANTED, ids=lambda value: getattr(value, "__name__", value))
def test_a_planted_error_is_found(plant, kind, monkeypatch):
    perform.agree(MODEL)
    with monkeypatch.context() as patched:
        case = MODEL + plant(patched)
        with pytest.raises(perform.Difference) as found:
            perform.agree(case)
        assert found.value.kind.split()[1] == kind
    perform.agree(case)


def test_a_finding_is_made_smaller(monkeypatch):
    inexact(monkeypatch)

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
