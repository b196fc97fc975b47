"""Run random operations on random PyTorch models, with convt and without, and compare both."""

import functools
import sys

from .. import command

main = functools.partial(command.main, __package__, __doc__)

if __name__ == "__main__":
    command.prepare_process()
    sys.exit(main())
