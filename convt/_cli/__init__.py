"""The command line: its errors, exit codes and arguments, and layers given as text. `convt.__main__` belongs to this room."""
