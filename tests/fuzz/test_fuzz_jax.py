"""Tests of the fuzzer in tests/fuzz/jax: it finds planted errors, reduces them, and takes no rounding for an error."""

import pytest

jax = pytest.importorskip("jax")

from convt.jax import _functions, _primitive, _site  # noqa: E402
from fuzz import shrinking  # noqa: E402
from fuzz.jax import perform, shrink  # noqa: E402

CASE = {
    "function": "conv_transpose", "seed": 3, "dtype": "float32", "transform": "scan", "sizes": [5, 4], "kernel": [3, 2],
    "batch": 2, "ci": 3, "co": 4, "groups": 1, "strides": [2, 1], "dilations": [1, 2], "nonfinite": False, "numbers": None,
    "padding": "SAME", "precision": "high", "preferred": None, "mistake": None, "transpose_kernel": False, "consistent": False,
}  # fmt: skip


def inexact(monkeypatch):
    one_shot = _site.api.one_shot

    def changed(*arguments, out, **keywords):
        one_shot(*arguments, out=out, **keywords)
        out *= 1 + 1e-3

    monkeypatch.setattr(_site.api, "one_shot", changed)


def other(change):
    """Return a function that replaces the calls of convt by their results after a change."""
    return lambda monkeypatch: monkeypatch.setattr(_functions, "_compute", lambda f, *a, **k: change(f(*a, **k)))


PLANTED = {
    "inexact": (inexact, "values"), "another error": (other(lambda y: 1 / 0), "error"),
    "another shape": (other(lambda y: y[None]), "form"), "another dtype": (other(lambda y: y.astype("float64")), "form"),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_error_is_found(name, monkeypatch):
    plant, kind = PLANTED[name]
    jax.clear_caches()
    plant(monkeypatch)
    with pytest.raises(perform.Difference, match=f"^{kind}: "):
        perform.perform(CASE | {"transform": "jit"})
    jax.clear_caches()


def test_later_calls_must_repeat_the_bits(monkeypatch):
    compute = _site.WithGivenWeights.compute

    def changed(self, data, filter, weights, out, threads):
        compute(self, data, filter, weights, out, threads)
        self.count = getattr(self, "count", 0) + 1
        out *= 1 + 3e-7 * self.count

    monkeypatch.setattr(_site.WithGivenWeights, "compute", changed)
    jax.clear_caches()
    with pytest.raises(perform.Difference, match="^repeat: "):
        perform.perform(CASE | {"transform": "jit"})
    jax.clear_caches()


def test_shrinking_keeps_what_fails():
    fails = lambda case: case["strides"][0] > 1 and case["transform"] == "scan"  # noqa: E731
    found = shrinking.shrink(CASE, shrink.smaller, fails)
    assert fails(found) and found["sizes"] == [1, 1] and found["ci"] == found["co"] == 1 and found["strides"] == [2, 1]


def test_a_fuzzed_program_is_convts():
    assert perform.perform(CASE) == ("right", {"conv_transpose": 1, "scan": 1})
    assert _primitive.replaced(lambda x: x + 1, 2) == [3]
