"""The libraries measured, one file each; a library has several rows here where it can be used in several ways.

A peer's module has `DTYPES` (the words it takes), `PRECISIONS` if it can be told how exact f32 has to be, `version()`,
and `prepare(problem, threads)`, which does everything that needs doing once and returns a `Ready`. Importing the module
imports the library, so only its own process does.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np


class Peer(NamedTuple):
    name: str
    module: str
    package: str  # what to install
    options: dict = {}  # further arguments of the module's `prepare`
    caps: bool = True  # does it obey an instruction set cap?
    helped: bool = False  # in NCX: is its data reordered outside the clock?
    checkout: str = ""  # of convt: a folder with another version of it, which is imported in place of the installed one


# The one under test first. The first word of a name is the library's, and stands for all of its rows.
PEERS = (
    Peer("convt", f"{__name__}.convt", "convt"),
    Peer("onednn-plain", f"{__name__}.onednn", "onednn-cpu-gomp", {"tags": "plain"}),
    Peer("onednn-any", f"{__name__}.onednn", "onednn-cpu-gomp", {"tags": "any"}, helped=True),
    Peer("onednn-3.13", f"{__name__}.onednn_sycl", "onednn in a virtual environment that CONVT_BENCH_ONEDNN_SYCL names"),
    Peer("torch-channels_last", f"{__name__}.torch", "torch", {"layout": "NXC"}, helped=True),
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

# What a cap on the instruction set is called by each library that has one: convt, oneDNN (inside others too), PyTorch
# and the MKL in it. A library gets what its own words offer nearest to the cap.
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
    """The rivals with these names, a library's name standing for all of its rows."""
    return [peer for peer in RIVALS if peer.name in words or peer.name.partition("-")[0] in words]


def convt_in(checkout: str, name: str = "convt") -> Peer:
    """convt of another checkout, whose kernels are built."""
    return Peer(name, f"{__name__}.convt", "convt", checkout=checkout)


class Ready(NamedTuple):
    """A problem set up in a library: `nxc(run())` is the result, channels last; only `run` is timed."""

    run: Callable[[], Any]
    nxc: Callable[[Any], np.ndarray]
    how: str  # the algorithm or implementation that runs, and the layout where it is not the one asked for
    keep: Any = None  # what the library reads or writes by address, and so does not keep alive itself


class Unsupported(Exception):
    """The library does not take this problem."""


class Failed(Exception):
    """The library raised something of its own."""


class Absent(Exception):
    """The library is not installed."""


def load(peer: Peer) -> ModuleType:
    if peer.checkout:
        sys.path.insert(0, peer.checkout)
    try:
        return importlib.import_module(peer.module)
    except (ImportError, OSError) as exc:
        raise Absent(f"{exc}; to have it: pip install {peer.package}") from exc
