"""Models without their large tensors: read from a file or bytes, and written again with the tensors copied from there.

Python's messages copy all that they are made of, several times on the way from one file to the next. So a tensor's data is left
where it lies, and an entry of the tensor's external data says where. A message in ONNX's format is a sequence of fields,
each behind a key with its number and kind; a field that occurs twice goes on with the first one.
"""

import io
import os

import onnx
from google.protobuf.message import Message

LARGE = 1 << 16  # bytes: smaller tensors stay in the message, where shape inference and the rewriting may read them
_CHUNK = 1 << 20
_LEFT = "left"  # the entry of a tensor whose data was left: the data's key, place and length
_GRAPH, _INITIALIZER = 7 << 3 | 2, 5 << 3 | 2  # keys of a model's graph and of a graph's tensors
_DATA = {9 << 3 | 2: "raw_data", 4 << 3 | 2: "float_data", 10 << 3 | 2: "double_data"}  # keys of a tensor's data
_ALL_DATA = ("raw_data", "float_data", "double_data", "int32_data", "int64_data", "uint64_data", "string_data", "external_data")
_SIZES = {1: 8, 5: 4}  # kinds of fields of one size


class Source:
    """A model as it was given, a path or bytes: `model`, the message without its large tensors."""

    def __init__(self, path, data):
        self.path, self.data = path, data
        with self._open() as file:
            text = b"".join(_lean(file))
        self.model = onnx.ModelProto.FromString(text)
        self.external = b"location" in text and bool(locations(self.model))  # whether it has data in other files

    def _open(self):
        return io.BytesIO(self.data) if self.path is None else open(self.path, "rb")

    def pieces(self, model):
        """The bytes of a model that was made of `model`, in pieces, its large tensors in it; they leave the message."""
        large = [each for each in model.graph.initializer if _is_left(each)]
        small = [each for each in model.graph.initializer if not _is_left(each)]
        del model.graph.initializer[:]
        model.graph.initializer.extend(small)
        yield model.SerializeToString()
        with self._open() as file:
            for tensor in large:
                key, at, size = _place(tensor)
                tensor.ClearField("external_data")
                tensor.ClearField("data_location")
                head = tensor.SerializeToString() + _number(key) + _number(size)
                head = _number(_INITIALIZER) + _number(len(head) + size) + head
                yield _number(_GRAPH) + _number(len(head) + size) + head
                for start in range(at, at + size, _CHUNK):
                    yield _read(file, start, min(start + _CHUNK, at + size))


def left(model):
    """How many bytes of a model's tensors were left where they lie."""
    return sum(_place(each)[2] for each in model.graph.initializer if _is_left(each))


def locations(model):
    """The entries of a model's tensors that say in which other file their data lies."""
    return [entry for tensor in _tensors(model) for entry in tensor.external_data if entry.key == "location"]


def folder(model, path):
    """The folder in which a model at a path finds its external data.

    Files may be links. ONNX Runtime takes those that end in the folder of the model, or of the file that the model is a link
    to; told a folder, it takes those that end in there. So where files end elsewhere, the model's entries become relative to a
    folder that has both. ValueError where ONNX Runtime would not take a file.
    """
    entries = locations(model)
    named = os.path.dirname(os.path.abspath(path))
    folders = [os.path.realpath(named), os.path.dirname(os.path.realpath(path))]
    files = [os.path.realpath(os.path.join(named, entry.value)) for entry in entries]
    for entry, file in zip(entries, files, strict=True):
        if os.path.isabs(entry.value) or not any(_within(file, each) for each in folders):
            raise ValueError(f"its external data {entry.value!r} lies outside its folder")
    if all(_within(file, folders[0]) for file in files):
        return named
    common = os.path.commonpath(folders)
    for entry, file in zip(entries, files, strict=True):
        entry.value = os.path.relpath(file, common)
    return common


def _within(file, folder):
    return os.path.commonpath([file, folder]) == folder


def _tensors(message):
    """All tensors of a message, those of subgraphs and attributes among them."""
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


def _is_left(tensor):
    return bool(tensor.external_data) and tensor.external_data[0].key == _LEFT


def _place(tensor):
    """Where the data lies that was left: its key, its place in the file and its length."""
    return tuple(map(int, tensor.external_data[0].value.split()))


def _lean(file):
    """A model's bytes in pieces, without the data of large tensors."""
    for key, start, value, end in _fields(file, file.seek(0, os.SEEK_END), 0):
        if key == _GRAPH:
            graph = b"".join(_lean_graph(file, value, end))
            yield _number(key) + _number(len(graph)) + graph
        else:
            yield _read(file, start, end)


def _lean_graph(file, start, end):
    for key, at, value, stop in _fields(file, end, start):
        if key == _INITIALIZER and stop - value > LARGE:
            tensor = _lean_tensor(file, value, stop)
            yield _number(key) + _number(len(tensor)) + tensor
        else:
            yield _read(file, at, stop)


def _lean_tensor(file, start, end):
    kept, data = [], []
    for key, at, value, stop in _fields(file, end, start):
        if key in _DATA and stop - value > LARGE:
            data.append((key, value, stop - value))
        else:
            kept.append(_read(file, at, stop))
    tensor = onnx.TensorProto.FromString(b"".join(kept))
    if len(data) != 1 or any(len(getattr(tensor, name)) for name in _ALL_DATA):
        return _read(file, start, end)  # such a tensor is not the usual one: it stays as it is
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key=_LEFT, value=" ".join(map(str, data[0])))
    return tensor.SerializeToString()


def _fields(file, end, at):
    """The fields of a message from one place of a file to another: their keys, starts, their values' starts, and ends."""
    while at < end:
        file.seek(at)
        key = _next_number(file)
        value = file.tell()
        if key & 7 == 2:
            size = _next_number(file)
            value = file.tell()
        elif key & 7 == 0:
            _next_number(file)
            size = file.tell() - value
        elif key & 7 in _SIZES:
            size = _SIZES[key & 7]
        else:
            raise ValueError(f"not a model: a field of kind {key & 7}")
        if value + size > end:
            raise ValueError("not a model: a field goes on behind its end")
        yield key, at, value, value + size
        at = value + size


def _next_number(file):
    result = shift = 0
    while True:
        byte = file.read(1)
        if not byte or shift > 63:
            raise ValueError("not a model: a number has no end")
        result |= (byte[0] & 127) << shift
        if byte[0] < 128:
            return result
        shift += 7


def _number(value):
    written = bytearray()
    while value > 127:
        written.append(value & 127 | 128)
        value >>= 7
    written.append(value)
    return bytes(written)


def _read(file, start, end):
    file.seek(start)
    data = file.read(end - start)
    if len(data) != end - start:
        raise ValueError("not a model: the file ends too early")
    return data
