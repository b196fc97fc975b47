"""The command ``python -m tests.fuzz.graphs``, described in docs/reliability.md."""

import sys

from .. import command


def main(arguments=None):
    description = "Load and run random ONNX graphs with convt.onnxruntime, and compare each with ONNX Runtime itself."
    return command.run(__package__, command.parser(__package__, description).parse_args(arguments))


if __name__ == "__main__":
    command.prepare_process()
    sys.exit(main())
