"""Weights in panels: filters of so many in-channels that several jobs pack each panel, in every type and instruction set."""

import numpy as np
import pytest
from cases import DTYPES, each_isa, using_isa

import convt

# groups, in-channels and out-channels of a group, kernel, stride
FILTERS = {
    "one panel": (1, 701, 5, (3, 3), 1),
    "panels cut short": (1, 333, 131, (2, 3), 1),
    "groups": (3, 517, 17, (4,), 1),
    "phases of one channel": (1, 640, 1, (4, 4), 2),
    "transformed": (1, 501, 40, (4, 4), 2),  # past the caches
    "transformed, phases of a few channels": (1, 301, 3, (4, 4), 2),
    "transformed, several windows": (1, 170, 24, (5, 7), 1),
}


CASES = [(n, d) for n in FILTERS for d in DTYPES if not n.startswith("transformed") or d in ("float32", "float64")]
each_filter = pytest.mark.parametrize(("name", "dtype"), CASES)


def operands(name, dtype, seed=3):
    """Small integers, whose sums are exact in every type."""
    groups, ci, co, kernel, stride = FILTERS[name]
    rng = np.random.default_rng(seed)
    draw = lambda shape: (rng.integers(-1, 2, shape) * (rng.random(shape) < 0.1)).astype(DTYPES[dtype][0])  # noqa: E731
    data, filter = draw((2, *(3,) * len(kernel), groups * ci)), draw((*kernel, groups * ci, co))
    algorithm = "winograd" if name.startswith("transformed") else "direct"
    return data, filter, draw(groups * co), {"strides": stride, "groups": groups}, algorithm


@each_isa
@each_filter
def test_every_weight_is_in_its_place(name, dtype, isa):
    data, filter, bias, keywords, algorithm = operands(name, dtype)
    wanted = convt.conv_transpose(data, filter, bias, backend="reference", **keywords)
    tolerance = 0 if algorithm == "direct" else 1e-4
    with using_isa(isa):
        for order in ("C", "F"):
            for threads in (1, 3):
                with convt.num_threads(threads):
                    got = convt.conv_transpose(data, np.asarray(filter, order=order), bias, algorithm=algorithm, **keywords)
                np.testing.assert_allclose(got.astype(np.float64), wanted.astype(np.float64), rtol=0, atol=tolerance)


@each_isa
@each_filter
def test_no_weight_that_is_not_finite_is_overlooked(name, dtype, isa):
    data, filter, bias, keywords, algorithm = operands(name, dtype)
    places = np.random.default_rng(7).integers(0, filter.size, 3)
    with using_isa(isa):
        finite = lambda: not convt.ConvTranspose(filter, bias, algorithm=algorithm, **keywords).plan(data.shape).note  # noqa: E731
        assert finite()
        for place in (0, filter.size - 1, *places):
            before = filter.flat[place]
            filter.flat[place] = (np.nan, np.inf, -np.inf)[place % 3]
            assert not finite(), place
            filter.flat[place] = before
        assert finite()
