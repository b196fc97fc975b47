"""The command line: layers given as text. `convt.__main__` belongs to this room, `_base.arguments` has what others share."""
