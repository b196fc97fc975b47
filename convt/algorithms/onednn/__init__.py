"""The optional oneDNN backend: its deconvolution primitive as one more algorithm, behind the interface of the native ones.

The library is opened with dlopen when it is first needed and never linked (`library`). CONVT_ONEDNN_LIB, where set, is the
only place searched; otherwise that is where the wheel onednn-cpu-gomp puts it, in this environment or beside its installed
distribution, then the loader's path. A library that is missing, too old, damaged or unsuitable, and a problem that it
rejects, raise BackendUnavailableError. oneDNN chooses its own instruction set (ONEDNN_MAX_CPU_ISA limits it).

Data and output in memory order NXC or NCX are used in place; any other strides go through a contiguous copy. Weights are
reordered once per layout that oneDNN requires: with plain weights, only its reference loops would apply, also in a one-shot
call. Primitives hold no weights and are cached by problem (`primitive.set_capacity`). They are made for a thread count, as
oneDNN divides its work when it creates them.

In float32 and float16 without an activation, NaN and infinity reach only the sums that contain them. Some bfloat16 kernels,
however, multiply them by the zeros of the padding, and most of oneDNN's activations treat them differently (its ReLU of NaN
is 0): plans of these check their input first and refuse what is not finite.

Bias and activation are fused into the primitive, except where that gives wrong results (`primitive`, `_fuses_right`); there
they are a second primitive.

A module uses only those before it:

    api.pxd     the C API's declarations (third_party/onednn)
    file        where the library is, and whether opening it crashes
    library     opening it, its thread count, its errors
    call        one execution: a stream, its arguments, scratch memory
    primitive   problems in oneDNN's terms; the primitive cache
    weights     filters in the layouts that primitives require, and the arguments of calls
    run         the plan that executes them
    schedule    when "auto" chooses oneDNN, and the algorithm's stages
"""

from .schedule import STAGES, preferred

__all__ = ["STAGES", "preferred"]
