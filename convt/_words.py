"""Numbers in sentences."""


def count(number, one, several=None):
    """``number`` with its noun: "1 entry", "2 entries". The plural is the singular with an s, unless it is given."""
    return f"{number} {one if number == 1 else several or one + 's'}"
