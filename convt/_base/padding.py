"""Padding rules of the three dialects: they turn attributes into one signed window per spatial axis.

A window ``(begin, out)`` selects positions ``[begin, begin + out)`` of the full scatter of an axis. Positions outside the full
scatter are zero. Python ints do not overflow. For each axis, ``eff = (k - 1) * d + 1`` is the extent of the dilated kernel and
``nat = s * (in - 1) + eff`` is the length of the full scatter.

The dialects differ in three rules:

* the side that loses the extra pixel if ``output_shape`` leaves an odd total of pads (``_split``);
* the meaning of ``auto_pad`` without ``output_shape`` (``_core``, ``_onnx``, ``_openvino``);
* how far ``output_padding`` and ``output_shape`` may extend past the full scatter.
"""

CORE, ONNX, OPENVINO = "oneDNN Graph", "ONNX", "OpenVINO"

_WORDS = {"none": None, "notset": None, "same_upper": "upper", "same_lower": "lower", "valid": "valid"}


def parse_auto_pad(auto_pad, dialect=CORE):
    """Return None, "upper", "lower" or "valid" for an ``auto_pad`` value in upper or lower case."""
    if auto_pad is None:
        return None
    if not isinstance(auto_pad, str):
        raise TypeError(f"auto_pad: got {type(auto_pad).__name__}, wanted a string or None")
    word = auto_pad.lower()
    if dialect == OPENVINO and word == "explicit":  # OpenVINO's enum calls "none" EXPLICIT
        return None
    if word not in _WORDS:
        raise ValueError(f"auto_pad: got {auto_pad!r}, wanted one of none, notset, same_upper, same_lower, valid")
    return _WORDS[word]


def windows(dialect, in_sizes, kernel, strides, dilations, pads_begin, pads_end, auto_pad, output_padding, output_shape):
    """Return ``(pads_begin, pads_end, output_sizes)``, three tuples with one Python int per spatial axis.

    ``auto_pad`` is a result of `parse_auto_pad`, ``output_shape`` is a tuple or None. ``pads_end`` is negative on an axis whose
    output extends past the full scatter; the outputs there are zero plus bias. Raise ValueError if the dialect forbids the
    combination of arguments.
    """
    if dialect == ONNX and auto_pad is not None and (any(pads_begin) or any(pads_end)):
        got = tuple(pads_begin) + tuple(pads_end)
        raise ValueError(f"pads: got {got} together with auto_pad, wanted no pads when auto_pad is set (ONNX)")
    begins, ends, outs = [], [], []
    for ax in range(len(in_sizes)):
        s, d, op = strides[ax], dilations[ax], output_padding[ax]
        if dialect == ONNX and op >= max(s, d):
            raise ValueError(
                f"output_padding: got {op} on axis {ax}, wanted less than max(stride, dilation) = {max(s, d)} (ONNX)"
            )
        eff = (kernel[ax] - 1) * d + 1
        nat = s * (in_sizes[ax] - 1) + eff
        want = None if output_shape is None else output_shape[ax]
        if dialect == CORE:
            begin, out = _core(ax, in_sizes[ax], s, eff, nat, op, pads_begin[ax], pads_end[ax], auto_pad, want)
        elif dialect == ONNX:
            begin, out = _onnx(ax, in_sizes[ax], s, nat, op, pads_begin[ax], pads_end[ax], auto_pad, want)
        else:
            begin, out = _openvino(nat, op, pads_begin[ax], pads_end[ax], auto_pad, want)
        if out < 0:
            raise ValueError(
                f"output size: got {out} on axis {ax} (input {in_sizes[ax]}, kernel {kernel[ax]}, stride {s}, dilation {d}, "
                f"pads {pads_begin[ax]} and {pads_end[ax]}), wanted at least 0"
            )
        begins.append(begin)
        outs.append(out)
        ends.append(nat + op - begin - out)
    return tuple(begins), tuple(ends), tuple(outs)


def _split(total, extra_at_begin):
    """Return the pad at the beginning: half of ``total``, rounded up if ``extra_at_begin``, else down."""
    return total - total // 2 if extra_at_begin else total // 2


def _core(ax, size, s, eff, nat, op, begin, end, auto_pad, want):
    """Return ``(begin, out)`` of an axis by oneDNN Graph's rules; ``want`` is its output_shape or None."""
    if auto_pad is None:
        if want is None:
            return begin, nat + op - begin - end
        # Pads are ignored. Outputs past the full scatter have no products, as with output_padding.
        return _split(max(nat + op - want, 0), extra_at_begin=True), want
    total = 0 if auto_pad == "valid" else max(eff - s, 0)
    out = nat + op - total
    if want is not None and want != out:
        raise ValueError(f"output_shape: got {want} on axis {ax} together with auto_pad, wanted {out}, the size auto_pad gives")
    return _split(total, extra_at_begin=auto_pad == "lower"), out


def _onnx(ax, size, s, nat, op, begin, end, auto_pad, want):
    """Return ``(begin, out)`` of an axis by ONNX's rules; ``want`` is its output_shape or None."""
    if want is None:
        if auto_pad is None:
            return begin, nat + op - begin - end
        if auto_pad == "valid":
            return 0, nat + op
        out = size * s
        return _split(max(nat + op - out, 0), extra_at_begin=auto_pad == "lower"), out
    total = nat + op - want
    if -total >= s:
        raise ValueError(
            f"output_shape: got {want} on axis {ax}, wanted less than {nat + op + s}, "
            f"the full size {nat + op} plus the stride (ONNX)"
        )
    return _split(max(total, 0), extra_at_begin=auto_pad != "upper"), want


def _openvino(nat, op, begin, end, auto_pad, want):
    """Return ``(begin, out)`` of an axis by OpenVINO's rules; ``want`` is its output_shape or None."""
    if want is not None:
        return _split(max(nat + op - want, 0), extra_at_begin=auto_pad == "upper"), want
    if auto_pad is not None:
        begin = end = 0
    return begin, nat + op - begin - end
