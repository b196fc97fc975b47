"""Text helpers for messages."""


def count(number, one, several=None):
    """Return ``number`` with its noun: "1 entry", "2 entries". ``several`` is the plural, by default ``one`` with an s."""
    return f"{number} {one if number == 1 else several or one + 's'}"
