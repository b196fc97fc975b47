"""convt in ONNX Runtime: its session, whose ConvTranspose nodes are computed by convt on CPUs.

`InferenceSession` stands for ``onnxruntime.InferenceSession``; ``python -m convt.onnxruntime model.onnx`` shows what it gains.

    _session        the session, and the report
    _loading        what is handed to ONNX Runtime: a model with convt's nodes, or the reason why there is none
    _options        a copy of session options
    _file           models read without their large tensors, and written with them
    _rewrite        the model: its ConvTranspose nodes made convt's
    _scopes         the model's graphs: what names stand for, and who reads them
    _fuse           what is computed together with a node
    _differences    nodes that ONNX Runtime computes otherwise than convt.onnx, which are left to it
    _functions      the model's functions, inlined
    library         the library of operators that ONNX Runtime opens: kernels that call a node on tensors in place
    _node           a node: its weights packed once, its output computed
    _host           exceptions in a node: what convt refuses, and what signals raise
    __main__        a model in both, side by side
"""

try:
    import onnx
    import onnxruntime
except ImportError as error:
    raise ImportError('convt.onnxruntime needs onnx and ONNX Runtime: pip install "convt[onnxruntime]"') from error

from ._session import InferenceSession, Report

del onnx, onnxruntime

__all__ = ["InferenceSession", "Report"]
