"""Turns workers, arguments and results into bytes that another process can read."""

from __future__ import annotations

import functools
from collections import ChainMap
from collections.abc import Callable
from io import BytesIO
from typing import Any, ClassVar

#: The type of what functools.cache and functools.lru_cache return.
_Cached = type(functools.cache(len))


def packed(value: Any) -> bytes:
    """A value as bytes, with the functions and classes of a notebook in them."""
    data = BytesIO()
    pickler()(data).dump(value)
    return data.getvalue()


@functools.cache
def pickler() -> type[Any]:
    """cloudpickle's Pickler, which can also send a notebook's cached functions; imported when it is first needed."""
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
        dispatch_table: ClassVar[Any] = ChainMap({_Cached: _reduced}, cloudpickle.Pickler.dispatch_table)

    return Pickler


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
