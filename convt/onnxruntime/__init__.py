"""convt in ONNX Runtime: its session, whose ConvTranspose nodes are computed by convt on CPUs.

`InferenceSession` stands for ``onnxruntime.InferenceSession``; ``python -m convt.onnxruntime model.onnx`` shows what it gains.

    _session        the session: what is handed to ONNX Runtime, and the report
    _rewrite        the model: its ConvTranspose nodes made convt's
    library         the library of operators that ONNX Runtime opens: kernels that call a node on tensors in place
    _node           a node: its weights packed once, its output computed
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
