"""Inside a rank: a checkpoint as the tensors of a state and back, and what a call of the student's did."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import inspect
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from autograder.checks.instruments.filesystem import namespaces

from .format import Saved


def state_of(saved: Saved, rank: int) -> dict:
    """A rank's state, values and tensors mixed; every second tensor is a slice of a longer one."""
    tensors = {}
    for number, (name, (dtype, data)) in enumerate(saved.pieces[rank].items()):
        kind = getattr(torch, dtype)
        tensor = torch.frombuffer(bytearray(data), dtype=kind) if data else torch.empty(0, dtype=kind)
        long = torch.zeros(len(tensor) + 5, dtype=kind)
        long[3 : 3 + len(tensor)] = tensor
        tensors[name] = long[3 : 3 + len(tensor)] if number % 2 else tensor
    values = copy.deepcopy(saved.values)
    first = next(iter(values), None)
    return ({first: values.pop(first)} if values else {}) | tensors | values


def plain(state: Any) -> Any:
    """A state with its tensors as [dtype's name, bytes in hex]; what it is instead, if it is no dict."""
    if not isinstance(state, dict):
        return f"a {type(state).__name__}"
    return {name: _piece(value) if isinstance(value, torch.Tensor) else value for name, value in state.items()}


def plain_of(saved: Saved, rank: int, values: bool = True) -> dict:
    """What `plain` makes of a rank's state."""
    pieces = {name: [dtype, data.hex()] for name, (dtype, data) in saved.pieces[rank].items()}
    return pieces | (saved.values if values else {})


def _piece(value: torch.Tensor) -> list[str]:
    data = value.detach().contiguous().view(torch.uint8).numpy().tobytes() if value.numel() else b""
    return [str(value.dtype).removeprefix("torch."), data.hex()]


def told(function: Callable, *args: Any) -> tuple[Any, str]:
    """What a call returned, and "", or None and the sentence that it raised, with paths cut to their last names."""
    try:
        return function(*args), ""
    except NotImplementedError:
        raise
    except Exception as error:
        kinds = " ".join(kind.__name__ for kind in type(error).__mro__)
        return None, f"{'CheckpointError' if 'CheckpointError' in kinds else type(error).__name__}: {_short(error)}"


def _short(error: Exception) -> str:
    return re.sub(r"[^\s'\"]*/", "", str(error))


def refused(mentions: tuple[str, ...], function: Callable, *args: Any) -> str:
    """Nothing if a call raises a CheckpointError that contains all of this, numbers as words; else what it did."""
    _, said = told(function, *args)
    if not said.startswith("CheckpointError: "):
        return f"expected a CheckpointError, got {said}" if said else "no CheckpointError was raised"
    text = said.removeprefix("CheckpointError: ")
    for word in mentions:
        if not re.search(rf"(?<!\w){word}(?!\w)" if word.isdigit() else re.escape(word), text):
            return f"the CheckpointError should contain {word!r}, but it says {text!r}"
    return ""


# ---- right functions in place of a student's ----


@contextlib.contextmanager
def fair(function: Any, **right: Callable) -> Iterator[None]:
    """Inside, what an answer calls of exercise 1 is right, and so is what is named: their faults cost elsewhere.

    A function of the student's that takes other arguments than the statement says stays: its caller counts on them.
    """
    replaced = []
    for space in namespaces((function,)):
        error = space.get("CheckpointError", RuntimeError)
        read_shard = lambda folder, entry, error=error: _read_shard(folder, entry, error)  # noqa: E731
        names = {"write_durably": _write_durably, "write_shard": _write_shard, "read_shard": read_shard, **right}
        own = {name: space[name] for name in names if _takes(space.get(name), ARGUMENTS.get(name))}
        space.update({name: names[name] for name in own})
        replaced.append((space, own))
    try:
        yield
    finally:
        for space, own in replaced:
            space.update(own)


#: What the functions of exercise 1 take.
ARGUMENTS = {
    "write_durably": ["path", "data"],
    "write_shard": ["folder", "rank", "tensors"],
    "read_shard": ["folder", "entry"],
}


def _takes(function: Any, names: list[str] | None) -> bool:
    return callable(function) and (names is None or list(inspect.signature(function).parameters) == names)


def _write_durably(path: Any, data: bytes) -> str:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return hashlib.sha256(data).hexdigest()


def _write_shard(folder: Any, rank: int, tensors: dict) -> dict:
    data, table, file = b"", {}, f"shard_{rank:05d}.bin"
    for name, tensor in tensors.items():
        dtype, text = _piece(tensor)
        table[name] = {"dtype": dtype, "offset": len(data), "numel": tensor.numel()}
        data += bytes.fromhex(text)
    digest = _write_durably(Path(folder, file), data)
    return {"rank": rank, "file": file, "bytes": len(data), "sha256": digest, "tensors": table}


def _read_shard(folder: Any, entry: dict, error: type[Exception]) -> dict:
    path = Path(folder, entry["file"])
    data = path.read_bytes() if path.is_file() else b""
    if (len(data), hashlib.sha256(data).hexdigest()) != (entry["bytes"], entry["sha256"]):
        raise error(f"{path} is missing or damaged")
    found = {}
    for name, place in entry["tensors"].items():
        dtype = getattr(torch, place["dtype"])
        piece = bytearray(data[place["offset"] :][: place["numel"] * dtype.itemsize])
        found[name] = torch.frombuffer(piece, dtype=dtype) if piece else torch.empty(0, dtype=dtype)
    return found
