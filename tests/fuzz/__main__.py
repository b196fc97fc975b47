"""The command ``python -m tests.fuzz``, described in docs/reliability.md."""

import sys

from . import command


def main(arguments=None):
    description = "Run random calls with plans for random machines, and compare each result with the definition."
    parser = command.parser(__package__, description)
    parser.add_argument("--isa", help="only this instruction set (default: all that the CPU has)")
    options = parser.parse_args(arguments)
    return command.run(__package__, options, options.isa)


if __name__ == "__main__":
    command.prepare_process()
    sys.exit(main())
