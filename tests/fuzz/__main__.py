"""Run random calls with plans for random machines, and compare each result with the definition."""

import functools

from . import command

main = functools.partial(command.main, __package__, __doc__, isa="only this instruction set (default: all that the CPU has)")

if __name__ == "__main__":
    command.start(main)
