"""The JSON format of layers, which ``python -m convt`` and the benchmark read: one object per layer.

This module imports no other module of convt, because the benchmark loads it into processes that must not import convt.
"""

import difflib
import json

# Key -> meaning, minimum of its integers (None: the value is text), and default (absent: the key is required).
_KEYS = {
    "name": ("name", None, "layer"),
    "family": ("group of layers", None, "other"),
    "source": ("where the layer is from", None, ""),
    "N": ("batch", 1, 1),
    "Cin": ("input channels", 1),
    "Cout": ("output channels", 1),
    "g": ("groups", 1, 1),
    "in": ("input sizes", 1),
    "k": ("kernel", 1),
    "s": ("strides", 1, 1),
    "d": ("dilations", 1, 1),
    "pb": ("pads_begin", 0, 0),
    "pe": ("pads_end", 0, 0),
    "op": ("output_padding", 0, 0),
}
_PER_AXIS = ("in", "k", "s", "d", "pb", "pe", "op")
_WANTED = tuple(key for key, (_, *rest) in _KEYS.items() if len(rest) < 2)
_MOST = 2**63 - 1


def text_of(path):
    """Return the text of a UTF-8 file, with or without a byte order mark. Raise ValueError for other files."""
    with open(path, "rb") as file:
        try:
            return file.read().decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise ValueError(f"not UTF-8 text: {error.reason} at byte {error.start}") from None


def rows(text):
    """Return ``(name, row)`` of each layer in a JSON text: an object, a list of objects, or {"layers": list}.

    The name of a row without one is "layer", or "layer" and its number in a list. Raise ValueError for any other text.
    """
    try:
        found = json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_reject_constant, parse_int=_parse_integer)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from None
    except RecursionError:
        raise ValueError("not JSON of layers: it is nested too deeply") from None
    if isinstance(found, dict) and "layers" in found:
        if others := sorted(found.keys() - {"layers"}):
            raise ValueError(f'got {_listed(others)} beside "layers", wanted "layers" alone')
        found = found["layers"]
        if not isinstance(found, list):
            raise ValueError(f"layers: got {shown(found)}, wanted a list")
    several = isinstance(found, list)
    found = found if several else [found]
    if not found:
        raise ValueError("got an empty list, wanted at least one layer")
    return [(_name(row, f"layer {place}" if several else "layer"), row) for place, row in enumerate(found, 1)]


def _name(row, otherwise):
    name = row.get("name") if isinstance(row, dict) else None
    return name if isinstance(name, str) and name.isprintable() and name else otherwise


def _unique_keys(pairs):
    found = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"got the key {shown(key)} twice")
        found[key] = value
    return found


def _reject_constant(word):
    raise ValueError(f"got {word}, wanted a JSON number")


def _parse_integer(digits):
    if len(digits) > 100:
        raise ValueError(f"got an integer of {len(digits)} digits, wanted one below 2**63")
    return int(digits)


def checked(row, name="layer"):
    """Validate a row and add the defaults of missing keys. Return a dict with every key; values per axis are tuples of int.

    Raise ValueError, which names the key, its value, and the allowed values.
    """
    if not isinstance(row, dict):
        raise ValueError(f"got {shown(row)}, wanted an object with {_listed(_WANTED)}")
    if unknown := [key for key in row if key not in _KEYS]:
        hints = [f"; {shown(key)} probably means {near!r}" for key in unknown if (near := _nearest(key))]
        known = ", ".join(f"{key} ({meaning})" if key != meaning else key for key, (meaning, *_) in _KEYS.items())
        keys = f"key{'s' * (len(unknown) > 1)} {_listed(map(shown, unknown))}"
        raise ValueError(f"got the unknown {keys}{''.join(hints)}; wanted only {known}")
    if missing := [key for key in _WANTED if key not in row]:
        raise ValueError(f"got no {_listed(missing)}, wanted {_listed(_WANTED)}")
    rank = len(row["in"]) if isinstance(row["in"], list) else 1
    found = {key: rest[1] for key, (_, *rest) in _KEYS.items() if len(rest) > 1} | {"name": name} | row
    found = {key: _value(key, found[key], rank) for key in _KEYS}
    for key in ("Cin", "Cout"):
        if found[key] % found["g"]:
            raise ValueError(f"g: got {found['g']}, wanted a divisor of {key}, {found[key]}")
    axes = zip(*(found[key] for key in _PER_AXIS), strict=True)
    sizes = tuple(s * (n - 1) + d * (k - 1) + 1 + op - pb - pe for n, k, s, d, pb, pe, op in axes)
    if min(sizes) < 1:
        raise ValueError(f"pb, pe: got pads that leave an output of {sizes}, wanted at least 1 on every axis")
    return found


def _nearest(key):
    """Return the key whose spelling or meaning is most similar to ``key``, or None if none is similar."""
    meanings = {meaning: known for known, (meaning, *_) in _KEYS.items()}
    meanings |= {known.lower(): known for known in _KEYS} | {"stride": "s", "dilation": "d", "kernel_size": "k"}
    near = difflib.get_close_matches(key.lower(), meanings, 1, 0.7)
    return meanings[near[0]] if near else None


def _value(key, value, rank):
    """Validate the value of a key and return it; a value per axis becomes a tuple of ``rank`` ints."""
    least = _KEYS[key][1]
    if least is None:
        if not isinstance(value, str) or not value.isprintable():
            raise ValueError(f"{key}: got {shown(value)}, wanted text without control characters")
        return value
    if key not in _PER_AXIS:
        return _integer(key, value, least)
    values = value if isinstance(value, list) else [value] * rank
    if not values:
        raise ValueError(f"{key}: got an empty list, wanted an integer for each spatial axis")
    if len(values) != rank:
        raise ValueError(f"{key}: got a list of length {len(values)}, wanted {rank}, the number of spatial axes of in")
    return tuple(_integer(key, each, least) for each in values)


def _integer(key, value, least):
    if type(value) is not int or not least <= value <= _MOST:
        raise ValueError(f"{key}: got {shown(value)}, wanted an integer of at least {least} and below 2**63")
    return value


def message_name(name):
    """Return the name of a layer for a message. Default names begin with "layer" already."""
    return name if name.startswith("layer") else f"layer {name!r}"


def shown(value):
    """Return ``repr(value)``, cut to 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _listed(keys):
    *most, last = map(str, keys)
    return f"{', '.join(most)} and {last}" if most else last
