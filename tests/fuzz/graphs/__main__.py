"""Load and run random ONNX graphs with convt.onnxruntime, and compare each with ONNX Runtime itself."""

import functools

from .. import command

main = functools.partial(command.main, __package__, __doc__)

if __name__ == "__main__":
    command.start(main)
