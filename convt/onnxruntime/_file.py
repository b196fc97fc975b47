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
_LEFT = "left"  # key of the external_data entry that records the position of a tensor left in the source: "start end"
_NODE_WORD = "node"  # follows the position of the tensor of a Constant node

# Field keys of ModelProto.graph, GraphProto.initializer and GraphProto.node.
_GRAPH, _INITIALIZER, _NODE = 7 << 3 | 2, 5 << 3 | 2, 1 << 3 | 2
# Field keys of TensorProto: name; raw_data, float_data and double_data; dims (unpacked and packed), data_type, name and
# doc_string; external_data; and the encoded field data_location = EXTERNAL.
_NAME = 8 << 3 | 2
_DATA = (9 << 3 | 2, 4 << 3 | 2, 10 << 3 | 2)
_PLAIN = (1 << 3, 1 << 3 | 2, 2 << 3, _NAME, 12 << 3 | 2)
_EXTERNAL = 13 << 3 | 2
_IS_EXTERNAL = (bytes([14 << 3]), bytes([onnx.TensorProto.EXTERNAL]))
# Field keys of a Constant node: output and attribute; in the attribute the tensor, and its name, type and doc_string; op_type
# and domain with their permitted values; name and doc_string, which are ignored.
_OUTPUT, _ATTRIBUTE, _TENSOR = 2 << 3 | 2, 5 << 3 | 2, 5 << 3 | 2
_ATTRIBUTE_KEYS = (1 << 3 | 2, 20 << 3, 13 << 3 | 2)
_REQUIRED = {4 << 3 | 2: (b"Constant",), 7 << 3 | 2: (b"", b"ai.onnx")}
_IGNORED = (3 << 3 | 2, 6 << 3 | 2)
_SIZES = {1: 8, 5: 4}  # wire types of fixed size -> bytes
_HEAD = 20  # bytes; the longest key and the varint after it fit


class Source:
    """A model given as a path or as bytes (the other argument is None).

    ``model`` is its ModelProto without the data of large tensors. ``external`` is whether it has data in other files.
    """

    def __init__(self, path, data):
        self.path, self.data, self.state = path, data, None
        with self._opened() as file:
            text = b"".join(_without_data(file))
        self.model = onnx.ModelProto.FromString(text)
        constants = [each for each in self.model.graph.initializer if _is_in_source(each) and _is_of_node(each)]
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
        model.graph.initializer.extend(each for each in tensors if not _is_in_source(each))
        yield model.SerializeToString()
        with self._opened() as file:
            for tensor in filter(_is_in_source, tensors):
                start, end = _source_range(tensor)
                name = tensor.name  # protobuf returns bytes if they are not valid UTF-8
                name = _field(_NAME, name if isinstance(name, bytes) else name.encode())
                head = _number(_INITIALIZER) + _number(end - start + len(name))
                yield _number(_GRAPH) + _number(len(head) + end - start + len(name)) + head
                for at in range(start, end, _CHUNK):
                    yield _read(file, at, min(at + _CHUNK, end))
                yield name


def source_bytes(model):
    """Return the total bytes of the tensors of a model that were left in its source."""
    return sum(end - start for start, end in (_source_range(each) for each in model.graph.initializer if _is_in_source(each)))


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
        if os.path.isabs(entry.value) or not any(_within(file, each) for each in folders):
            raise ValueError(f"its external data {entry.value!r} is outside the model's folder")
    if all(_within(file, folders[0]) for file in files):
        return named
    common = os.path.commonpath(folders)
    for entry, file in zip(entries, files, strict=True):
        entry.value = os.path.relpath(file, common)
    return common


def _within(file, folder):
    return os.path.commonpath([file, folder]) == folder


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


def _is_in_source(tensor):
    return bool(tensor.external_data) and tensor.external_data[0].key == _LEFT


def _source_range(tensor):
    """Return the start and end offsets, in the source, of the message of a tensor that was left there."""
    start, end = tensor.external_data[0].value.split()[:2]
    return int(start), int(end)


def _is_of_node(tensor):
    """Check whether a tensor that was left in the source is that of a Constant node."""
    return tensor.external_data[0].value.endswith(_NODE_WORD)


def _without_data(file):
    """Yield the bytes of a model without the data of large tensors."""
    graph = lambda *place: _field(_GRAPH, b"".join(_without_data_graph(*place)))  # noqa: E731
    return _with_replacements(file, 0, file.seek(0, os.SEEK_END), {_GRAPH: graph})


def _without_data_graph(file, start, end):
    return _with_replacements(file, start, end, {_INITIALIZER: _without_data_tensor, _NODE: _without_data_constant})


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


def _without_data_tensor(file, start, end, name=b""):
    """Return the field of an initializer without its data, or None for a tensor with unexpected fields.

    ``name`` is an encoded name field for the tensor of a Constant node.
    """
    kept, data = [], 0
    for key, at, _, stop in _fields(file, end, start):
        if key in _DATA:
            data += 1
        elif key in _PLAIN:
            kept.append(_read(file, at, stop))
        else:
            return None
    word = f" {_NODE_WORD}" if name else ""
    place = _field(1 << 3 | 2, _LEFT.encode()) + _field(2 << 3 | 2, f"{start} {end}{word}".encode())
    lean = b"".join([*kept, name, _field(_EXTERNAL, place), *_IS_EXTERNAL])
    return _field(_INITIALIZER, lean) if data == 1 else None


def _without_data_constant(file, start, end):
    """Return an initializer field that replaces a Constant node, or None for other nodes.

    ONNX Runtime also replaces Constant nodes by initializers.
    """
    output = tensor = None
    for key, _, value, stop in _fields(file, end, start):
        if key == _ATTRIBUTE and tensor is None:
            parts = {key: (at, end) for key, _, at, end in _fields(file, stop, value)}
            tensor = parts.pop(_TENSOR, None)
            if tensor is None or not parts.keys() <= {*_ATTRIBUTE_KEYS}:
                return None
        elif key == _OUTPUT and output is None:
            output = _read(file, value, stop)
        elif key in _IGNORED:
            pass
        elif key not in _REQUIRED or _read(file, value, stop) not in _REQUIRED[key]:
            return None
    return None if tensor is None or not output else _without_data_tensor(file, *tensor, _field(_NAME, output))


def _fields(file, end, at):
    """Yield ``(key, start, start of the value, end)``, in file offsets, of each field of a message."""
    while at < end:
        file.seek(at)
        head = file.read(_HEAD)
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


def _field(key, value):
    """Encode a length-delimited field."""
    return _number(key) + _number(len(value)) + value


def _read(file, start, end):
    """Return the bytes between two offsets of a file. Raise ValueError if the file is shorter."""
    file.seek(start)
    data = file.read(end - start)
    if len(data) != end - start:
        raise ValueError("not an ONNX model: the file is truncated")
    return data
