"""Turns workers, arguments and results into bytes that another process can read."""

from __future__ import annotations

import functools
import sys
import weakref
from collections import ChainMap
from collections.abc import Callable
from io import BytesIO
from types import CodeType, FunctionType
from typing import Any, ClassVar

#: Packed as the last part of a value, it becomes the functions and classes of `__main__` in that value, by their names.
#: pickle and torch.save look for them in `__main__`.
MAIN_NAMES = object()

#: The type of what functools.cache and functools.lru_cache return.
_Cached = type(functools.cache(len))


def packed(value: Any) -> bytes:
    """A value as bytes, with the functions and classes of a notebook in them."""
    data = BytesIO()
    pickler()(data).dump(value)
    return data.getvalue()


@functools.cache
def pickler() -> type[Any]:
    """cloudpickle's Pickler, which also sends cached functions and keeps file names; imported when first needed."""
    import cloudpickle

    theirs = cloudpickle.Pickler.dispatch_table

    def reduced_code(code: CodeType) -> Any:
        """How code travels: as cloudpickle sends it, but with the name of its file, which 3.1.3 leaves out."""
        build, parts, *_ = theirs[CodeType](code)
        return _code, (code.co_filename, build, parts)

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
        dispatch_table: ClassVar[Any] = ChainMap({_Cached: _reduced, CodeType: reduced_code}, theirs)

        def __init__(self, *args: Any, **kwargs: Any):
            super().__init__(*args, **kwargs)
            self.main_names: dict[str, Any] = {}

        def reducer_override(self, value: Any) -> Any:
            """How a value travels; on the way, collect the functions and classes of `__main__`, with their names."""
            if value is MAIN_NAMES:
                return dict, (self.main_names,)
            if type(value).__module__ == "IPython.core.autocall":  # a notebook's exit and quit, which hold its shell
                return getattr, (sys, "exit")
            if isinstance(value, weakref.ref):  # what it refers to stays in this process
                return _gone, ()
            if isinstance(value, (type, FunctionType)) and value.__module__ == "__main__":
                there: Any = sys.modules["__main__"]
                for name in value.__qualname__.split("."):
                    there = getattr(there, name, None)
                if there is value:
                    self.main_names[value.__qualname__] = value
            return super().reducer_override(value)

    return Pickler


def put_into_main(names: dict[str, Any]) -> None:
    """Give this process's `__main__` the functions and classes that MAIN_NAMES became."""
    for name, value in names.items():
        value.__qualname__ = name  # cloudpickle 3.1 gives a class inside another its short name
        if "." not in name:
            setattr(sys.modules["__main__"], name, value)


def _gone() -> weakref.ref[Any]:
    """A weak reference to what is gone, which can still be a key: its hash is known."""
    thing = type("Gone", (), {})()
    reference = weakref.ref(thing)
    hash(reference)
    return reference


def _code(file: str, build: Callable[..., CodeType], parts: tuple[Any, ...]) -> CodeType:
    return build(*parts).replace(co_filename=file)


def _reduced(function: Any) -> Any:
    """How a cached function travels: its name, if the other side can import it; else the function, without results."""
    import cloudpickle

    module = function.__module__ or "__main__"
    by_value = {"__main__", *cloudpickle.list_registry_pickle_by_value()}
    if "<locals>" in function.__qualname__ or any(f"{module}.".startswith(f"{name}.") for name in by_value):
        return _cached, (function.__wrapped__, function.cache_parameters())
    return function.__reduce__()


def _cached(function: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)
