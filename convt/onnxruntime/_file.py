"""Models without their large tensors: read from a file or bytes, and written again with the tensors copied from there.

Python's messages copy all that they are made of, several times on the way from one file to the next. So a tensor's data is left
where it lies, and an entry of the tensor's external data says where. A message in ONNX's format is a sequence of fields,
each behind a key with its number and kind; a field that occurs twice goes on with the first one.
"""

import contextlib
import io
import os

import onnx
from google.protobuf.message import Message

LARGE = 1 << 10  # bytes: smaller tensors stay in the message, where shape inference and the rewriting may read them
_CHUNK = 1 << 20
_LEFT = "left"  # the entry of a tensor whose data was left: where the whole tensor lies

# Keys of fields, by the numbers and kinds that ONNX gives them. In a model the graph; in a graph initializers and nodes:
_GRAPH, _INITIALIZER, _NODE = 7 << 3 | 2, 5 << 3 | 2, 1 << 3 | 2
# In a tensor its name; its data as raw_data, float_data and double_data; dims (as numbers or in one), data_type, name and
# doc_string; external_data; data_location, with the value that says: elsewhere.
_NAME = 8 << 3 | 2
_DATA = (9 << 3 | 2, 4 << 3 | 2, 10 << 3 | 2)
_PLAIN = (1 << 3, 1 << 3 | 2, 2 << 3, _NAME, 12 << 3 | 2)
_EXTERNAL = 13 << 3 | 2
_ELSEWHERE = (bytes([14 << 3]), bytes([onnx.TensorProto.EXTERNAL]))
# In a Constant node its output; its attribute, with a tensor, and the name, type and doc_string of that; op_type and domain,
# with their words; its name and doc_string.
_OUTPUT, _ATTRIBUTE, _TENSOR = 2 << 3 | 2, 5 << 3 | 2, 5 << 3 | 2
_OF_ATTRIBUTE = (1 << 3 | 2, 20 << 3, 13 << 3 | 2)
_SAYS = {4 << 3 | 2: (b"Constant",), 7 << 3 | 2: (b"", b"ai.onnx")}
_SAYS_NOTHING = (3 << 3 | 2, 6 << 3 | 2)
_SIZES = {1: 8, 5: 4}  # kinds of fields of one size
_HEAD = 20  # bytes in which a key and a number behind it end


class Source:
    """A model as it was given, a path or bytes: `model`, the message without its large tensors."""

    def __init__(self, path, data):
        self.path, self.data, self.state = path, data, None
        with self._opened() as file:
            text = b"".join(_lean(file))
        self.model = onnx.ModelProto.FromString(text)
        self.external = b"location" in text and bool(locations(self.model))  # whether it has data in other files

    @contextlib.contextmanager
    def _opened(self):
        """The model as a file, which is the same one, unchanged, before and after."""
        with io.BytesIO(self.data) if self.path is None else open(self.path, "rb") as file:
            self._compare(file)
            yield file
            self._compare(file)

    def _compare(self, file):
        found = None if self.path is None else os.fstat(file.fileno())
        state = found and (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
        if self.state not in (None, state):
            raise ValueError("the model's file changed while it was read")
        self.state = state

    def pieces(self, model):
        """The bytes of a model that was made of `model`, in pieces, its large tensors in it; they leave the message."""
        tensors = list(model.graph.initializer)
        del model.graph.initializer[:]
        model.graph.initializer.extend(each for each in tensors if not _is_left(each))
        yield model.SerializeToString()
        with self._opened() as file:
            for tensor in filter(_is_left, tensors):
                start, end = _place(tensor)
                name = tensor.name  # protobuf gives bytes where they are no text
                name = _field(_NAME, name if isinstance(name, bytes) else name.encode())
                head = _number(_INITIALIZER) + _number(end - start + len(name))
                yield _number(_GRAPH) + _number(len(head) + end - start + len(name)) + head
                for at in range(start, end, _CHUNK):
                    yield _read(file, at, min(at + _CHUNK, end))
                yield name


def left(model):
    """Counts the bytes of a model's tensors that were left where they lie."""
    return sum(end - start for start, end in (_place(each) for each in model.graph.initializer if _is_left(each)))


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
    """The start and the end of the message of a tensor whose data was left."""
    start, end = tensor.external_data[0].value.split()
    return int(start), int(end)


def _lean(file):
    """A model's bytes in pieces, without the data of large tensors."""
    return _with(file, 0, file.seek(0, os.SEEK_END), {_GRAPH: lambda *place: _field(_GRAPH, b"".join(_lean_graph(*place)))})


def _lean_graph(file, start, end):
    return _with(file, start, end, {_INITIALIZER: _lean_tensor, _NODE: _lean_constant})


def _with(file, start, end, changes):
    """The bytes of a message in pieces, large fields of some keys changed.

    ``changes`` has functions by key, which make a field of the place of another's value; None leaves it as it is.
    """
    done = start
    for key, at, value, stop in _fields(file, end, start):
        changed = changes[key](file, value, stop) if key in changes and stop - value > LARGE else None
        if changed is not None:
            yield _read(file, done, at)
            yield changed
            done = stop
    yield _read(file, done, end)


def _lean_tensor(file, start, end, name=b""):
    """An initializer without its data; None for a tensor that is not as usual."""
    kept, data = [], 0
    for key, at, _, stop in _fields(file, end, start):
        if key in _DATA:
            data += 1
        elif key in _PLAIN:
            kept.append(_read(file, at, stop))
        else:
            return None
    place = _field(1 << 3 | 2, _LEFT.encode()) + _field(2 << 3 | 2, f"{start} {end}".encode())
    lean = b"".join([*kept, name, _field(_EXTERNAL, place), *_ELSEWHERE])
    return _field(_INITIALIZER, lean) if data == 1 else None


def _lean_constant(file, start, end):
    """An initializer in the place of a Constant node, as ONNX Runtime makes it, too; None for other nodes."""
    output = tensor = None
    for key, _, value, stop in _fields(file, end, start):
        if key == _ATTRIBUTE and tensor is None:
            parts = {key: (at, end) for key, _, at, end in _fields(file, stop, value)}
            tensor = parts.pop(_TENSOR, None)
            if tensor is None or not parts.keys() <= {*_OF_ATTRIBUTE}:
                return None
        elif key == _OUTPUT and output is None:
            output = _read(file, value, stop)
        elif key in _SAYS_NOTHING:
            pass
        elif key not in _SAYS or _read(file, value, stop) not in _SAYS[key]:
            return None
    return None if tensor is None or not output else _lean_tensor(file, *tensor, _field(_NAME, output))


def _fields(file, end, at):
    """The fields of a message from one place of a file to another: their keys, starts, their values' starts, and ends."""
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
            raise ValueError(f"not a model: a field of kind {key & 7}")
        if value + size > end:
            raise ValueError("not a model: a field goes on behind its end")
        yield key, at, value, value + size
        at = value + size


def _next_number(head, at):
    """A number of a few bytes, the last of which is below 128, and where it ends."""
    result = shift = 0
    for place in range(at, len(head)):
        byte = head[place]
        result |= (byte & 127) << shift
        if byte < 128:
            return result, place + 1
        shift += 7
    raise ValueError("not a model: a number has no end")


def _number(value):
    written = bytearray()
    while value > 127:
        written.append(value & 127 | 128)
        value >>= 7
    written.append(value)
    return bytes(written)


def _field(key, value):
    return _number(key) + _number(len(value)) + value


def _read(file, start, end):
    file.seek(start)
    data = file.read(end - start)
    if len(data) != end - start:
        raise ValueError("not a model: the file ends too early")
    return data
