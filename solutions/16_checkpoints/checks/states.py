"""Inside a rank: a checkpoint as the tensors of a state and back, and what a call of the student's did."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import torch

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
