"""Words of users and of messages: names of data layouts and dtypes with their synonyms, and counts.

This module imports no other one of convt, because the benchmark loads it alone.
"""

# Name of a data layout -> the layout, and the number of spatial axes that the name implies (None: any)
DATA_FORMATS = {
    "NXC": ("NXC", None), "channels_last": ("NXC", None), "NWC": ("NXC", 1), "NLC": ("NXC", 1), "NHWC": ("NXC", 2),
    "NDHWC": ("NXC", 3), "NCX": ("NCX", None), "channels_first": ("NCX", None), "NCW": ("NCX", 1), "NCL": ("NCX", 1),
    "NCHW": ("NCX", 2), "NCDHW": ("NCX", 3),
}  # fmt: skip
# Name of a dtype -> its synonyms on command lines, the shortest first. "float" and "f8" are none, because libraries disagree on
# their sizes.
DTYPES = {
    "float32": ("f32", "fp32", "single"), "float64": ("f64", "fp64", "double"), "float16": ("f16", "fp16", "half"),
    "bfloat16": ("bf16",),
}  # fmt: skip


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
