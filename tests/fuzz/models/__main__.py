"""The command ``python -m tests.fuzz.models``, described in docs/reliability.md."""

import sys

from .. import command


def main(arguments=None):
    description = "Run random operations on random PyTorch models, with convt and without, and compare both."
    return command.run(__package__, command.parser(__package__, description).parse_args(arguments))


if __name__ == "__main__":
    command.prepare_process()
    sys.exit(main())
