"""What crosses between a jail and the process that grades: messages of plain data.

A message is a tree of lists, numbers and strings in JSON, followed by the bytes of its arrays. Reading one runs no
code: there are no pickles and no names to import. An object that is not plain data crosses as an `Opaque`: the name of
its type, and a number by which the jail finds the object again. Both sides use this module; it imports nothing of ours.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import math
import os
import pathlib
import shutil
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import torch

#: Bytes of one message, levels of nesting, entries of one tree: many times what honest answers need.
MAX_MESSAGE, MAX_DEPTH, MAX_ENTRIES = 512 * 2**20, 40, 2_000_000
MAX_TREE = 64 * 2**20
#: Entries of one set or dict with the same hash. Each new one is compared with all of them, inside one call of C.
MAX_SAME_HASH = 100
#: Objects of one message that stay on the other side. Each gets a class of its own where it is received.
MAX_OPAQUE = 10_000
#: Axes of an array: as many as numpy allows.
MAX_AXES = 64
#: Parts of a file's name (shutil.rmtree cannot remove far deeper folders), and files and folders of one message.
MAX_PARTS, MAX_FILES = 20, 5000

_HEADER = struct.Struct("!QI")  # bytes of the whole message after this header, bytes of its JSON

#: What arrays and tensors on the wire may hold. Others stay where they are: `torch.frombuffer` ends its process at a
#: quantized dtype, and numpy makes elements of no size, of other arrays or of objects where their names say so.
_TORCH = (
    "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex32 complex64 "
    "complex128 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz"
)
DTYPES = {name: getattr(torch, name) for name in _TORCH.split() if hasattr(torch, name)}
_NUMPY = "biufcSUmM"
#: A message of at most this many bytes is sent at once: each part would wake the other side.
_ONE_PART = 2**16
CONTAINERS = {kind.__name__: kind for kind in (collections.OrderedDict, collections.Counter, collections.deque)}


def full_name(kind: type) -> str:
    """A class's module and its name in it."""
    return f"{kind.__module__}.{kind.__qualname__}"


class WireError(Exception):
    """The other side sent something that is not a message."""


@dataclasses.dataclass(frozen=True)
class Opaque:
    """An object that stays on the other side: its type's name, and the number to find it by (-1: not kept)."""

    type_name: str
    number: int = -1
    module: str = ""


def send(connection: socket.socket, message: Any, keep: Callable[[Any], int] | None = None) -> None:
    """Send one message. keep: stores an object that cannot cross, returns the number by which it can be found."""
    for part in encoded(message, keep):
        connection.sendall(part)


def encoded(message: Any, keep: Callable[[Any], int] | None = None) -> list[bytes]:
    """The bytes of one message, in parts, as `send` sends them. ValueError if it is too large or too deep."""
    writer = _Writer(keep)
    tree = json.dumps(writer.encode(message), separators=(",", ":")).encode("ascii")
    size = len(tree) + writer.size
    if size > MAX_MESSAGE or len(tree) > MAX_TREE:
        raise ValueError(f"a result of {size >> 20} MiB is too large: at most {MAX_MESSAGE >> 20} MiB are allowed")
    parts = [_HEADER.pack(size, len(tree)) + tree, *writer.buffers]
    return [b"".join(parts)] if size <= _ONE_PART else parts


#: Gives the seconds that are left for a message; none means no limit.
Left = Callable[[], float] | None


def send_all(connection: socket.socket, data: bytes, left: Callable[[], float]) -> None:
    """Send all of this. TimeoutError when no time is left and the other side takes nothing."""
    view = memoryview(data)
    while view:
        connection.settimeout(max(0.01, left()))
        try:
            view = view[connection.send(view) :]
        except TimeoutError:
            if left() <= 0:
                raise


def receive(connection: socket.socket, classes: dict[str, type] | None = None, left: Left = None) -> Any:
    """The next message. classes: dataclasses and named tuples, by name, that it may hold.

    EOFError if the other side has ended, WireError for anything that is not a message, TimeoutError when no time is
    left or, without `left`, after the socket's time-out.
    """
    size, length = _HEADER.unpack(_exactly(connection, _HEADER.size, left))
    if size > MAX_MESSAGE or length > min(size, MAX_TREE):
        raise WireError("a message is too long")
    try:
        body = _exactly(connection, size, left)
        tree = json.loads(body[:length].decode("ascii"))
        return _Reader(memoryview(body)[length:], classes or {}, left).decode(tree)
    except (WireError, EOFError, OSError):
        raise
    except Exception as error:  # of Python, numpy and torch, which see names and sizes that the other side has chosen
        raise WireError(f"a message cannot be read: {type(error).__name__}") from None


def _exactly(connection: socket.socket, size: int, left: Left) -> bytearray:
    data = bytearray(size)
    view, got = memoryview(data), 0
    while got < size:
        if left is not None:  # for the whole message: a sender may send one byte now and then
            if (seconds := left()) <= 0:
                raise TimeoutError
            connection.settimeout(max(0.01, seconds))
        try:
            count = connection.recv_into(view[got:])
        except TimeoutError:
            if left is None or left() <= 0:
                raise
            continue  # the machine is busy: less of the time has passed than the socket has waited
        if not count:
            raise EOFError
        got += count
    return data


class _Writer:
    """Turns objects into a tree and the buffers that follow it."""

    def __init__(self, keep: Callable[[Any], int] | None):
        self.keep, self.entries, self.opaque = keep, 0, 0
        self.buffers: list[bytes] = []
        self.size = 0  # of all buffers together

    def encode(self, value: Any, depth: int = 0) -> Any:
        """The tree of one value: null, true, false, a string or a number as themselves, all else as [kind, …]."""
        kind = type(value)
        if value is None or kind in (bool, str):
            return value
        self.entries += 1
        if depth > MAX_DEPTH or self.entries > MAX_ENTRIES:
            raise ValueError("a result is nested too deeply or has too many entries")
        if kind is int:
            return value if abs(value) < 2**63 else ["i", f"{value:x}"]
        if kind is float:
            return value if math.isfinite(value) else ["f", repr(value)]
        for base, name in ((str, None), (int, None), (float, None), (list, "l"), (tuple, "t"), (bytes, "b")):
            if isinstance(value, base):
                return self._plain(base, name, value, depth)
        return self._other(value, depth)

    def _plain(self, base: Any, name: str | None, value: Any, depth: int) -> Any:
        if isinstance(value, np.generic):
            return self._other(value, depth)
        if base is tuple and hasattr(value, "_fields") and type(value).__module__.startswith(("autograder.", "ranks.")):
            fields = [self.encode(item, depth + 1) for item in tuple.__iter__(value)]
            return ["N", full_name(type(value)), fields]
        if isinstance(value, torch.Size):
            return ["z", [int(item) for item in tuple.__iter__(value)]]
        if base in (str, int, float):  # an instance of a subclass crosses as one of the base class
            return self.encode(base.__str__(value) if base is str else base.__pos__(value), depth)
        if base is bytes:
            return ["b", self._buffer(bytes.__getitem__(value, slice(None)))]
        return [name, [self.encode(item, depth + 1) for item in base.__iter__(value)]]

    def _other(self, value: Any, depth: int) -> Any:
        if isinstance(value, dict):
            items = [[self.encode(k, depth + 1), self.encode(v, depth + 1)] for k, v in dict.items(value)]
            named = type(value).__name__ if type(value) in CONTAINERS.values() else ""
            return ["d", items, named]
        if isinstance(value, (set, frozenset)):
            return ["s" if isinstance(value, set) else "S", [self.encode(item, depth + 1) for item in value]]
        if type(value) is collections.deque:
            return ["q", [self.encode(item, depth + 1) for item in value]]
        if isinstance(value, bytearray):
            return ["B", self._buffer(bytes(value))]
        if isinstance(value, (np.ndarray, np.generic)) and _is_plain(value.dtype):
            return self._array(np.asarray(value), isinstance(value, np.generic))
        dense = isinstance(value, torch.Tensor) and value.layout is torch.strided and value.device.type == "cpu"
        if dense and value.dtype in DTYPES.values():
            return self._tensor(value)
        if isinstance(value, torch.dtype) and value in DTYPES.values():
            return ["y", str(value).removeprefix("torch.")]
        if isinstance(value, np.dtype) and _is_plain(value):
            return ["Y", value.str]
        if value is ...:
            return ["e", 0]
        if type(value) is complex:
            return ["c", [self.encode(value.real), self.encode(value.imag)]]
        if isinstance(value, pathlib.PurePath):
            return ["p", str(value)]
        if type(value) is range and len(value) <= MAX_ENTRIES:
            return ["r", [value.start, value.stop, value.step]]
        ours = type(value).__module__.startswith(("autograder.", "ranks."))
        if ours and dataclasses.is_dataclass(value) and not isinstance(value, type):
            names = [field.name for field in dataclasses.fields(value)]
            return ["D", full_name(type(value)), [[n, self.encode(getattr(value, n), depth + 1)] for n in names]]
        self.opaque += 1
        if self.opaque > MAX_OPAQUE:
            raise ValueError(
                f"a result has too many objects: at most {MAX_OPAQUE:,} that are not plain data are allowed"
            )
        number = self.keep(value) if self.keep else -1
        return ["o", str(type(value).__name__)[:200], number, str(type(value).__module__)[:200]]

    def _array(self, array: np.ndarray, scalar: bool) -> Any:
        order = _permutation(array.strides, array.shape)
        dense = np.ascontiguousarray(array.transpose(order))
        return ["A" if scalar else "a", array.dtype.str, list(array.shape), order, self._buffer(dense.tobytes())]

    def _tensor(self, tensor: torch.Tensor) -> Any:
        plain = tensor.detach().as_subclass(torch.Tensor).resolve_conj().resolve_neg()
        order = _permutation(plain.stride(), plain.shape)
        dense = plain.permute(order).contiguous()
        raw = bytes_of(dense) if dense.numel() else b""
        name = str(plain.dtype).removeprefix("torch.")
        flags = [bool(tensor.requires_grad), isinstance(tensor, torch.nn.Parameter)]
        return ["T", name, list(plain.shape), order, self._buffer(raw), flags]

    def _buffer(self, data: bytes) -> list[int]:
        start, self.size = self.size, self.size + len(data)
        self.buffers.append(data)
        return [start, len(data)]


def bytes_of(dense: torch.Tensor) -> bytes:
    """The bytes of a contiguous tensor, which has elements.

    torch calls a tensor contiguous whatever the strides of its axes of length 1, and cannot view such a one as bytes.
    """
    return dense.as_strided((dense.numel(),), (1,)).view(torch.uint8).numpy().tobytes()


def _permutation(strides: tuple[int, ...], shape: tuple[int, ...]) -> list[int]:
    """The axes from the slowest to the fastest: so a transposed layout crosses as one."""
    axes = range(len(shape))
    if any(size == 0 for size in shape):
        return list(axes)
    return sorted(axes, key=lambda axis: (-abs(strides[axis]) if shape[axis] > 1 else -math.inf, axis))


def _is_plain(dtype: np.dtype) -> bool:
    return dtype.kind in _NUMPY and dtype.names is None and dtype.subdtype is None


def _dtype(name: Any) -> np.dtype:
    dtype = np.dtype(name) if isinstance(name, str) and len(name) <= 20 else None
    if dtype is None or not _is_plain(dtype):
        raise WireError("an array does not hold numbers")
    return dtype


class _Reader:
    """Turns a tree and its buffers into objects."""

    def __init__(self, data: memoryview, classes: dict[str, type], left: Left = None):
        self.data, self.classes, self.left = data, classes, left
        self.entries, self.opaque = 0, 0

    def decode(self, tree: Any, depth: int = 0) -> Any:
        """One value. WireError for a tree that `_Writer` would not have made, TimeoutError when no time is left."""
        if tree is None or isinstance(tree, bool):
            return tree
        if isinstance(tree, str):
            return _whole(tree)
        self.entries += 1
        if self.left is not None and self.entries % 1000 == 0 and self.left() <= 0:
            raise TimeoutError
        if depth > MAX_DEPTH + 1 or self.entries > 2 * MAX_ENTRIES:
            raise WireError("a message is nested too deeply")
        if isinstance(tree, (int, float)):
            return tree
        if not isinstance(tree, list) or not tree or not isinstance(tree[0], str):
            raise WireError("a message cannot be read")
        kind, *rest = tree
        if kind not in self.READERS:
            raise WireError("a message holds an unknown kind of data")
        return self.READERS[kind](self, kind, depth + 1, *rest)

    def _read_number(self, kind: str, depth: int, text: str) -> Any:
        if len(text) > 10_000:
            raise WireError("a number is too long")
        return int(text, 16) if kind == "i" else float(text)

    def _read_items(self, kind: str, depth: int, items: list) -> Any:
        build = {"l": list, "t": tuple, "s": set, "S": frozenset, "q": collections.deque, "z": torch.Size}[kind]
        found = [self.decode(item, depth) for item in items]
        return build(_spread(found) if kind in "sS" else found)

    def _read_dict(self, kind: str, depth: int, items: list, name: str) -> Any:
        found = [(self.decode(key, depth), self.decode(value, depth)) for key, value in items]
        _spread([key for key, _ in found])
        return CONTAINERS.get(name, dict)(dict(found))

    def _read_bytes(self, kind: str, depth: int, place: list) -> Any:
        data = bytes(self._slice(place))
        return bytearray(data) if kind == "B" else data

    def _read_array(self, kind: str, depth: int, name: str, shape: list, order: list, place: list) -> Any:
        dtype = _dtype(name)
        self._check_shape(shape, order)
        dense = np.frombuffer(bytearray(self._slice(place)), dtype).reshape([shape[axis] for axis in order])
        array = dense.transpose(np.argsort(order)) if order else dense
        return array[()] if kind == "A" else array

    def _read_tensor(
        self, kind: str, depth: int, name: str, shape: list, order: list, place: list, flags: list
    ) -> torch.Tensor:
        self._check_shape(shape, order)
        dense = [shape[axis] for axis in order]
        raw, dtype = self._slice(place), DTYPES[name]
        tensor = torch.frombuffer(bytearray(raw), dtype=dtype) if raw.nbytes else torch.empty(0, dtype=dtype)
        tensor = tensor.reshape(dense)
        tensor = tensor.permute([order.index(axis) for axis in range(len(order))]) if order else tensor
        requires_grad, is_parameter = map(bool, flags)
        return torch.nn.Parameter(tensor, requires_grad) if is_parameter else tensor.requires_grad_(requires_grad)

    def _read_special(self, kind: str, depth: int, value: Any) -> Any:
        if kind == "y":
            return DTYPES[value]
        if kind == "Y":
            return _dtype(value)
        if kind == "e":
            return ...
        if kind == "p":
            return pathlib.Path(_whole(str(value)))
        if kind == "c":
            return complex(*(self.decode(part, depth) for part in value))
        found = range(*(int(part) for part in value))
        if len(found) > MAX_ENTRIES:
            raise WireError("a range is too long")
        return found

    def _read_record(self, kind: str, depth: int, name: str, fields: list) -> Any:
        known = self.classes.get(name)
        if known is None:
            raise WireError("a message holds an unknown kind of record")
        if kind == "N":
            return known(*(self.decode(value, depth) for value in fields))
        record: Any = object.__new__(known)
        names = {field.name for field in dataclasses.fields(known)}
        values = {str(field): self.decode(value, depth) for field, value in fields}
        if values.keys() != names:
            raise WireError("a record has the wrong fields")
        for field, value in values.items():
            object.__setattr__(record, field, value)
        return record

    def _read_opaque(self, kind: str, depth: int, name: str, number: int, module: str) -> Opaque:
        self.opaque += 1
        if self.opaque > MAX_OPAQUE:
            raise WireError("a message has too many objects")
        return Opaque(_whole(str(name)), int(number), _whole(str(module)))

    #: Kind → what reads the rest of such a tree.
    READERS: ClassVar[dict[str, Callable[..., Any]]] = {
        **dict.fromkeys("if", _read_number),
        **dict.fromkeys("ltsSqz", _read_items),
        "d": _read_dict,
        **dict.fromkeys("bB", _read_bytes),
        **dict.fromkeys("aA", _read_array),
        "T": _read_tensor,
        **dict.fromkeys("yYcerp", _read_special),
        **dict.fromkeys("DN", _read_record),
        "o": _read_opaque,
    }

    def _check_shape(self, shape: list, order: list) -> None:
        if any(type(size) is not int or size < 0 for size in shape):
            raise WireError("the shape of an array is not valid")
        if math.prod(size or 1 for size in shape) > MAX_MESSAGE:  # an array without elements can have long axes
            raise WireError("an array is too long")
        if len(order) > MAX_AXES or sorted(order) != list(range(len(shape))):
            raise WireError("the order of an array's axes is not valid")

    def _slice(self, place: list) -> memoryview:
        start, length = map(int, place)
        if start < 0 or length < 0 or start + length > len(self.data):
            raise WireError("a message is cut off")
        return self.data[start : start + length]


def _whole(text: str) -> str:
    """`text` with a question mark for each half character, which no file can hold."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _spread(keys: list) -> list:
    """The keys of a set or dict. WireError if too many have the same hash, TypeError if one has none."""
    if len(keys) > MAX_SAME_HASH and max(collections.Counter(map(hash, keys)).values()) > MAX_SAME_HASH:
        raise WireError("too many keys have the same hash")
    return keys


def read_folder(folder: str) -> dict[str, bytes | None]:
    """Every file of a folder with its bytes, every folder in it with None; links and devices are left out."""
    found: dict[str, bytes | None] = {}
    try:
        if not os.listdir(folder):  # as before and after nearly every call: a walk takes ten times as long
            return found
    except OSError:
        return found
    for place, folders, names in os.walk(folder):
        for path in (pathlib.Path(place, name) for name in (*folders, *names)):
            if not path.is_symlink() and (path.is_dir() or path.is_file()):
                found[os.path.relpath(path, folder)] = None if path.is_dir() else path.read_bytes()
    return found


def write_folder(folder: str, files: Any) -> None:
    """Make a folder hold what `read_folder` returned on the other side, and nothing else.

    WireError for a name outside the folder, or one that the folder cannot hold. WireError, before anything is
    written, for more than MAX_FILES names, or a name of more than MAX_PARTS parts.
    """
    if len(files) > MAX_FILES or any(str(name).count("/") >= MAX_PARTS for name in files):
        raise WireError("a folder has too many files or is too deep")
    os.makedirs(folder, exist_ok=True)
    for entry in os.scandir(folder):
        shutil.rmtree(entry.path) if entry.is_dir(follow_symlinks=False) else os.unlink(entry.path)
    root = pathlib.Path(folder)
    for name in sorted(map(str, files)):
        content, path = files[name], pathlib.Path(os.path.normpath(root / name))
        if root not in path.parents or "\0" in name or not isinstance(content, (bytes, type(None))):
            raise WireError("a file is not valid")
        try:
            (path if content is None else path.parent).mkdir(parents=True, exist_ok=True)
            if content is not None:
                path.write_bytes(content)
        except OSError:  # a name that this system refuses, or a file where a folder should be
            raise WireError("a file cannot be written") from None


def leaves(value: Any) -> Iterator[Any]:
    """The arrays among arguments. Both sides number them in this order."""
    return (one for one in _walk(value, 0) if isinstance(one, (np.ndarray, torch.Tensor)))


def holders(value: Any) -> Iterator[Any]:
    """The lists and dicts among arguments, in the same order on both sides."""
    return (one for one in _walk(value, 0) if type(one) in (list, dict))


def _walk(value: Any, depth: int) -> Iterator[Any]:
    yield value
    if depth == 10:
        return
    if isinstance(value, (list, tuple)):
        inside = value
    else:
        inside = [value[key] for key in sorted(value, key=repr)] if isinstance(value, dict) else ()
    for one in inside:
        yield from _walk(one, depth + 1)
