"""Fuzzing of convt.onnxruntime: random ONNX graphs around ConvTranspose, each compared with ONNX Runtime's own session.

A case is a dict that fits one line of JSON: a tree of nodes, the way to load the model, and the runs. `draw.py` makes a case
from a seed, `build.py` the model, options and feeds of a case, `perform.py` runs both sessions and compares them, `oracle.py`
computes what rounding can change in an output, and `shrink.py` yields smaller cases. ``found.jsonl`` has the reduced cases
of faults that the fuzzer found; tests/fuzz/test_fuzz_graphs.py runs them.
"""
