"""Load and run random ONNX graphs with convt.onnxruntime, and compare each with ONNX Runtime itself."""

import functools
import sys

from .. import command

main = functools.partial(command.main, __package__, __doc__)

if __name__ == "__main__":
    command.prepare_process()
    sys.exit(main())
