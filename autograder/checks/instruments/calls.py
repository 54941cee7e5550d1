"""What a rank sends, watched inside it: how large its objects are, and how often it has used the default group."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from torch.distributed import distributed_c10d

from ranks import record


@contextlib.contextmanager
def objects_sent() -> Iterator[list[int]]:
    """Inside, the list grows by the bytes of each object that this rank's torch pickles for another one."""
    sizes: list[int] = []
    pickled = distributed_c10d._object_to_tensor

    def watched(*args: Any, **kwargs: Any) -> Any:
        result = pickled(*args, **kwargs)
        sizes.append(result[0].numel())
        return result

    distributed_c10d._object_to_tensor = watched
    try:
        yield sizes
    finally:
        distributed_c10d._object_to_tensor = pickled


def calls_on_default_group() -> int:
    """Inside a rank: how often it has called a function of torch.distributed on the default group so far."""
    path = record.current_path()
    assert path is not None, "outside of a run nothing is recorded"
    lines = path.read_bytes().split(b"\n")[:-1]
    events = [json.loads(line) for line in lines]
    return sum(event["e"] == "call" and event.get("group") is None for event in events)
