"""Tests of "invariant": a part of a problem has the bits of the whole, for all layers that `direct` or `depthwise` compute."""

import signal
from dataclasses import replace

import numpy as np
import pytest
from cases import DTYPES, ISAS, operator, random_case, using_isa

import convt
from convt._call import api
from convt._model import machine
from convt.algorithms import allowed, invariant


def draw(seed):
    """Return (operator, data, axis, axis in the data, begin and end of a part of the outputs) of a random problem."""
    rng = np.random.default_rng(seed)
    pick = lambda *values: values[rng.integers(len(values))]  # noqa: E731
    groups, ci, co = pick(1, 1, 2), pick(1, 3, 16, 40, 100, 300), pick(1, 2, 5, 16, 40)
    if rng.integers(2):
        groups, ci, co = pick(1, 2, 8, 16, 33, 64), pick(1, 1, 2, 4), pick(1, 1, 2, 4)
    rank, activation = pick(1, 1, 2, 3), pick(None, "relu", "tanh")
    sizes = range(1, (60, 9, 4)[rank - 1]), range(1, 11), range(1, 5), range(1, 4)
    case = random_case(rng, rank, *sizes, dtype=pick(*DTYPES), groups=groups, ci=ci, co=co, activation=activation)
    case = replace(case, batch=2, pads_begin=(0,) * rank, pads_end=(0,) * rank)
    data, filter, bias = case.arrays(exact=False)
    if rng.integers(6) == 0:
        filter.flat[rng.integers(filter.size)] = pick(np.nan, np.inf)
    axis = int(rng.integers(rank))
    out = case.windows[1][axis]
    start = int(rng.integers(out))
    op = operator(case, filter, bias, algorithm="invariant")
    return op, data, axis, axis + (1 if case.data_format == "NXC" else 2), start, int(rng.integers(start + 1, out + 1))


def check_part(seed):
    op, data, axis, place, start, end = draw(seed)
    with np.errstate(all="ignore"):
        whole, problem = op(data), op._attributes.problem(data.shape)
        s, reach = problem.strides[axis], (problem.kernel[axis] - 1) * problem.dilations[axis] + 1
        first, last = max(0, -((reach - 1 - start) // s)), min(problem.in_sizes[axis], (end - 1) // s + 1)
        at = lambda sizes, size: (*sizes[:axis], size, *sizes[axis + 1 :])  # noqa: E731
        part = problem._replace(
            batch=1, in_sizes=at(problem.in_sizes, last - first), begin=at(problem.begin, start - first * s),
            out_sizes=at(problem.out_sizes, end - start),
        )  # fmt: skip
        read = np.ascontiguousarray(np.take(data[1:], range(first, last), place))
        got = api.execute(op._attributes, op._plans, read, (), None, part)[0]
    assert got.tobytes() == np.ascontiguousarray(np.take(whole[1:], range(start, end), place)).tobytes(), seed


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("seed", range(100))
def test_a_part_has_the_bits_of_the_whole(seed, isa):
    with using_isa(isa):
        check_part(seed)


def test_depthwise_is_taken_where_it_sums_in_one_order():
    def form(kernel, ci, co, groups, sizes=(32,), **keywords):
        filter = np.ones((*kernel, groups * ci, co), np.float32)
        op = convt.ConvTranspose(filter, groups=groups, algorithm="invariant", **keywords)
        problem = op._attributes.problem((1, *sizes, groups * ci))
        return invariant.STAGES.schedule(problem, machine.current(), "vectors", 1).form[:1] == ("depthwise",)

    assert form((4,), 1, 1, 64, strides=2) and form((40,), 1, 1, 64, strides=2) and form((4, 4), 1, 1, 64, (9, 9), strides=2)
    assert not form((9, 9), 1, 1, 64, (9, 9))  # blocks of terms with several sources
    assert not form((4,), 64, 64, 1, strides=2)


def test_auto_never_takes_it():
    op = convt.ConvTranspose(np.ones((4, 64, 64), np.float32), strides=2)
    problem = op._attributes.problem((1, 32, 64))
    assert allowed(problem, "invariant") == ["invariant:vectors"] and "invariant:vectors" not in allowed(problem)


def test_a_size_of_one_keeps_the_strides():
    op = convt.ConvTranspose(np.ones((8, 300, 8), np.float32), strides=2, algorithm="invariant")
    assert op._attributes.problem((1, 1, 300)).strides == (2,)
    one = np.random.default_rng(0).standard_normal((1, 1, 300)).astype(np.float32)
    assert op(one)[:, :2].tobytes() == op(np.concatenate((one, one), 1))[:, :2].tobytes()


@pytest.mark.parametrize("stride", [2**20, 2**33, 2**62 - 1])
@pytest.mark.parametrize("algorithm", ["invariant", "direct", "auto"])
def test_planning_does_not_walk_over_the_phases_of_a_huge_stride(algorithm, stride):
    def stop(*_):
        raise TimeoutError("planning takes longer than ten seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(10)
    try:
        many = 17 if stride < 2**40 else 1
        for groups, sizes, kernel in ((1, (1,), (2,)), (8, (1,), (2,)), (1, (1, 1), (2, 2)), (1, (many, 2), (2, 2))):
            filter, data = np.ones((*kernel, groups, 1), np.float32), np.ones((1, *sizes, groups), np.float32)
            strides, begin = (stride, *(1,) * (len(sizes) - 1)), (stride * (sizes[0] - 1), *(0,) * (len(sizes) - 1))
            got = convt.ConvTranspose(filter, strides=strides, pads_begin=begin, groups=groups, algorithm=algorithm)(data)
            assert got.shape[1] == 2 and (got[:, 0] == got[:, 1]).all() and got.any()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
