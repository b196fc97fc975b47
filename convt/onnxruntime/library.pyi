# A library of operators, which ONNX Runtime opens by its path: there is nothing in it for Python.
