"""ONNX Runtime's own computation of the nodes that convt computes as one, for runs that convt refuses.

`session` writes the nodes as a model, in the format of protocol buffers: a message is a sequence of fields, each a number and a
value. The numbers are those of onnx.proto.
"""

import struct

import onnxruntime

from .._base import dtypes
from . import _host

_NUMBERS = {each.dtype: each.onnx for each in dtypes.ALL}
_SILENT = 4  # the severity of fatal errors; the session that convt serves reports the others
_IR_VERSION = 8  # the format of models since 2021, which every version of ONNX Runtime that convt supports reads


class Unknown(Exception):
    """ONNX Runtime has no operator for such nodes."""


def session(originals, opset, values, threads):
    """Return a session of ONNX Runtime that computes nodes, a list of `_fuse.Original`. It prints nothing.

    ``values`` is {name: array} of all values that the nodes may read, in the dtypes of a run. Raise `Unknown` if ONNX Runtime
    has no operator for them.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, _SILENT
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # it would take the outer session's cores
    model = serialized(originals, opset, values)
    try:
        return onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"], enable_fallback=0)
    except Exception as error:
        if _host.is_foreign(error):
            raise
        raise Unknown(str(error)) from None


def serialized(originals, opset, values):
    """Return nodes as the bytes of a model; ``values`` is {name: array}."""
    read, made = {name for each in originals for name in each.inputs}, {name for each in originals for name in each.outputs}
    inputs = [_value(name, _NUMBERS[values[name].dtype]) for name in sorted(read - made - {""})]
    graph = [_field(1, _node(each)) for each in originals]
    graph += [_field(2, "nodes"), *(_field(11, each) for each in inputs)]
    graph.append(_field(12, _field(1, originals[-1].outputs[0])))  # ONNX Runtime infers its type
    return b"".join([_field(1, _IR_VERSION), _field(7, b"".join(graph)), _field(8, _field(1, "") + _field(2, opset))])


def _node(original):
    fields = [_field(1, name) for name in original.inputs] + [_field(2, name) for name in original.outputs]
    fields += [_field(3, original.name), _field(4, original.op_type)]
    fields += [_field(5, _attribute(name, value)) for name, value in original.attributes.items()]
    return b"".join(fields)


def _attribute(name, value):
    if isinstance(value, int):
        kind, fields = 2, [_field(3, value)]
    elif isinstance(value, float):
        kind, fields = 1, [_varint(2 << 3 | 5) + struct.pack("<f", value)]
    elif isinstance(value, str):
        kind, fields = 3, [_field(4, value)]
    else:
        kind, fields = 7, [_field(8, each) for each in value]
    return b"".join([_field(1, name), *fields, _field(20, kind)])


def _value(name, number):
    return _field(1, name) + _field(2, _field(1, _field(1, number)))


def _field(number, value):
    """Return a field of a message: an integer, a text, or another message."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value % (1 << 64))
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value):
    """Return an integer in groups of seven bits, the lowest first."""
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])
