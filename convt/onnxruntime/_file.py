"""ONNX models without their large tensors: read from a file or bytes, and written again with the tensors copied from there.

Protobuf messages in Python copy their content several times between reading one file and writing the next. To avoid these
copies, the data of a large tensor stays in the source, and an external_data entry of the tensor records its position there.
A protobuf message is a sequence of fields. Each field begins with a key: field number << 3 | wire type. If a message field
occurs twice, protobuf merges the second occurrence into the first.
"""

import contextlib
import io
import os

import onnx
from google.protobuf.message import Message

from . import _scopes

LARGE = 1 << 10  # bytes; smaller tensors stay in the message, because shape inference and rewriting may read them
_CHUNK = 1 << 20
_LEFT = "left"  # key of the external_data entry that records the offsets of a tensor left in the source: "start end"
_NODE_WORD = "node"  # follows the offsets of the tensor of a Constant node

# Field keys of ModelProto.graph, GraphProto.initializer and GraphProto.node.
_GRAPH, _INITIALIZER, _NODE = 7 << 3 | 2, 5 << 3 | 2, 1 << 3 | 2
# Field keys of TensorProto: name; raw_data, float_data and double_data; dims (also packed), data_type, name, doc_string.
_NAME = 8 << 3 | 2
_DATA = (9 << 3 | 2, 4 << 3 | 2, 10 << 3 | 2)
_PLAIN = (1 << 3, 1 << 3 | 2, 2 << 3, _NAME, 12 << 3 | 2)
# Field keys of NodeProto.attribute and AttributeProto.t; name, type and doc_string of an attribute.
_ATTRIBUTE, _TENSOR = 5 << 3 | 2, 5 << 3 | 2
_ATTRIBUTE_KEYS = {1 << 3 | 2, 20 << 3, 13 << 3 | 2}
_SIZES = {1: 8, 5: 4}  # wire types of fixed size -> bytes
_LONGEST_HEAD = 20  # bytes; the longest key and the varint after it fit


class Source:
    """A model given as a path or as bytes (the other argument is None).

    ``model`` is its ModelProto without the data of large tensors. ``external`` is whether it has data in other files.
    """

    def __init__(self, path, data):
        self.path, self.data, self.state = path, data, None
        with self._opened() as file:
            text = b"".join(_without_data(file))
        self.model = onnx.ModelProto.FromString(text)
        constants = [each for each in self.model.graph.initializer if _NODE_WORD in _place(each)]
        _scopes.list_initializers(self.model, constants)
        self.external = b"location" in text and bool(locations(self.model))

    @contextlib.contextmanager
    def _opened(self):
        """Open the model as a binary file. Raise ValueError if the file on disk changed since it was first opened."""
        with io.BytesIO(self.data) if self.path is None else open(self.path, "rb") as file:
            self._check_unchanged(file)
            yield file
            self._check_unchanged(file)

    def _check_unchanged(self, file):
        found = None if self.path is None else os.fstat(file.fileno())
        state = found and (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
        if self.state not in (None, state):
            raise ValueError("the model file changed while convt read it")
        self.state = state

    def pieces(self, model):
        """Yield the serialized bytes of a rewritten copy of ``self.model``, including its large tensors.

        The large initializers are removed from ``model``, and their data is copied from the source.
        """
        tensors = list(model.graph.initializer)
        del model.graph.initializer[:]
        model.graph.initializer.extend(each for each in tensors if not _place(each))
        yield model.SerializeToString()
        with self._opened() as file:
            for tensor in filter(_place, tensors):
                start, end = map(int, _place(tensor)[:2])
                name = _name(tensor.name)
                size = end - start + len(name)
                head = _head(_INITIALIZER, size)
                yield _head(_GRAPH, len(head) + size) + head
                for at in range(start, end, _CHUNK):
                    yield _read(file, at, min(at + _CHUNK, end))
                yield name


def source_bytes(model):
    """Return the total bytes of the tensors of a model that were left in its source."""
    return sum(int(end) - int(start) for start, end, *_ in filter(None, map(_place, model.graph.initializer)))


def locations(model):
    """Return the external_data entries of a model's tensors that name another file."""
    return [entry for tensor in _tensors(model) for entry in tensor.external_data if entry.key == "location"]


def data_folder(model, path):
    """Return the folder to give ONNX Runtime for the external data of the model at ``path``.

    Data files may be symbolic links. Given a path, ONNX Runtime accepts files whose real path is inside the folder of the
    model, or inside the folder of the file that the model links to. Given a folder, it accepts only files whose real path is
    inside that folder. If some files are outside the model's own folder, this function returns a common parent of both
    folders, and makes the entries of the model relative to it. Raise ValueError for a file that ONNX Runtime would not accept.
    """
    entries = locations(model)
    named = os.path.dirname(os.path.abspath(path))
    folders = [os.path.realpath(named), os.path.dirname(os.path.realpath(path))]
    files = [os.path.realpath(os.path.join(named, entry.value)) for entry in entries]
    for entry, file in zip(entries, files, strict=True):
        if os.path.isabs(entry.value) or not any(os.path.commonpath([file, each]) == each for each in folders):
            raise ValueError(f"its external data {entry.value!r} is outside the model's folder")
    if os.path.commonpath([*files, folders[0]]) == folders[0]:
        return named
    common = os.path.commonpath(folders)
    for entry, file in zip(entries, files, strict=True):
        entry.value = os.path.relpath(file, common)
    return common


def _tensors(message):
    """Yield all tensors of a message, including those of subgraphs and attributes."""
    if isinstance(message, onnx.TensorProto):
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is not None and field.message_type.name in _MAY_HAVE_TENSORS:
            for each in (value,) if isinstance(value, Message) else value:
                yield from _tensors(each)


_MAY_HAVE_TENSORS = {
    "GraphProto", "NodeProto", "AttributeProto", "FunctionProto", "TensorProto", "SparseTensorProto", "TrainingInfoProto",
}  # fmt: skip


def _place(tensor):
    """Return the words that record the position of a tensor that was left in the source; [] for another tensor."""
    return next((each.value.split() for each in tensor.external_data[:1] if each.key == _LEFT), [])


def _without_data(file):
    """Yield the bytes of a model without the data of large tensors."""
    changes = {_INITIALIZER: _without_data_tensor, _NODE: _without_data_constant}
    graph = lambda *place: _field(_GRAPH, b"".join(_with_replacements(*place, changes)))  # noqa: E731
    return _with_replacements(file, 0, file.seek(0, os.SEEK_END), {_GRAPH: graph})


def _with_replacements(file, start, end, changes):
    """Yield the bytes of the message between two offsets of a file, with some of its large fields replaced.

    ``changes`` maps a field key to a function ``(file, start, end)`` of the field's value, which returns the replacement field
    as bytes, or None to keep the field.
    """
    done = start
    for key, at, value, stop in _fields(file, end, start):
        changed = changes[key](file, value, stop) if key in changes and stop - value > LARGE else None
        if changed is not None:
            yield _read(file, done, at)
            yield changed
            done = stop
    yield _read(file, done, end)


def _without_data_tensor(file, start, end, output=None):
    """Return the field of an initializer without its data, or None for a tensor with unexpected fields.

    ``output`` is the name of the initializer for the tensor of a Constant node, and None for another tensor.
    """
    kept, data = [], 0
    for key, at, _, stop in _fields(file, end, start):
        if key in _DATA:
            data += 1
        elif key in _PLAIN:
            kept.append(_read(file, at, stop))
        else:
            return None
    tensor = onnx.TensorProto.FromString(b"".join([*kept, b"" if output is None else _name(output)]))
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key=_LEFT, value=f"{start} {end} {'' if output is None else _NODE_WORD}")
    return _field(_INITIALIZER, tensor.SerializeToString()) if data == 1 else None


def _without_data_constant(file, start, end):
    """Return an initializer field that replaces a Constant node, or None for other nodes.

    ONNX Runtime also replaces Constant nodes by initializers.
    """
    tensors, others = [], []
    for key, at, value, stop in _fields(file, end, start):
        if key != _ATTRIBUTE:
            others.append(_read(file, at, stop))
            continue
        parts = {key: (at, end) for key, _, at, end in _fields(file, stop, value)}
        if tensors or parts.keys() - _ATTRIBUTE_KEYS != {_TENSOR}:
            return None
        tensors.append(parts[_TENSOR])
    node = onnx.NodeProto.FromString(b"".join(others))
    is_constant = tensors and _scopes.is_standard(node, "Constant") and len(node.output) == 1 and node.output[0]
    return _without_data_tensor(file, *tensors[0], node.output[0]) if is_constant and not node.input else None


def _name(name):
    """Encode the name of a tensor. protobuf returns bytes if it is not valid UTF-8."""
    return _field(_NAME, name if isinstance(name, bytes) else name.encode())


def _fields(file, end, at):
    """Yield ``(key, start, start of the value, end)``, in file offsets, of each field of a message."""
    while at < end:
        file.seek(at)
        head = file.read(_LONGEST_HEAD)
        key, skipped = _next_number(head, 0)
        value = at + skipped
        if key & 7 == 2:
            size, skipped = _next_number(head, skipped)
            value = at + skipped
        elif key & 7 == 0:
            size = _next_number(head, skipped)[1] - skipped
        elif key & 7 in _SIZES:
            size = _SIZES[key & 7]
        else:
            raise ValueError(f"not an ONNX model: a field of wire type {key & 7}")
        if value + size > end:
            raise ValueError("not an ONNX model: a field extends past its message")
        yield key, at, value, value + size
        at = value + size


def _next_number(head, at):
    """Decode the varint at offset ``at`` of ``head``, and return its value and the offset of its end."""
    result = shift = 0
    for place in range(at, len(head)):
        byte = head[place]
        result |= (byte & 127) << shift
        if byte < 128:
            return result, place + 1
        shift += 7
    raise ValueError("not an ONNX model: a varint does not end")


def _number(value):
    """Encode an integer as a varint."""
    written = bytearray()
    while value > 127:
        written.append(value & 127 | 128)
        value >>= 7
    written.append(value)
    return bytes(written)


def _head(key, size):
    """Encode what precedes the value of a length-delimited field."""
    return _number(key) + _number(size)


def _field(key, value):
    """Encode a length-delimited field."""
    return _head(key, len(value)) + value


def _read(file, start, end):
    """Return the bytes between two offsets of a file. Raise ValueError if the file is shorter."""
    file.seek(start)
    data = file.read(end - start)
    if len(data) != end - start:
        raise ValueError("not an ONNX model: the file is truncated")
    return data
