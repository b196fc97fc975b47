"""Fuzzing of convt.jax: random calls under random transformations of JAX, each with convt and with jax.lax.

A case is a dict that fits one line of JSON: a function of jax.lax, shapes, dtypes, keywords, and a transformation. `draw.py`
makes a case from a seed, `perform.py` computes it with both and compares results, shapes, dtypes and errors, and `shrink.py`
yields smaller cases. docs/jax.md says how to run it.
"""
