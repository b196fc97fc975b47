"""The native algorithms: how each cuts a problem into tasks, and what it expects that to cost.

Each is a module with one interface, and a plan class in _core that runs its tables:

* ``LIMIT``: what it wants, in words for an error; None if it does every problem.
* ``cost(problem)``: cycles, by a small model; infinite for what it does not do.
* ``recipe(attributes, filter, bias, key)``: how weights are packed for a key. Keys are tuples that begin with the name of
  the algorithm; what follows is its own.
* ``make(problem, recipe, packed, in_strides, out_strides)``: ``(plan, key of its weights)``; ``recipe`` and ``packed`` give
  the recipe and the packed weights of a key.

Some also have ``preparing(problem)``, what packing costs a call that brings its weights; of the others it is `common`'s.

The model counts what the loops do: multiply-adds of register tiles at their true height, vectors packed and stored, calls and
tasks, and what waits for memory.
"""
