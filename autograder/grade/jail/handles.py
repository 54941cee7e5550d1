"""Handles: what the grade cells hold of a submission. Calling a handle sends a message into the jail.

A student's function is called in the jail with copies of the arguments. Its result comes back as plain data, arguments
that it changed in place are changed outside as well, and an exception that it raised is raised outside. If the worker
given to `ranks.run` mentions a handle, all its ranks run in the jail too. An object that is not plain data stays in the
jail, and a handle of it comes back.

A check's functions that run next to the student's travel by value: the jail does not see this package.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import io
import itertools
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any

import cloudpickle
import numpy as np
import torch

import autograder
import ranks
from autograder.checks import stage
from autograder.grade.jail import outside, wire
from ranks import sending
from ranks.ledger import Ledger, Message, Span

_run_outside = ranks.run

#: The exceptions that the lesson's setup cells define, by name.
_errors: ContextVar[dict[str, type]] = ContextVar("errors", default={})  # noqa: B039 (never changed in place)


class Handle:
    """A function, class or object of a submission. `type(handle).__name__` is the name of its type in the jail.

    When another process takes the place of the one in which the object was, a name finds the one of that process;
    an object without a name is lost (DiedError). ours: an object of a check's own class, or one that it has returned.
    """

    def __init__(self, jailed: outside.Jailed, reference: str | int, ours: bool = False):
        vars(self).update(_first=jailed, _reference=reference, _ours=ours)

    @property
    def _jailed(self) -> outside.Jailed:
        return self._first.latest if isinstance(self._reference, str) else self._first

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it in the jail."""
        return call(self._jailed, self, args, kwargs, ours=self._ours)

    def __getattr__(self, name: str) -> Any:
        """An attribute: plain data, or a handle."""
        if name.startswith("__") and name not in ("__name__", "__qualname__", "__doc__"):
            raise AttributeError(name)
        reply = self._jailed.ask("attribute", reference=self._reference, name=name)
        return received(self._jailed, answer(reply)["value"], self._ours)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of the submission>"


class _Packer(sending.pickler()):  # type: ignore[misc]  # made when it is first asked for
    """Pickles for the jail, where a handle becomes the object itself; remembers whether it met one.

    The lesson's own exceptions travel by name: in the jail these are classes that the submission has defined, and its
    code raises those. A check's records travel with their methods, so none of these may know the answer.
    """

    def __init__(self, file: io.BytesIO):
        super().__init__(file)
        #: Whose handle was met last.
        self.met: outside.Jailed | None = None
        self.oracles: list[stage.Oracle] = []

    def persistent_id(self, obj: Any) -> str | int | tuple[str, int] | None:
        """The name or number by which the jail finds an object of its own (`inside.resolve`); None for one of ours.

        Of an oracle nothing is sent but the number by which the jail asks for it.
        """
        if isinstance(obj, stage.Oracle):
            self.oracles.append(obj)
            return "oracle", len(self.oracles) - 1
        if isinstance(obj, Handle):
            self.met = obj._jailed
            return obj._reference
        return obj.__name__ if isinstance(obj, type) and _errors.get().get(obj.__name__) is obj else None


def pack(value: Any) -> tuple[bytes, outside.Jailed | None, list[stage.Oracle]]:
    """A value as bytes for the jail, our own functions and classes by value; whose handle it mentions; its oracles."""
    data = io.BytesIO()
    packer = _Packer(data)
    with _by_value():
        packer.dump(value)
    return data.getvalue(), packer.met, packer.oracles


@contextlib.contextmanager
def _by_value() -> Iterator[None]:
    """Inside, cloudpickle sends functions and classes of this package by value: the jail has no copy of the package."""
    if autograder.__name__ in cloudpickle.list_registry_pickle_by_value():
        yield
        return
    cloudpickle.register_pickle_by_value(autograder)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(autograder)


def call(
    jailed: outside.Jailed,
    function: Any,
    args: tuple = (),
    kwargs: dict | None = None,
    *,
    ours: bool = False,
    packed: tuple[bytes, list[stage.Oracle]] | None = None,
) -> Any:
    """Call a function in the jail: a handle, or one of ours whose arguments mention handles.

    packed: the function and its arguments, if they are packed already, and the oracles among them. ours: the function
    is a check's. Such a function returns all that it has to say. What it was given stays as it was here: the submission
    that it calls could find its arguments in its frame, and change them for this check and for later ones.
    """
    if packed is None:
        data, _, asked = pack((function, args, kwargs or {}))
        packed = data, asked
    payload, oracles = packed
    files = wire.read_folder(jailed.folder)
    reply = jailed.ask("call", classes=classes(), oracles=oracles, payload=payload, folder=jailed.folder, files=files)
    take_files(jailed, reply.get("files"))
    if ours:
        return received(jailed, answer(reply).get("value"), ours=True)
    changed = _Changed((args, kwargs or {}))
    changed.take(jailed, reply)
    answer(reply)
    return received(jailed, changed.with_views(reply.get("value"), reply.get("aliases")))


def call_where(function: Callable, args: tuple) -> Any:
    """`function(*args)`: in the jail if an argument mentions a handle, else in this process."""
    payload, jailed, oracles = pack((function, args, {}))
    if jailed is None:
        return function(*args)
    return call(jailed, function, args, ours=not isinstance(function, Handle), packed=(payload, oracles))


class Results(ranks.Results):
    """What ranks in the jail returned. carried: the bytes that their network carried meanwhile, None if unknown."""

    carried: int | None = None


def run(
    worker: Callable,
    world_size: int = 4,
    args: tuple | list = (),
    timeout: float = 60.0,
    *,
    seed: int = 0,
    echo: bool = True,
) -> ranks.Results:
    """`ranks.run`, in the jail if the worker or its arguments mention a handle, else in this process."""
    ranks.launch._check(worker, world_size, args, timeout)
    payload, jailed, oracles = pack((worker, tuple(args)))
    if oracles:
        raise TypeError("ranks cannot ask an oracle: only a plain call can")
    if jailed is None:
        return _run_outside(worker, world_size, args, timeout, seed=seed, echo=echo)
    options = {"world_size": world_size, "timeout": timeout, "seed": seed}
    files, before = wire.read_folder(jailed.folder), jailed.carried()
    reply = jailed.ask("run", classes=classes(), payload=payload, options=options, folder=jailed.folder, files=files)
    after = jailed.carried()
    take_files(jailed, reply.get("files"))
    answer(reply)
    values, stdout = reply.get("values"), reply.get("stdout")
    messages, spans = reply.get("messages"), reply.get("spans")
    if not (
        isinstance(values, list) and len(values) == world_size and isinstance(stdout, list)
        and isinstance(messages, list) and all(_valid_entry(one, Message, world_size) for one in messages)
        and isinstance(spans, list) and all(_valid_entry(one, Span, world_size) for one in spans)
    ):  # fmt: skip
        raise outside.DiedError(outside.UNREADABLE)
    ledger = Ledger(messages, world_size, spans)
    values = [received(jailed, value) for value in values]
    results = Results(values, ledger, [str(text) for text in stdout])
    results.carried = None if before is None or after is None else after - before
    return results


def _valid_entry(one: Any, kind: type, world_size: int) -> bool:
    """Is this a message or a span, whichever `kind` is, with fields of the right types?"""
    times: list[object]
    whole: list[object]
    texts: list[object]
    if kind is Span and isinstance(one, Span):
        times, whole, texts = [one.start, one.end], [], [one.name]
    elif kind is Message and isinstance(one, Message):
        times = [one.start, one.end, one.over]
        whole = [one.peer, one.bytes, one.line, one.tag, one.posted, one.completed, one.each]
        texts = [one.call, one.file, one.op]
    else:
        return False
    return (
        type(one.rank) is int
        and 0 <= one.rank < world_size
        and all(time is None or (isinstance(time, (int, float)) and math.isfinite(time)) for time in times)
        and all(number is None or type(number) is int for number in whole)
        and all(isinstance(text, str) for text in texts)
    )


@contextlib.contextmanager
def in_jail(space: dict[str, Any] | None = None, other: Callable[[], outside.Jailed] | None = None) -> Iterator[None]:
    """Inside, `ranks.run` is this module's `run` for all code, and `call_inside` and `apart` use the jail.

    space: the names of the grade cell, among them exceptions of the lesson that it may expect. other: returns another
    process of the same submission.
    """
    kinds = {name: value for name, value in (space or {}).items() if isinstance(value, type)}
    errors = {
        name: value for name, value in kinds.items() if issubclass(value, Exception) and value.__module__ == "__main__"
    }
    apart = stage.HERE.apart if other is None else lambda subject: in_process(other, subject)
    token = _errors.set(errors)
    # For grade cells that call `ranks.run` themselves.
    ranks.run = run
    try:
        with stage.on(stage.Stage(call=call_where, apart=apart, jailed=True)):
            yield
    finally:
        ranks.run = _run_outside
        _errors.reset(token)


def in_process(other: Callable[[], outside.Jailed], subject: Any) -> Any:
    """The object of the same name in another process of the submission, which takes the place of the first."""
    if not isinstance(subject, Handle):
        return subject
    if not isinstance(subject._reference, str):
        raise TypeError("only an object with a name in the notebook can be found in another process")
    return Handle(other(), subject._reference)


#: Where the functions of checks that run next to a submission are defined.
_DRIVERS = "autograder.checks."


def classes() -> dict[str, type]:
    """The dataclasses and named tuples of our own that a driver may return, by name."""
    return _classes_among(len(sys.modules))


@functools.cache
def _classes_among(loaded: int) -> dict[str, type]:
    """`classes`, of as many modules as are loaded now: a call may load another one of a check's."""
    modules = [module for name, module in list(sys.modules.items()) if name.startswith(_DRIVERS)]
    mine = [value for module in modules for value in vars(module).values() if isinstance(value, type)]
    plain = [kind for kind in mine if hasattr(kind, "__dataclass_fields__") or issubclass(kind, tuple)]
    return {wire.full_name(kind): kind for kind in (Message, Span, *plain)}


def received(jailed: outside.Jailed, value: Any, ours: bool = False) -> Any:
    """Plain data as it came, with a handle for each object that stayed in the jail. ours: as `Handle` has it."""
    if isinstance(value, wire.Opaque):
        kind = type(_name(value.type_name, "object"), (Handle,), {"__module__": value.module or "__main__"})
        return kind(jailed, value.number, ours)
    if type(value) in (list, tuple, set):
        return type(value)(received(jailed, item, ours) for item in value)
    if isinstance(value, dict):
        for key in list(value):
            value[key] = received(jailed, value[key], ours)
    return value


def answer(reply: dict) -> dict:
    """The reply; if it says that something was raised, that is raised."""
    if reply.get("raised") is None:
        return reply
    raise exception(reply["raised"])


def exception(said: Any) -> Exception:
    """The exception that `inside.describe` has described, with `frames`: the places in the student's cells."""
    said = said if isinstance(said, dict) else {}
    name, text = _name(said.get("name"), "Exception"), str(said.get("text", ""))
    if isinstance(said.get("ranks"), dict):
        error = _ranks_error(name, said["ranks"])
    else:
        kin = vars(builtins).get(str(said.get("kin")))
        kin = kin if isinstance(kin, type) and issubclass(kin, Exception) else Exception
        if name in _errors.get():
            error = _errors.get()[name](text)
        elif kin.__name__ == name and kin in _PLAIN:
            error = kin(text)
        else:
            error = type(name, (_Foreign, kin if kin in _PLAIN else Exception), {})(text)
    frames = said.get("frames")
    vars(error)["frames"] = [str(frame) for frame in frames[-3:]] if isinstance(frames, list) else []
    return error


def _name(said: Any, otherwise: str) -> str:
    """A name for a class, as the submission has said it: at most 200 characters, all of them printable."""
    return "".join(sign if sign.isprintable() else "?" for sign in str(said or otherwise)[:200])


class _Foreign(Exception):
    """An exception of a type that exists only in the submission."""

    def __init__(self, text: str):
        self.text = text
        Exception.__init__(self, text)

    def __str__(self) -> str:
        return self.text


#: Exceptions that can be made from a text alone.
_PLAIN = {
    ArithmeticError, AssertionError, AttributeError, BufferError, EOFError, Exception, FloatingPointError, ImportError,
    IndexError, LookupError, MemoryError, ModuleNotFoundError, NameError, NotImplementedError, OSError, OverflowError,
    FileExistsError, FileNotFoundError, PermissionError, ConnectionError, TimeoutError, BlockingIOError,
    RecursionError, ReferenceError, RuntimeError, SyntaxError, TypeError, UnboundLocalError, ValueError,
    ZeroDivisionError, NotADirectoryError, IsADirectoryError, BrokenPipeError, ConnectionRefusedError,
}  # fmt: skip


def _ranks_error(name: str, more: dict) -> Exception:
    if name == "HangError":
        waits = [str(wait) for wait in more.get("waits") or []]
        headline = str(more.get("headline") or "the ranks wait for one another")
        return ranks.HangError(headline, waits, str(more.get("parted") or ""), more.get("evidence"))
    texts = [str(more.get(key) or "") for key in ("type_name", "reason", "traceback", "where")]
    rank = more.get("rank")
    error = ranks.RankError(rank if isinstance(rank, int) else 0, *texts)
    error.evidence = more.get("evidence", error.evidence)
    return error


def take_files(jailed: outside.Jailed, files: Any) -> None:
    """Make the shared folder hold the files in a reply, if it has any."""
    if not isinstance(files, dict):
        return
    try:
        wire.write_folder(jailed.folder, files)
    except wire.WireError:
        raise outside.DiedError(outside.UNREADABLE) from None


class _Changed:
    """The arrays, lists and dicts among the arguments of a call, to be changed as the call has changed their copies."""

    def __init__(self, arguments: Any):
        self.leaves, self.holders = list(wire.leaves(arguments)), list(wire.holders(arguments))

    def take(self, jailed: outside.Jailed, reply: dict) -> None:
        """Change them as the call has changed their copies."""
        try:
            for number, content in reply.get("changed") or []:
                _put(self.leaves[_natural(number)], content)
            for number, entries in reply.get("refilled") or []:
                self._refill(jailed, self.holders[_natural(number)], entries)
        except (TypeError, ValueError, LookupError):
            raise outside.DiedError(outside.UNREADABLE) from None

    def _refill(self, jailed: outside.Jailed, holder: list | dict, entries: list) -> None:
        found = []
        for key, kind, what in entries:
            if kind == "value":
                what = received(jailed, what)
            else:
                what = (self.leaves if kind == "array" else self.holders)[_natural(what)]
            found.append((key, what))
        if isinstance(holder, dict):
            holder.clear()
            holder.update(found)
        else:
            holder[:] = [what for _, what in found]

    def with_views(self, value: Any, aliases: Any) -> Any:
        """The returned value. An array that shared memory with an argument in the jail shares it with ours, too."""
        try:
            views = {_natural(which): place for which, *place in aliases or []}
            return self._with_views(value, views, itertools.count()) if views else value
        except (TypeError, ValueError, LookupError):
            raise outside.DiedError(outside.UNREADABLE) from None

    def _with_views(self, value: Any, views: dict[int, list], count: Iterator[int], depth: int = 0) -> Any:
        if isinstance(value, (np.ndarray, torch.Tensor)):
            which = next(count)
            return _alias(self.leaves, views[which], value) if which in views else value
        if isinstance(value, (list, tuple)) and depth < 10:
            items = [self._with_views(item, views, count, depth + 1) for item in value]
            if type(value) in (list, tuple) and any(a is not b for a, b in zip(items, value, strict=True)):
                return type(value)(items)
        elif isinstance(value, dict) and depth < 10:
            for key in sorted(value, key=repr):
                value[key] = self._with_views(value[key], views, count, depth + 1)
        return value


def _natural(number: Any) -> int:
    if type(number) is not int or number < 0:
        raise TypeError
    return number


def _put(leaf: Any, content: Any) -> None:
    """Change an array or tensor of ours in place, as the student's function has changed its copy."""
    with contextlib.suppress(Exception), torch.no_grad():
        if isinstance(leaf, np.ndarray) and isinstance(content, np.ndarray):
            if leaf.shape == content.shape and leaf.flags.writeable:
                leaf[...] = content
        elif isinstance(leaf, torch.Tensor) and isinstance(content, torch.Tensor):
            if leaf.shape == content.shape and leaf.dtype == content.dtype:
                leaf.detach().copy_(content)
            else:
                leaf.data = content.detach()
            if leaf.is_leaf and leaf.requires_grad != content.requires_grad:
                leaf.requires_grad_(content.requires_grad)


def _lies_within(shape: Iterable[int], strides: list, offset: int, item: int, size: int) -> bool:
    """Does a view lie within a buffer of `size`? In Python's integers: numpy's bounds wrap around at 2**64.

    strides, offset, item, size: in the same unit, bytes or elements.
    """
    reach = [(length - 1) * stride for length, stride in zip(shape, strides, strict=True)]
    first, last = offset + sum(min(0, one) for one in reach), offset + sum(max(0, one) for one in reach)
    whole = all(type(number) is int and abs(number) < 2**63 for number in [offset, *strides])
    return whole and first >= 0 and last + item <= size


def _alias(leaves: list, place: list, value: Any) -> Any:
    """A view of our argument, placed as the returned array was in the argument's copy; else the value itself."""
    with contextlib.suppress(Exception):
        number, offset, _, strides = place
        leaf = leaves[_natural(number)]
        if isinstance(leaf, np.ndarray) and isinstance(value, np.ndarray):
            if offset is None:
                return leaf if np.array_equal(leaf, value, equal_nan=True) else value
            if leaf.flags.c_contiguous and _lies_within(value.shape, strides, offset, value.itemsize, leaf.nbytes):
                view = np.ndarray(value.shape, value.dtype, leaf.data, offset, strides)
                if np.array_equal(view, value, equal_nan=True):
                    return view
        if isinstance(leaf, torch.Tensor) and isinstance(value, torch.Tensor) and value.dtype == leaf.dtype:
            if offset is None:
                return leaf if torch.allclose(leaf, value, 0, 0, equal_nan=True) else value
            start, size = leaf.storage_offset() + offset, leaf.untyped_storage().nbytes() // leaf.itemsize
            if not _lies_within(value.shape, strides, start, 1, size):
                return value
            part = leaf.detach().as_strided(value.shape, strides, start)
            if torch.allclose(part, value, 0, 0, equal_nan=True):
                return part
    return value
