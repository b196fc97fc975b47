"""onednn: the optional oneDNN backend, which runs oneDNN's deconvolution primitive behind the interface of the algorithms.

**Library.** It is loaded when it is first needed, and never linked (`library`). If CONVT_ONEDNN_LIB is set, no other place is
searched. Otherwise the search covers the files of the wheel onednn-cpu-gomp, in this environment or beside its installed
distribution, and then the path of the dynamic loader. BackendUnavailableError is raised if the library is missing, too old,
damaged or unsuitable, and if it rejects a problem. oneDNN chooses its own instruction set (ONEDNN_MAX_CPU_ISA limits it).

**Data.** Data and output in memory order NXC or NCX are used in place. Other strides go through a contiguous copy.

**Weights.** Weights are reordered once per layout that oneDNN requires, also in a one-shot call, because oneDNN has only
reference loops for plain weights.

**Primitives.** Primitives hold no weights and are cached by problem (`primitive.set_capacity`). A primitive is created for a
number of threads, because oneDNN divides its work at creation.

**NaN and infinity.** In float32 and float16 without an activation, NaN and infinity reach only the sums that contain them. Some
bfloat16 kernels multiply them by the zeros of the padding, and most activations of oneDNN treat them differently (ReLU of NaN
is 0). Plans of such kernels check their input first and reject values that are not finite.

**Bias and activation.** They are fused into the primitive, unless that gives wrong results (`_fuses_right` in `primitive`).
Then a second primitive applies them.

A module uses only the modules above it:

    api.pxd     declarations of the C API (third_party/onednn)
    file        path of the library; check whether loading it crashes
    library     loading the library, its number of threads, its errors
    call        one execution: a stream, its arguments, scratch memory
    primitive   primitives of problems, and their cache
    weights     filters in the layouts that primitives require, and the arguments of calls
    run         the plan that executes primitives
    schedule    the choice of oneDNN by "auto", and the stages of the algorithm
"""

from .schedule import STAGES, preferred

__all__ = ["STAGES", "preferred"]
