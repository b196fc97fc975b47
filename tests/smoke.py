"""A script that imports and computes, to check an installed wheel with no other packages than its own dependencies."""

import os

import ml_dtypes
import numpy as np

import convt

x = np.array([1, 2, 3]).reshape(1, 3, 1)
w = np.array([1, 10, 100]).reshape(3, 1, 1)
for dtype in (np.float32, np.float64, np.float16, ml_dtypes.bfloat16):
    y = convt.conv_transpose(x.astype(dtype), w.astype(dtype), strides=2)
    want = np.array([1, 10, 102, 20, 203, 30, 300]).astype(dtype)
    assert y.dtype == dtype and (y.ravel() == want).all(), (dtype, y)

rng = np.random.default_rng(0)
op = convt.ConvTranspose(rng.standard_normal((4, 4, 300, 48), np.float32), strides=2, pads_begin=1, pads_end=1)
data = rng.standard_normal((2, 9, 11, 300), np.float32)
filter = op._plans.filter[0].transpose(2, 3, 0, 1)
want = convt.conv_transpose(data, filter, strides=2, pads_begin=1, pads_end=1, backend="reference")
assert abs(op(data) - want).max() < 1e-5 * abs(want).max()
asked = os.environ.get("CONVT_ISA")
assert asked is None or op.plan(data.shape).isa == asked, op.plan(data.shape)
print("convt", convt.__version__, op.plan(data.shape))
