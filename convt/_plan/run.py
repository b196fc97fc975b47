"""Computation of a problem on arrays: the choice of an algorithm, its plan, and the addition of an array."""

from .._base.errors import BackendUnavailableError
from .._base.problem import ITEMSIZE
from .._run import config
from ..algorithms import MAKERS
from . import strides
from .choose import choose


def bound_for(plans, problem, in_strides, out_strides, name=None, data=None):
    """Return the `Bound` of a problem for the algorithm ``name``, or for the chosen one. "tune" measures with ``data``.

    Strides are in bytes, in NXC order.
    """
    key = plans.key(problem, in_strides, out_strides, name)
    return plans.kept(key) or plans.bound(key, name or choose(plans, problem, data)[0])


def contiguous(plans, problem):
    """Return the `Bound` of a problem on contiguous data."""
    item, data_format = ITEMSIZE[problem.dtype], plans.attributes.data_format
    both = (strides.contiguous(shape, item, data_format) for shape in (problem.in_shape, problem.out_shape))
    return bound_for(plans, problem, *both)


def compute(plans, problem, data, out, add=None):
    """Compute on views in NXC order and return ``(plan, Bound)``.

    ``add`` has the strides of ``out``, and both have no gaps. It is added to the output, before the activation. The Bound is
    None if similar calls must not reuse it.
    """
    if add is None:
        bound, repeats = _compute(plans, problem, data, out)
        return bound.plan, bound if repeats else None
    bound, repeats = _compute(plans, problem._replace(activation=("none", 0.0, 0.0)), data, out)
    addition = MAKERS[bound.form.key[0]].addition(problem.dtype, problem.activation)
    addition.run(out, add, config.get_num_threads())
    return bound.plan, bound.with_addition(addition) if repeats else None


def _compute(plans, problem, data, out):
    """Compute without an addition. Return the Bound, and whether similar calls may reuse it."""
    bound = bound_for(plans, problem, data.strides, out.strides, data=data)
    if plans.run(problem, bound, data, out) is not False:
        return bound, MAKERS[bound.form.key[0]].repeats
    if plans.attributes.backend == "onednn":
        raise BackendUnavailableError(
            "data: got NaN or infinity in data, filter or bias, which oneDNN's kernel for this problem "
            "spreads to other outputs; wanted finite values, or the backend 'auto' or 'native'"
        )
    bound = bound_for(plans, problem, data.strides, out.strides, "direct:vectors")  # direct supports all values of data
    plans.run(problem, bound, data, out)
    return bound, False
