"""How many bytes of tensors an object holds, and how many autograd keeps for a backward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch


class SavedBytes:
    """How many bytes of tensors autograd keeps alive for a backward pass: now, and at the most."""

    def __init__(self):
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

    def __del__(self):
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
    if id(thing) in seen or isinstance(thing, (str, bytes, int, float, type)) or callable(thing):
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
