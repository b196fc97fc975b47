"""An ONNX Runtime session that runs ConvTranspose nodes with convt on CPUs.

`InferenceSession` is a drop-in replacement for ``onnxruntime.InferenceSession``. ``python -m convt.onnxruntime model.onnx``
compares the two on a model.

    _session        the session and its report
    _loading        the model and options given to ONNX Runtime, or the reason to leave the model unchanged
    _options        a copy of session options
    _file           models read without their large tensors, and written with them
    _rewrite        replacement of ConvTranspose nodes by convt's operator
    _scopes         graphs of a model: values by name, and their readers
    _fuse           fusion of a node with the bias, batch norm and activation that follow it
    _quantized      weights that DequantizeLinear makes: a node reads the quantized values
    _inputs         the inputs of convt's node
    _replaced       the ONNX nodes that a node replaces: shapes of outputs, and what convt refuses
    _differences    nodes for which ONNX Runtime's results differ from those of convt.onnx
    _functions      inlining of model functions
    library.pyx     the custom-operator library that ONNX Runtime loads; its kernels call a node on tensors in place
    _node           one node: its packed weights and its computation
    _parameters     the parameters of a node in a run: dequantized, with a norm or scale folded in
    _host           sessions that are being created; exceptions in a node, of convt, ONNX Runtime and signal handlers
    _profile        what convt changes in a whole model, from ONNX Runtime's profiler
    __main__        the command that compares a model with and without convt
"""

try:
    import onnx
    import onnxruntime
except ImportError as error:
    raise ImportError('convt.onnxruntime needs onnx and ONNX Runtime: pip install onnx onnxruntime') from error

from ._session import InferenceSession, Report

del onnx, onnxruntime

__all__ = ["InferenceSession", "Report"]
