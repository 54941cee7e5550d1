"""Inside a rank: write down every message before it is sent and after it has arrived.

`install(path)` replaces the communication functions of `torch.distributed` in this process by ones that
append a line to a file before and after they do the real thing. The file outlives the process, so a rank
that hangs or dies can still be asked what it was doing. A line is a JSON object:

    {"e": "call", "i": 7, "op": "send", "peer": 1, "bytes": 64, …, "at": [file, line], "t": seconds}
    {"e": "wait", "i": 7, "at": …, "t": …}       the rank now blocks until operation 7 is done
    {"e": "done", "i": 7, "t": …}                operation 7 has ended as far as this rank can tell
    {"e": "over", "i": 7, "t": …}                an asynchronous collective was over, waited for or not
    {"e": "begin", "i": 8, "name": "backward", "t": …}   the worker enters a stretch that it named, with
    {"e": "end", "i": 8, "t": …}                         torch.profiler.record_function, and leaves it

What the C++ side of torch sends on its own (DistributedDataParallel's reducer) does not pass here.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

#: collective → the parameter that holds what this rank puts in.
COLLECTIVES = {
    "broadcast": "tensor",
    "all_reduce": "tensor",
    "reduce": "tensor",
    "all_gather": "tensor",
    "all_gather_into_tensor": "input_tensor",
    "all_gather_single": "input_tensor",
    "gather": "tensor",
    "scatter": "scatter_list",
    "reduce_scatter": "input_list",
    "reduce_scatter_tensor": "input",
    "reduce_scatter_single": "input",
    "all_to_all": "input_tensor_list",
    "all_to_all_single": "input",
    "barrier": "",
    "monitored_barrier": "",
    "all_gather_object": "",
    "gather_object": "",
    "broadcast_object_list": "",
    "scatter_object_list": "",
}

_HERE = os.path.dirname(os.path.abspath(__file__))
_TORCH = os.path.dirname(os.path.abspath(torch.__file__))


class _Recorder:
    """One file, appended to line by line with one system call each."""

    def __init__(self, path: str):
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._numbers = itertools.count()
        self._inside = threading.local()

    def write(self, **event: Any) -> None:
        event["t"] = time.monotonic()
        # That a collective is over is told by a thread of gloo's, not by one that talks to other ranks.
        if event["e"] != "over" and threading.current_thread() is not threading.main_thread():
            event["thread"] = threading.get_ident()
        os.write(self._file, (json.dumps(event, separators=(",", ":")) + "\n").encode())

    def number(self) -> int:
        """A number that no other operation of this rank has."""
        return next(self._numbers)

    def call(self, op: str, blocking: bool, **what: Any) -> int:
        number = self.number()
        self.write(e="call", i=number, op=op, blocking=blocking, at=_caller(), **what)
        return number

    @property
    def nested(self) -> bool:
        """Is this call made by torch itself, inside one that is being recorded?"""
        return getattr(self._inside, "depth", 0) > 0

    def __enter__(self) -> None:
        self._inside.depth = getattr(self._inside, "depth", 0) + 1

    def __exit__(self, *_: Any) -> None:
        self._inside.depth -= 1


class _RecordedWork:
    """A torch `Work` whose wait is written down; everything else is passed on."""

    def __init__(self, work: Any, recorder: _Recorder, number: int):
        self._work, self._recorder, self._number, self._waited = work, recorder, number, False

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        if self._waited:
            return self._work.wait(*args, **kwargs)
        self._recorder.write(e="wait", i=self._number, at=_caller())
        result = self._work.wait(*args, **kwargs)
        self._waited = True
        self._recorder.write(e="done", i=self._number)
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


def install(path: str) -> None:
    """Record this process's communication in the file `path`, from now on."""
    recorder = _Recorder(path)
    makers = {
        "send": functools.partial(_point_to_point, peer="dst", blocking=True),
        "recv": functools.partial(_point_to_point, peer="src", blocking=True),
        "isend": functools.partial(_point_to_point, peer="dst", blocking=False),
        "irecv": functools.partial(_point_to_point, peer="src", blocking=False),
        **{name: functools.partial(_collective, holds=holds) for name, holds in COLLECTIVES.items()},
    }
    for name, make in makers.items():
        original = getattr(distributed_c10d, name, None)
        if original is None:  # a later name, in an earlier torch
            continue
        recorded = functools.wraps(original)(make(recorder, name, original))
        for module in (dist, distributed_c10d):
            if getattr(module, name, None) is original:
                setattr(module, name, recorded)
    _record_spans(recorder)


def _record_spans(recorder: _Recorder) -> None:
    """Write down the stretches that a worker marks with `torch.profiler.record_function`, but not torch's own."""
    marker = torch.profiler.record_function
    enter, leave = marker.__enter__, marker.__exit__
    open_spans: dict[int, int] = {}

    def begin(self: Any) -> Any:
        if not sys._getframe(1).f_code.co_filename.startswith(_TORCH):
            open_spans[id(self)] = number = recorder.number()
            recorder.write(e="begin", i=number, name=str(self.name))
        return enter(self)

    def end(self: Any, *error: Any) -> Any:
        result = leave(self, *error)
        if id(self) in open_spans:
            recorder.write(e="end", i=open_spans.pop(id(self)))
        return result

    marker.__enter__, marker.__exit__ = begin, end


def _point_to_point(recorder: _Recorder, name: str, original: Callable, *, peer: str, blocking: bool) -> Callable:
    def call(tensor, *args: Any, **kwargs: Any) -> Any:
        if recorder.nested:
            return original(tensor, *args, **kwargs)
        other = args[0] if args else kwargs.get(peer)
        group = args[1] if len(args) > 1 else kwargs.get("group")
        tag = args[2] if len(args) > 2 else kwargs.get("tag", 0)
        if other is None and kwargs.get(f"group_{peer}") is not None:
            other = dist.get_global_rank(group or dist.group.WORLD, kwargs[f"group_{peer}"])
        _check_peer(name, other)
        number = recorder.call(name, blocking, peer=other, bytes=tensor.nbytes, dtype=str(tensor.dtype), tag=tag)
        with recorder:
            result = original(tensor, *args, **kwargs)
        if blocking:
            # A receive from any source returns the rank that sent.
            recorder.write(e="done", i=number, **({"peer": result} if other is None else {}))
            return result
        return _RecordedWork(result, recorder, number) if result is not None else result

    return call


def _check_peer(name: str, peer: int | None) -> None:
    """gloo would wait forever for a rank that does not exist, and fail obscurely on a message to oneself."""
    direction = "to" if "send" in name else "from"
    if peer is not None and not 0 <= peer < dist.get_world_size():
        raise RuntimeError(f"{name} {direction} rank {peer}: there are only ranks 0…{dist.get_world_size() - 1}")
    if peer == dist.get_rank():
        raise RuntimeError(f"{name} {direction} rank {peer}, which is this rank itself: no message is needed")


def _collective(recorder: _Recorder, name: str, original: Callable, *, holds: str) -> Callable:
    signature = inspect.signature(original)

    def call(*args: Any, **kwargs: Any) -> Any:
        if recorder.nested:
            return original(*args, **kwargs)
        arguments = signature.bind_partial(*args, **kwargs).arguments
        blocking = not arguments.get("async_op", False)
        group = arguments.get("group")
        members = None if group is None or group is dist.group.WORLD else dist.get_process_group_ranks(group)
        root = next((arguments[key] for key in ("src", "dst") if arguments.get(key) is not None), None)
        tensors = arguments.get(holds) if holds else None
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors or [])
        number = recorder.call(
            name,
            blocking,
            group=members,
            root=root,
            bytes=sum(tensor.nbytes for tensor in tensors),
            dtype=str(tensors[0].dtype) if tensors else None,
        )
        with recorder:
            result = original(*args, **kwargs)
        if blocking:
            recorder.write(e="done", i=number)
            return result
        if result is None:  # this rank is not in the group
            return None
        result.get_future().add_done_callback(lambda _: recorder.write(e="over", i=number))
        return _RecordedWork(result, recorder, number)

    return call


def _caller() -> list:
    """File and line of the innermost frame that is neither ours nor torch's: the student's."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((_HERE, _TORCH)):
            return [file, frame.f_lineno]
        frame = frame.f_back
    return ["", 0]
