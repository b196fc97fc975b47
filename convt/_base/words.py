"""Words of users and of messages: names of data layouts and dtypes with their synonyms, and counts.

This module imports no other one of convt, because the benchmark loads it alone.
"""

# Name of a data layout -> the layout, and the number of spatial axes that the name implies (None: any)
DATA_FORMATS = {
    "NXC": ("NXC", None), "channels_last": ("NXC", None), "NWC": ("NXC", 1), "NHWC": ("NXC", 2), "NDHWC": ("NXC", 3),
    "NCX": ("NCX", None), "channels_first": ("NCX", None), "NCW": ("NCX", 1), "NCHW": ("NCX", 2), "NCDHW": ("NCX", 3),
}  # fmt: skip
SHORT_DTYPES = {"f32": "float32", "f64": "float64", "f16": "float16", "bf16": "bfloat16"}


def layout(text):
    """Return "NXC" or "NCX" for a name of a data layout, and any other text as it is; for command lines."""
    return DATA_FORMATS.get(text, (text,))[0]


def dtype(text):
    """Return the long name of a dtype for a short one, and any other text as it is; for command lines."""
    return SHORT_DTYPES.get(text, text)


def short_dtype(text):
    """Return the short name of a dtype for a long one, and any other text as it is; for command lines."""
    return next((short for short, name in SHORT_DTYPES.items() if name == text), text)


def count(number, one, several=None):
    """Return ``number`` with its noun: "1 entry", "2 entries". ``several`` is the plural, by default ``one`` with an s."""
    return f"{number} {one if number == 1 else several or one + 's'}"
