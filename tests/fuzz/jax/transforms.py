"""The transformations of a case: `TRANSFORMS`, each a function from a function of one or two arrays to a function of them."""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec


def _two(a):
    return jnp.stack([a, a * 2])


def _loss(f):
    return lambda *a: (f(*a).astype("float32") ** 2).sum()


def _first(a):
    """Return the axes of vmap that map the first of these arguments."""
    return 0, *[None] * (len(a) - 1)


def _jacrev(f):
    small = lambda *a: [each[tuple(slice(0, 2) for _ in each.shape)] for each in a]  # noqa: E731
    return lambda *a: jax.jacrev(lambda *b: f(*b).ravel()[:3])(*small(*a)) if a[0].size > 8 else f(*a)


def _shard_map(f):
    mesh, spec = jax.make_mesh((1,), ("i",)), PartitionSpec()
    return lambda *a: jax.jit(jax.shard_map(f, mesh=mesh, in_specs=(spec,) * len(a), out_specs=spec))(*a)


def _scan(f):
    return jax.jit(lambda *a: jax.lax.scan(lambda c, s: (c, f(a[0] * s, *a[1:])), 0, jnp.arange(3).astype(a[0].dtype))[1])


TRANSFORMS = {
    "eager": lambda f: f,
    "jit": jax.jit,
    "patched": jax.jit,
    "vmap lhs": lambda f: jax.jit(lambda *a: jax.vmap(f, _first(a))(_two(a[0]), *a[1:])),
    "vmap rhs": lambda f: jax.jit(
        lambda *a: jax.vmap(f, (*[None] * (len(a) - 1), 1))(*a[:-1], jnp.stack([a[-1], a[-1] * 2], 1))
    ),
    "vmap both": lambda f: lambda *a: jax.vmap(f)(*map(_two, a)),
    "nested vmap": lambda f: jax.jit(lambda *a: jax.vmap(jax.vmap(f), _first(a))(_two(_two(a[0])), *map(_two, a[1:]))),
    "grad": lambda f: jax.jit(lambda *a: jax.grad(_loss(f), tuple(range(len(a))))(*a)),
    "vmap of grad": lambda f: jax.jit(lambda *a: jax.vmap(jax.grad(_loss(f)), _first(a))(_two(a[0]), *a[1:])),
    "jvp": lambda f: lambda *a: jax.jvp(f, a, tuple(each * 2 for each in a)),
    "jacrev": _jacrev,
    "hessian": lambda f: jax.jit(lambda *a: jax.hessian(lambda s: _loss(f)(a[0] * s, *a[1:]))(jnp.ones((), a[0].dtype))),
    "scan": _scan,
    "checkpoint": lambda f: jax.jit(jax.grad(jax.checkpoint(_loss(f)))),
    "shard_map": _shard_map,
}
