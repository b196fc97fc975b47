"""Models without their large tensors: read from a file or bytes, and written again with the tensors copied from there.

Python's messages copy all that they are made of, several times on the way from one file to the next. So a tensor's data is left
where it lies, and an entry of the tensor's external data says where. A message in ONNX's format is a sequence of fields,
each behind a key with its number and kind; a field that occurs twice goes on with the first one.
"""

import io
import os
from functools import partial

import onnx
from google.protobuf.message import Message

LARGE = 1 << 10  # bytes: smaller tensors stay in the message, where shape inference and the rewriting may read them
_CHUNK = 1 << 20
_LEFT = "left"  # the entry of a tensor whose data was left: where the whole tensor lies
_GRAPH, _INITIALIZER = 7 << 3 | 2, 5 << 3 | 2  # keys of a model's graph and of a graph's tensors
# Keys of a tensor's fields: its data as raw_data, float_data and double_data; dims (as numbers or in one), data_type, name and
# doc_string; external_data. The last one is data_location, and its value that says: elsewhere.
_DATA = (9 << 3 | 2, 4 << 3 | 2, 10 << 3 | 2)
_PLAIN = (1 << 3, 1 << 3 | 2, 2 << 3, 8 << 3 | 2, 12 << 3 | 2)
_EXTERNAL = 13 << 3 | 2
_ELSEWHERE = (bytes([14 << 3]), bytes([onnx.TensorProto.EXTERNAL]))
_SIZES = {1: 8, 5: 4}  # kinds of fields of one size
_HEAD = 20  # bytes in which a key and a number behind it end


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
        tensors = list(model.graph.initializer)
        del model.graph.initializer[:]
        model.graph.initializer.extend(each for each in tensors if not _is_left(each))
        yield model.SerializeToString()
        with self._open() as file:
            for start, end in _joined(_place(each) for each in tensors if _is_left(each)):
                yield _number(_GRAPH) + _number(end - start)
                for at in range(start, end, _CHUNK):
                    yield _read(file, at, min(at + _CHUNK, end))


def left(model):
    """How many bytes of a model's tensors were left where they lie."""
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
    """The start and the end of the field that is the tensor whose data was left."""
    start, end = tensor.external_data[0].value.split()
    return int(start), int(end)


def _joined(places):
    """Places, those in one that follow one another."""
    before = None
    for start, end in places:
        if before is not None and before[1] == start:
            before = before[0], end
            continue
        if before is not None:
            yield before
        before = start, end
    if before is not None:
        yield before


def _lean(file):
    """A model's bytes in pieces, without the data of large tensors."""
    end = file.seek(0, os.SEEK_END)
    tensor = partial(_lean_tensor, file)
    return _with(file, 0, end, _GRAPH, lambda _, start, end: b"".join(_with(file, start, end, _INITIALIZER, tensor)))


def _with(file, start, end, wanted, change):
    """The bytes of a message in pieces, with others in the place of its large fields of one key.

    ``change(start, where its value starts, end)`` makes the value of another from that of such a field.
    """
    done = start
    for key, at, value, stop in _fields(file, end, start):
        if key == wanted and stop - value > LARGE:
            yield _read(file, done, at)
            changed = change(at, value, stop)
            yield _number(key) + _number(len(changed)) + changed
            done = stop
    yield _read(file, done, end)


def _lean_tensor(file, field, start, end):
    kept, data = [], 0
    for key, at, _, stop in _fields(file, end, start):
        if key in _DATA:
            data += 1
        elif key in _PLAIN:
            kept.append(_read(file, at, stop))
        else:
            data = 2
    if data != 1:
        return _read(file, start, end)  # this is not the usual tensor: it stays as it is
    told = f"{field} {end}".encode()
    entry = b"\x0a" + _number(len(_LEFT)) + _LEFT.encode() + b"\x12" + _number(len(told)) + told
    return b"".join([*kept, _number(_EXTERNAL), _number(len(entry)), entry, *_ELSEWHERE])


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


def _read(file, start, end):
    file.seek(start)
    data = file.read(end - start)
    if len(data) != end - start:
        raise ValueError("not a model: the file ends too early")
    return data
