"""The measured libraries. A library has several entries if it can be run in several ways.

The module of a library has `DTYPES` (the supported dtypes), `PRECISIONS` if the library offers precisions of f32, `version()`,
and `prepare(problem, threads)`, which does all work that is needed once and returns a `Ready`. Importing the module imports the
library, so only the library's own process imports it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np


class Peer(NamedTuple):
    """One way to run a library."""

    name: str
    module: str
    package: str  # package to install, for messages
    options: dict = {}  # more arguments of the module's `prepare`
    caps: bool = True  # whether --isa can limit its instruction set
    reorders_untimed: bool = False  # whether its NCX data is reordered before timing
    checkout: str = ""  # folder of another version of convt, which is imported instead of the installed one


# convt comes first. The part of a name before "-" is the library, and selects all of its entries.
PEERS = (
    Peer("convt", f"{__name__}.convt", "convt"),
    Peer("onednn-plain", f"{__name__}.onednn", "onednn-cpu-gomp", {"tags": "plain"}),
    Peer("onednn-any", f"{__name__}.onednn", "onednn-cpu-gomp", {"tags": "any"}, reorders_untimed=True),
    Peer("onednn-3.13", f"{__name__}.onednn_sycl", "onednn in a virtual environment that CONVT_BENCH_ONEDNN_SYCL names"),
    Peer("torch-channels_last", f"{__name__}.torch", "torch", {"layout": "NXC"}, reorders_untimed=True),
    Peer("torch-contiguous", f"{__name__}.torch", "torch", {"layout": "NCX"}),
    Peer("torch-prepacked", f"{__name__}.torch", "torch", {"reordered": True}),
    Peer("torch-subpixel", f"{__name__}.torch_subpixel", "torch"),
    Peer("onnxruntime", f"{__name__}.onnxruntime", "onnxruntime onnx", caps=False),
    Peer("openvino", f"{__name__}.openvino", "openvino"),
    Peer("mnn", f"{__name__}.mnn", "MNN onnx", caps=False),
    Peer("tensorflow", f"{__name__}.tensorflow", "tensorflow-cpu", caps=False),
    Peer("jax", f"{__name__}.jax", "jax", caps=False),
)
RIVALS = PEERS[1:]
LIBRARIES = tuple(dict.fromkeys(peer.name.partition("-")[0] for peer in RIVALS))

# Environment variables that limit the instruction set of convt, oneDNN (also inside other libraries), PyTorch and its MKL. Each
# gets the nearest limit that it offers.
CAPS = {
    isa: {
        "CONVT_ISA": isa,
        "ONEDNN_MAX_CPU_ISA": onednn,
        "DNNL_MAX_CPU_ISA": onednn,
        "ATEN_CPU_CAPABILITY": aten,
        "MKL_ENABLE_INSTRUCTIONS": mkl,
    }
    for isa, onednn, aten, mkl in (
        ("baseline", "SSE41", "default", "SSE4_2"),
        ("avx2", "AVX2", "avx2", "AVX2"),
        ("avx512", "AVX512_CORE", "avx512", "AVX512"),
        ("avx512_bf16", "AVX512_CORE_BF16", "avx512", "AVX512"),
    )
}


def named(words: list[str]) -> list[Peer]:
    """Return the entries of other libraries that have these names. A library's name selects all of its entries."""
    return [peer for peer in RIVALS if peer.name in words or peer.name.partition("-")[0] in words]


def convt_in(checkout: str, name: str = "convt") -> Peer:
    """Return an entry for the convt of another checkout, which must have built kernels."""
    return Peer(name, f"{__name__}.convt", "convt", checkout=checkout)


class Ready(NamedTuple):
    """A problem that is ready to run. `nxc(run())` is the result in NXC. Only `run` is timed."""

    run: Callable[[], Any]
    nxc: Callable[[Any], np.ndarray]
    how: str  # algorithm or implementation that runs, and its layout if it differs from the problem's
    keep: Any = None  # objects that the library uses by address and does not keep alive


class Unsupported(Exception):
    """The library does not support the problem."""


class Failed(Exception):
    """The library raised an exception."""


class Absent(Exception):
    """The library is not installed."""


def load(peer: Peer) -> ModuleType:
    """Import the module of a library. Raise `Absent` if the library is not installed."""
    if peer.checkout:
        sys.path.insert(0, peer.checkout)
    try:
        return importlib.import_module(peer.module)
    except (ImportError, OSError) as exc:
        raise Absent(f"{exc}; install it with: pip install {peer.package}") from exc
