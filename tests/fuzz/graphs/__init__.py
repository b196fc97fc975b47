"""Fuzzing of convt.onnxruntime: random ONNX graphs around ConvTranspose, each compared with ONNX Runtime's own session.

A case is a dict that fits one line of JSON: a tree of nodes, the way to load the model, and the runs. `draw.py` makes a case
from a seed, `build.py` the model, options and feeds of a case, `perform.py` runs both sessions and compares them, `oracle.py`
computes what rounding can change in an output, `shrink.py` yields smaller cases, and `report.py` counts and prints a case as a
test. ``found.jsonl`` has the reduced cases of faults that the fuzzer found; tests/fuzz/test_fuzz_graphs.py runs them.
"""
