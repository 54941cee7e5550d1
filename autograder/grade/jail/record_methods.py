"""What a check's records bring into the jail: their fields, and of their methods those that the code with them names.

A record that describes a case often knows its own answer, such as `case.forward()`, which the check asks for outside. A
submission can read all that is in its process. So a method travels only if code that travels mentions its name.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType, GetSetDescriptorType, MemberDescriptorType
from typing import Any

_OURS = "autograder."


class WhatTravels:
    """What is about to travel: its records and functions, and the names that these functions mention."""

    def __init__(self, value: Any):
        self.names: set[str] = set()
        self.records: list[type] = []
        self.functions: list[FunctionType] = []
        self._seen: set[int] = set()
        for one in _walk(value):
            self._look(one)
        self.has_code = bool(self.functions)
        known = -1
        while known != len(self.names):  # a method that travels mentions names, too
            known = len(self.names)
            for record in list(self.records):
                for name, part in vars(record).items():
                    if name in self.names or _is_special(name):
                        self._look(_function(part))

    def lighter(self, record: type) -> type:
        """A record's class as it travels; whole if no code does, for then the code that needs it is there already."""
        if not self.has_code:
            return record
        parts = vars(record).items()
        left = {name for name, part in parts if not (name in self.names or _is_special(name)) and _function(part)}
        return _without(record, frozenset(left)) if left else record

    def _look(self, thing: Any) -> None:
        """Note which names a function or class mentions, and look at what these are."""
        thing = getattr(thing, "__wrapped__", thing)
        if id(thing) in self._seen:
            return
        self._seen.add(id(thing))
        if isinstance(thing, functools.partial):
            self._look_at([thing.func, *thing.args, *thing.keywords.values()])
        elif not (getattr(thing, "__module__", None) or "").startswith(_OURS):
            return
        elif is_record(thing):
            self.records.append(thing)
            self._look_at(thing.__bases__)
        elif isinstance(thing, type):
            self._look_at([*thing.__bases__, *map(_function, vars(thing).values())])
        elif isinstance(thing, FunctionType):
            self.functions.append(thing)
            names = _names_in(thing.__code__)
            self.names |= names
            self._look_at(thing.__globals__[name] for name in names if name in thing.__globals__)
            for cell in thing.__closure__ or ():
                with contextlib.suppress(ValueError):  # an empty one
                    self._look(cell.cell_contents)

    def _look_at(self, things: Iterable[Any]) -> None:
        for thing in things:
            self._look(thing)


def is_record(thing: Any) -> bool:
    """Is this a dataclass of this package?"""
    return isinstance(thing, type) and dataclasses.is_dataclass(thing) and thing.__module__.startswith(_OURS)


def _walk(value: Any, depth: int = 0) -> Iterator[Any]:
    """Functions and classes in a value, and the classes of its records."""
    if isinstance(value, (list, tuple, dict)) and depth < 10:
        for one in [*value, *value.values()] if isinstance(value, dict) else value:
            yield from _walk(one, depth + 1)
    elif is_record(type(value)) and depth < 10:
        yield type(value)
        for field in dataclasses.fields(value):
            yield from _walk(getattr(value, field.name, None), depth + 1)
    elif isinstance(value, (FunctionType, type, functools.partial)):
        yield value
    elif type(value).__module__.startswith(_OURS + "checks."):
        yield type(value)


def _function(part: Any) -> FunctionType | None:
    """The function of a method, a class method or a property."""
    for name in ("__func__", "fget", "func"):
        part = getattr(part, name, part)
    return part if isinstance(part, FunctionType) else None


def _names_in(code: CodeType) -> set[str]:
    """The names that code mentions, in the functions inside it as well."""
    inner = [_names_in(one) for one in code.co_consts if isinstance(one, CodeType)]
    return set(code.co_names).union(*inner)


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


@functools.cache
def _without(record: type, left: frozenset[str]) -> type:
    """A class of the same name without some of its methods."""
    slots = (MemberDescriptorType, GetSetDescriptorType)
    kept = {name: part for name, part in vars(record).items() if name not in left and not isinstance(part, slots)}
    return type(record)(record.__name__, record.__bases__, {**kept, "__qualname__": record.__qualname__})
