"""Run random calls of convt.jax, and compare them with jax.lax."""

import functools

from .. import command

main = functools.partial(command.main, __package__, __doc__)

if __name__ == "__main__":
    command.start(main)
