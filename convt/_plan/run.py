"""Computation of a problem on arrays: the choice of an algorithm, its plan, and the addition of an array."""

from .._base.errors import BackendUnavailableError
from .._base.problem import ITEMSIZE
from .._run import config
from ..algorithms import MAKERS
from . import strides
from .choose import choose


def prepared(plans, problem, in_strides, out_strides, data=None):
    """Return the `PreparedCall` of a problem for the algorithm that is chosen. "tune" measures with ``data``.

    Strides are in bytes, in NXC order.
    """
    return plans.prepared(problem, in_strides, out_strides, None, lambda: choose(plans, problem, data)[0])


def contiguous(plans, problem):
    """Return the `PreparedCall` of a problem on contiguous data."""
    item, data_format = ITEMSIZE[problem.dtype], plans.attributes.data_format
    both = (strides.contiguous(shape, item, data_format) for shape in (problem.in_shape, problem.out_shape))
    return prepared(plans, problem, *both)


def compute(plans, problem, data, out, add=None):
    """Compute on views in NXC order and return ``(plan, PreparedCall)``.

    ``add`` has the strides of ``out``, and both have no gaps. It is added to the output, before the activation. The
    PreparedCall is None if similar calls must not reuse it.
    """
    convolution = problem if add is None else problem._replace(activation=("none", 0.0, 0.0))
    call = prepared(plans, convolution, data.strides, out.strides, data)
    repeats = MAKERS[call.form.key[0]].repeats
    if plans.run(call, data, out) is False:
        if plans.attributes.backend == "onednn":
            raise BackendUnavailableError(
                "data: got NaN or infinity in data, filter or bias, which oneDNN's kernel for this problem "
                "spreads to other outputs; wanted finite values, or the backend 'auto' or 'native'"
            )
        # direct supports all values of data
        call, repeats = plans.prepared(convolution, data.strides, out.strides, "direct:vectors"), False
        plans.run(call, data, out)
    if add is not None:
        addition = MAKERS[call.form.key[0]].addition(problem.dtype, problem.activation)
        addition.run(out, add, config.get_num_threads())
        call = call.changed(call.form, call.fill, addition) if repeats else call
    return call.plan, call if repeats else None
