"""How many bytes of tensors an object holds, autograd keeps for a backward pass, and are alive in a process.

Where an answer can hold numbers in anything else (arrays, bytes, closures), `Resident` asks the system.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ranks import stopwatch


class SavedBytes:
    """How many bytes of tensors autograd keeps alive for a backward pass: now, and at the most."""

    def __init__(self) -> None:
        self.alive = self.peak = 0

    def measure(self, function: Callable, *args: Any) -> Any:
        """What `function(*args)` returns; all that autograd saves meanwhile is counted as long as it is alive."""
        hooks = torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: _Saved(tensor, self), lambda saved: saved.tensor
        )
        with hooks:
            return function(*args)


class _Saved:
    """A tensor that autograd keeps."""

    def __init__(self, tensor: torch.Tensor, meter: SavedBytes):
        # Detached: an output that is saved would otherwise keep its own graph alive for ever.
        self.tensor, self.meter, self.bytes = tensor.detach(), meter, tensor.numel() * tensor.element_size()
        meter.alive += self.bytes
        meter.peak = max(meter.peak, meter.alive)

    def __del__(self) -> None:
        self.meter.alive -= self.bytes


def bytes_held(thing: Any, besides: Iterable[torch.Tensor] = ()) -> int:
    """Bytes of the memory behind all tensors of at least one dimension that can be reached from an object.

    besides: a model's parameters; they and their gradients do not count.
    """
    own = {t.untyped_storage().data_ptr() for p in besides for t in (p, p.grad) if t is not None}
    found = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in reachable(thing) if t.dim()}
    return sum(nbytes for pointer, nbytes in found.items() if pointer not in own)


def reachable(thing: Any, seen: set[int] | None = None) -> Iterator[torch.Tensor]:
    """Every tensor in an object's attributes, in what these hold, and so on; gradients included, functions not."""
    seen = set() if seen is None else seen
    if id(thing) in seen or isinstance(thing, (str, bytes, int, float, type)):
        return
    if callable(thing) and not isinstance(thing, nn.Module):
        return
    seen.add(id(thing))
    if isinstance(thing, torch.Tensor):
        yield thing
        inside = [thing.grad] if thing.is_leaf else []
    elif isinstance(thing, dict):
        inside = [*thing.keys(), *thing.values()]
    elif isinstance(thing, (list, tuple, set, frozenset)):
        inside = list(thing)
    else:
        inside = list(getattr(thing, "__dict__", {}).values())
    for part in inside:
        yield from reachable(part, seen)


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all storages of tensors that are alive, by whatever they are held, autograd's graph included.

    It keeps weak references to the storages of the tensors that it finds when it is made, and of those that operations
    inside `with` return. peak: the most after an operation. gloo's threads may hold a tensor for a moment after the
    collective is over, so a count above `limit` is taken again for as long as `patience`, in seconds, lasts. views:
    does memory count that is seen through a view alone? gloo's copy of what it reduces is such memory.
    """

    def __init__(self, limit: float = math.inf, patience: float = 0.6, views: bool = True) -> None:
        super().__init__()
        self.views = views
        self.seen: dict[int, StorageWeakRef] = {}
        self.peak, self.limit, self.patience = 0, limit, patience
        for thing in gc.get_objects():
            if issubclass(type(thing), torch.Tensor):
                self.add(thing)

    def add(self, tensor: torch.Tensor) -> None:
        """Count this tensor's storage from now on, while it is alive."""
        reference = StorageWeakRef(tensor.untyped_storage())
        self.seen.setdefault(reference.cdata, reference)

    def now(self) -> int:
        """Bytes that are alive."""
        total = 0
        for cdata in list(self.seen):
            storage = torch.UntypedStorage._new_with_weak_ptr(cdata)
            if storage is None:
                del self.seen[cdata]
            else:
                total += storage.nbytes()
        return total

    def settled(self, limit: float) -> int:
        """Bytes that are alive, once they are no more than the limit or patience is at its end."""
        total, waited = self.now(), stopwatch.own()
        while total > limit and waited.seconds() < self.patience:
            time.sleep(0.002)
            total = self.now()
        self.patience -= waited.seconds()
        return total

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.views or not func.is_view:
            for leaf in tree_leaves(result):
                if isinstance(leaf, torch.Tensor):
                    self.add(leaf)
        total = self.now()
        if total > self.peak:
            self.peak = max(self.peak, self.settled(max(self.peak, self.limit)))
        return result


#: The number of `mallopt`'s parameter in glibc: blocks of so many bytes and more are mapped.
_M_MMAP_THRESHOLD = -3


class Resident:
    """How much more memory this process has than when this was made, as the system counts it, whatever holds it.

    Tensors must have millions of bytes to stand out. Files and other processes are not counted, and on systems that do
    not tell everything is 0.
    """

    def __init__(self) -> None:
        # From now on each large block is mapped by itself, so that it goes back to the system when it is freed. The C
        # library keeps what other threads than the main one have freed, such as gloo's buffers.
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 2**18)
        self.before = _resident()

    def above(self, allowed: float, patience: float = 2.0) -> int:
        """Bytes; looked at again while they are more than allowed, for as long as patience, in seconds, lasts.

        gloo's threads may hold a tensor for a moment after a collective.
        """
        more, waited = _resident() - self.before, stopwatch.own()
        while more > allowed and waited.seconds() < patience:
            time.sleep(0.05)
            more = _resident() - self.before
        return more


def _resident() -> int:
    """Bytes of memory that belong to no file, after everything that was freed went back to the system."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    with contextlib.suppress(OSError), open("/proc/self/status", encoding="ascii", errors="replace") as file:
        lines = [line.split() for line in file if line.startswith(("RssAnon:", "RssShmem:"))]
        return sum(int(line[1]) * 1024 for line in lines)
    return 0
