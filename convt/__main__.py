"""``python -m convt`` prints what convt found on this machine."""

from . import show_config

show_config()
