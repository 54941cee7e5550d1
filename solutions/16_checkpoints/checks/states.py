"""Inside a rank: a checkpoint as the tensors of a state and back, and what a call of the student's did."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from autograder.checking.expect import fail
from autograder.checks.checkpoints.format import Saved

# ---- tensors ----


def _tensor(dtype: str, data: bytes) -> torch.Tensor:
    kind = getattr(torch, dtype)
    return torch.frombuffer(bytearray(data), dtype=kind) if data else torch.empty(0, dtype=kind)


def state_of(saved: Saved, rank: int) -> dict:
    """A rank's state, values and tensors mixed: one is strided, some are slices, one of which requires a gradient."""
    tensors = {name: _tensor(*piece) for name, piece in saved.pieces[rank].items()}
    for name, style in zip(list(tensors), ("strided", "slice", "plain", "slice", "gradient"), strict=False):
        numel = len(tensors[name])
        if style == "strided" and numel > 1:  # torch takes a shorter one for contiguous, whatever its stride
            wide = torch.zeros(2 * numel, dtype=tensors[name].dtype)
            wide[::2] = tensors[name]
            tensors[name] = wide[::2]
        elif style == "slice":
            long = torch.zeros(numel + 5, dtype=tensors[name].dtype)
            long[3 : 3 + numel] = tensors[name]
            tensors[name] = long[3 : 3 + numel]
        elif style == "gradient":
            whole = torch.cat([tensors[name], tensors[name]]).requires_grad_()
            tensors[name] = whole[:numel]  # no leaf
    values = copy.deepcopy(saved.values)
    first = next(iter(values))
    return {first: values.pop(first), **tensors, **values}


def piece_of(value: torch.Tensor) -> tuple[str, bytes]:
    """A tensor as (dtype's name, bytes)."""
    dense = value.detach().clone(memory_format=torch.contiguous_format)
    return str(value.dtype).removeprefix("torch."), dense.view(torch.uint8).numpy().tobytes() if value.numel() else b""


def pieces_of(state: dict) -> dict[str, tuple[str, bytes]]:
    """The tensors of a state, each as (dtype's name, bytes)."""
    return {name: piece_of(value) for name, value in state.items() if isinstance(value, torch.Tensor)}


def plain_state(state: Any) -> tuple[dict, dict] | str:
    """A state that was loaded, as (pieces, values); or, after "returned", what is wrong with it."""
    if not isinstance(state, dict):
        return f"a {type(state).__name__}, not a dict"
    tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
    for name, value in tensors.items():
        if value.dim() != 1:
            return f"{name!r} with {value.dim()} dimensions, expected 1"
    plain = pieces_of(state)
    # Memory of its own, which can be written to. Python keeps one object for each bytes of length 1, so no bytes here.
    views = {name: value.detach().view(torch.uint8) for name, value in tensors.items() if value.numel()}
    before = {name: view.clone() for name, view in views.items()}
    for name, view in views.items():
        view.bitwise_xor_(1)
        if any(not torch.equal(views[other], before[other]) for other in views if other != name):
            return f"{name!r} in memory that it shares with another tensor"
        view.bitwise_xor_(1)
    return plain, {name: value for name, value in state.items() if name not in tensors}


# ---- calls ----


@dataclass
class Attempt:
    """What a call did: it returned `value`, or it raised an error of these classes, the most special first."""

    value: Any = None
    errors: tuple[str, ...] = ()
    text: str = ""

    @property
    def raised(self) -> str:
        """The name of the error, "" if the call returned."""
        return self.errors[0] if self.errors else ""


def attempt(function: Callable, *args: Any, plain: Callable[[Any], Any] = lambda value: value) -> Attempt:
    """Call a function of the student's. "Not written yet" goes through.

    plain: makes plain data of what it returned, which can leave the rank.
    """
    try:
        value = function(*args)
    except NotImplementedError:
        raise
    except Exception as error:
        return Attempt(errors=tuple(kind.__name__ for kind in type(error).__mro__), text=str(error))
    return Attempt(plain(value))


def expect_returned(case: str, outcome: Attempt, what: str, evidence: Any = None) -> None:
    """The call did not raise. what: the call, as the subject of a sentence. evidence: the error's name if not given."""
    if outcome.raised:
        evidence = outcome.raised if evidence is None else evidence
        fail(f"{what} raised {outcome.raised}: {outcome.text}", case, evidence, outcome.raised)


def expect_error(
    case: str, outcome: Attempt, kind: str, mentions: str | tuple[str, ...], rank: int | None = None
) -> None:
    """The call raised an error of this kind, whose text contains `mentions`; a number as a word of its own."""
    where = "" if rank is None else f"on rank {rank}, "
    if not outcome.raised:
        fail(f"{where}no {kind} was raised", case, ["nothing raised", where])
    if kind not in outcome.errors:
        # The message tells what else was raised; it is no evidence, since it may name places and times.
        text = f"{where}expected {kind}, got {outcome.raised}: {outcome.text}"
        fail(text, case, [outcome.raised, where])
    for word in (mentions,) if isinstance(mentions, str) else mentions:
        if not _contains(outcome.text, word):
            text = f"{where}the {kind} should contain {word!r}, but it says {outcome.text!r}"
            fail(text, case, ["not named", word, where])


def _contains(text: str, word: str) -> bool:
    if not word.isdigit():
        return word in text
    # The folder of a checkpoint may have any digits in its path, which say nothing.
    without_paths = " ".join(part for part in text.split() if "/" not in part or not re.search("[a-z]", part))
    return re.search(rf"(?<!\w){word}(?!\w)", without_paths) is not None
