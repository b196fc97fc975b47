"""An execution provider for ONNX Runtime that computes ConvTranspose nodes with convt on CPUs.

After `register`, any session takes it by name: ``providers=["ConvtExecutionProvider", "CPUExecutionProvider"]``.
`InferenceSession` is ``onnxruntime.InferenceSession`` with the provider and a report. The command
``python -m convt.onnxruntime model.onnx`` compares the sessions with and without convt.

    _session        the session and its report
    library.pyx     the library that ONNX Runtime loads: the provider, the nodes of a graph, kernels that call a node in place
    host.pxd        ONNX Runtime's interface, which setup.py declares from third_party/onnxruntime/onnxruntime_api.h
    _registration   registration of the provider
    _provider       the provider in one session: its options and the nodes that it claims
    _fuse           the nodes that convt computes as one
    _differences    nodes for which ONNX Runtime's results differ from those of convt.onnx
    _node           one node: its packed weights and its computation
    _parameters     the parameters of a node in a run: dequantized, with a norm or scale folded in
    _model          ONNX Runtime's own computation of nodes, for runs that convt refuses
    _host           exceptions in a node, of convt, ONNX Runtime and signal handlers
    __main__        the command that compares a model with and without convt
"""

try:
    import onnxruntime
except ImportError as error:
    raise ImportError("convt.onnxruntime needs ONNX Runtime: pip install onnxruntime") from error

if tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 25):  # older ones take no provider by its name
    raise ImportError(f"convt.onnxruntime needs ONNX Runtime 1.25 or newer: got {onnxruntime.__version__}")

from ._registration import get_ep_name, get_ep_names, get_library_path, register
from ._session import InferenceSession, Report

del onnxruntime

__all__ = ["InferenceSession", "Report", "get_ep_name", "get_ep_names", "get_library_path", "register"]
