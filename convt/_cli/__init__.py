"""The command line: its errors and exit codes, and layers given as text. `convt.__main__` belongs to this room."""
