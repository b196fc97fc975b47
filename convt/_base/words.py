"""Words of users and of messages: names of data layouts and dtypes with their synonyms, and counts.

This module imports only `dtypes` of convt, because the benchmark loads these two alone.
"""

from . import dtypes

# Name of a data layout -> the layout, and the number of spatial axes that the name implies (None: any)
DATA_FORMATS = {
    "NXC": ("NXC", None), "channels_last": ("NXC", None), "NWC": ("NXC", 1), "NLC": ("NXC", 1), "NHWC": ("NXC", 2),
    "NDHWC": ("NXC", 3), "NCX": ("NCX", None), "channels_first": ("NCX", None), "NCW": ("NCX", 1), "NCL": ("NCX", 1),
    "NCHW": ("NCX", 2), "NCDHW": ("NCX", 3),
}  # fmt: skip
DTYPES = {each.dtype.name: each.synonyms for each in dtypes.COMPUTED}


def layout(text):
    """Return "NXC" or "NCX" for a name of a data layout in any case; for command lines. Raise ValueError for other text."""
    names = {name.lower(): kind for name, (kind, _) in DATA_FORMATS.items()}
    if (found := names.get(text.lower().replace("-", "_"))) is None:
        kinds = {kind: [name for name, (one, _) in DATA_FORMATS.items() if one == kind != name] for kind in ("NXC", "NCX")}
        raise ValueError(f"got {text!r}, wanted {_listed(kinds)}")
    return found


def dtype(text):
    """Return the long name of a dtype for any of its names in any case; for command lines. Raise ValueError for other text."""
    for name, others in DTYPES.items():
        if text.lower() in (name, *others):
            return name
    raise ValueError(f"got {text!r}, wanted {_listed(DTYPES)}")


def _listed(synonyms):
    """Return the words of ``{name: synonyms}`` as text for an error."""
    return " or ".join(f"{name} ({', '.join(others)})" for name, others in synonyms.items())


def count(number, one, several=None):
    """Return ``number`` with its noun: "1 entry", "2 entries". ``several`` is the plural, by default ``one`` with an s."""
    return f"{number} {one if number == 1 else several or one + 's'}"
