# The library of operators that ONNX Runtime loads by its path; it has no Python interface.
