"""Tests of weights that come with a call and are not packed: they are reordered first, or multiplied in place."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from cases import DATA_FORMATS, Case, check_all_ways, each_dtype, each_isa, operator, run, using_isa

import convt
from convt._call import api
from convt._plan import choose, plans
from convt._run import memory
from convt.algorithms import reorder

f32 = np.float32

CASES = {
    "one pixel": Case(ci=70, co=19, in_sizes=(1, 1), kernel=4, strides=2, pads_begin=1, pads_end=1),
    "several chunks": Case(
        ci=601, co=33, in_sizes=(3, 5), kernel=3, strides=2, pads_begin=(1, 0), pads_end=(0, 1), output_padding=(0, 1),
    ),
    "images and groups": Case(
        batch=3, groups=2, ci=40, co=70, in_sizes=(2, 4), kernel=(2, 5), strides=(1, 3), dilations=(2, 1), pads_begin=(0, 2),
        pads_end=(1, 0),
    ),
    "outputs without a product": Case(batch=2, ci=65, co=9, in_sizes=(9,), kernel=2, strides=4, output_padding=3),
    "long kernel": Case(ci=33, co=5, in_sizes=(21,), kernel=300, strides=7),
    "cubes": Case(ci=90, co=40, in_sizes=(2, 3, 4), kernel=(1, 2, 2), strides=(1, 2, 2)),
}  # fmt: skip
each_case = pytest.mark.parametrize("name", CASES)


@each_isa
@each_dtype
@each_case
def test_filters_are_multiplied_where_they_lie(name, dtype, isa):
    with using_isa(isa):
        for data_format, filter_format in itertools.product(DATA_FORMATS, ("IOX", "XIO", "GIOX", "OIX")):
            case = replace(CASES[name], dtype=dtype, data_format=data_format, filter_format=filter_format, activation="relu")
            arrays = case.arrays()
            for threads in (1, 2, 2):
                with convt.num_threads(threads):
                    case.check(run(case, *arrays, algorithm="unpacked"), *arrays)
            case.check(operator(case, *arrays[1:], algorithm="unpacked")(arrays[0]), *arrays)


def chosen(data_shape, filter, persistent=False, **words):
    attributes, view, _ = api.parse(filter, None, api.Keywords(**words))
    return choose.choose(plans.Plans(attributes, view, None, one_shot=not persistent), attributes.problem(data_shape))[0]


def test_auto_takes_it_where_packing_takes_longer_than_multiplying():
    filter = np.zeros((1024, 512, 4, 4), f32)
    words = {"strides": 2, "pads_begin": 1, "pads_end": 1, "data_format": "NCX"}
    ordered = np.ascontiguousarray(filter.transpose(2, 3, 0, 1))
    assert chosen((1, 1024, 4, 4), filter, filter_format="IOX", **words) == "unpacked:vectors"
    assert chosen((1, 1024, 4, 4), filter, persistent=True, filter_format="IOX", **words) != "unpacked:vectors"
    assert chosen((1, 1024, 4, 4), ordered, filter_format="XIO", **words) != "unpacked:vectors"
    assert chosen((8, 1024, 16, 16), filter, filter_format="IOX", **words) != "unpacked:vectors"


def test_how_filters_lie():
    rows = np.zeros((2, 32, 64, 4, 4), f32)
    assert reorder.memory_order(rows) == reorder.IN_ROWS and reorder.pays(rows)
    assert reorder.memory_order(rows[:, ::2]) == reorder.IN_ROWS and reorder.pays(rows[:, ::2])
    ordered = np.zeros((4, 4, 2, 32, 64), f32).transpose(2, 3, 4, 0, 1)
    assert reorder.memory_order(ordered) == reorder.NOT_IN_ROWS and not reorder.pays(ordered)
    assert reorder.memory_order(rows[:, :, ::2]) == reorder.NOT_IN_ROWS and reorder.pays(rows[:, :, ::2])
    assert not reorder.pays(rows[..., ::2]) and not reorder.pays(rows[:, :, :1])
    assert reorder.empty_reordered(rows).strides == ordered.strides


@each_case
def test_other_memory_and_other_machines(name):
    check_all_ways(replace(CASES[name], data_format="NCX", filter_format="IOX"), "unpacked")


def test_memory_of_filters_in_order_is_kept_for_the_next_call():
    filter, data = np.ones((256, 128, 4, 4), f32), np.ones((1, 256, 40, 40), f32)
    words = {"strides": 2, "data_format": "NCX", "filter_format": "IOX", "algorithm": "direct"}
    convt.clear_caches()
    convt.conv_transpose(data, filter, **words), convt.conv_transpose(data, filter, **words)
    kept = memory.kept_bytes()
    for _ in range(3):
        convt.conv_transpose(data, filter, **words)
    assert memory.kept_bytes() == kept
