"""Inside a rank: record every call of a communication function, before it begins and when it has ended.

`install(path)` replaces the communication functions of `torch.distributed` in this process by wrappers that append a
line to a file before and after the real call. The file outlives the process, so it shows what a rank was doing when it
hung or died. `current_path` says where this process records, and `detach` stops it. A line is a JSON object:

    {"e": "call", "i": 7, "op": "send", "peer": 1, "bytes": 64, …, "at": [file, line], "t": seconds}
    {"e": "wait", "i": 7, "at": …, "t": …}       the rank now blocks until operation 7 is done
    {"e": "done", "i": 7, "t": …}                the call of operation 7, or the wait for it, has returned
    {"e": "over", "i": 7, "t": …}                the asynchronous collective 7 is over, whether or not the rank waits
    {"e": "begin", "i": 8, "name": "backward", "t": …}   the worker enters a stretch that it marked with
    {"e": "end", "i": 8, "t": …}                         torch.profiler.record_function, and leaves it

What torch's C++ code sends by itself, such as the gradients of DistributedDataParallel, is not recorded.
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
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

#: Collective → its parameter for what this rank puts in, whose bytes are counted; "" if none is counted.
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

_as_json = json.JSONEncoder(separators=(",", ":")).encode

#: Collectives under the names that PyTorch 2.13 gave them → their names until then, with the same parameters.
RENAMED = {"all_gather_single": "all_gather_into_tensor", "reduce_scatter_single": "reduce_scatter_tensor"}


def add_new_names() -> None:
    """Give this process's `torch.distributed` the names of PyTorch 2.13 where an older PyTorch lacks them."""
    for new, old in RENAMED.items():
        for module in (dist, distributed_c10d):
            if not hasattr(module, new):
                setattr(module, new, getattr(module, old))


add_new_names()  # before a rank imports the worker's module, which may import the new names

_HERE = os.path.dirname(os.path.abspath(__file__))
_TORCH = os.path.dirname(os.path.abspath(torch.__file__))


def open_to_append(path: str) -> int:
    """A descriptor that appends the bytes to a file as they are; by default, Windows would change each newline."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0))


class _Recorder:
    """One file, to which each event appends a line with one system call."""

    def __init__(self, path: str):
        self.path: Path | None = Path(path)
        self._file = open_to_append(path)
        self._numbers = itertools.count()
        self._inside = threading.local()

    def write(self, **event: Any) -> None:
        event["t"] = time.monotonic()
        # "over" comes from a thread of gloo's, which is no thread of the worker's that communicates.
        if event["e"] != "over" and threading.current_thread() is not threading.main_thread():
            event["thread"] = threading.get_ident()
        os.write(self._file, (_as_json(event) + "\n").encode())

    def detach(self) -> None:
        """Write nothing more from this process. The file stays as it is, for other processes too."""
        self.path = None
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, self._file)  # not closed: a thread of gloo's may be about to write
        os.close(nothing)

    def number(self) -> int:
        """A number that no other operation of this rank has."""
        return next(self._numbers)

    def call(self, op: str, blocking: bool, **what: Any) -> int:
        number = self.number()
        self.write(e="call", i=number, op=op, blocking=blocking, at=_caller(), **what)
        return number

    @property
    def nested(self) -> bool:
        """Was this call made by torch itself, inside a call that is being recorded?"""
        return getattr(self._inside, "depth", 0) > 0

    def __enter__(self) -> None:
        self._inside.depth = getattr(self._inside, "depth", 0) + 1

    def __exit__(self, *_: Any) -> None:
        self._inside.depth -= 1


class _RecordedWork:
    """A torch `Work` whose `wait` is recorded; everything else is passed on to the original.

    once: what it is called, if it is a message; gloo would wait forever for one that has arrived already.
    """

    def __init__(self, work: Any, recorder: _Recorder, number: int, once: str = ""):
        self._work, self._recorder, self._number, self._waited, self._once = work, recorder, number, False, once

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        if self._waited:
            if self._once:
                raise RuntimeError(f"wait() was called twice on the same {self._once}: call it once for each message")
            return self._work.wait(*args, **kwargs)
        self._recorder.write(e="wait", i=self._number, at=_caller())
        result = self._work.wait(*args, **kwargs)
        self._waited = True
        self._recorder.write(e="done", i=self._number)
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


#: What records this process; None outside a rank.
_recorder: _Recorder | None = None


def current_path() -> Path | None:
    """The file in which this process records its communication; None outside a run and after `detach`."""
    return None if _recorder is None else _recorder.path


def detach() -> None:
    """Record nothing from this process from now on: for a fork of a rank, which would write into the rank's record.

    The processes that it was forked from go on recording. Without effect outside a run.
    """
    if _recorder is not None:
        _recorder.detach()


def install(path: str) -> None:
    """Record this process's communication in the file `path` from now on."""
    global _recorder
    _recorder = recorder = _Recorder(path)
    makers = {
        "send": functools.partial(_point_to_point, peer="dst", blocking=True),
        "recv": functools.partial(_point_to_point, peer="src", blocking=True),
        "isend": functools.partial(_point_to_point, peer="dst", blocking=False),
        "irecv": functools.partial(_point_to_point, peer="src", blocking=False),
        **{name: functools.partial(_collective, holds=holds) for name, holds in COLLECTIVES.items()},
    }
    for name, make in makers.items():
        original = getattr(distributed_c10d, name, None)
        if original is None:  # this version of torch does not have it
            continue
        recorded = functools.wraps(original)(make(recorder, name, original))
        for module in (dist, distributed_c10d):
            if getattr(module, name, None) is original:
                setattr(module, name, recorded)
    _record_spans(recorder)


def _record_spans(recorder: _Recorder) -> None:
    """Record the stretches that a worker marks with `torch.profiler.record_function`, but not torch's own."""
    marker = torch.profiler.record_function
    enter: Callable[..., Any] = marker.__enter__
    leave: Callable[..., Any] = marker.__exit__
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

    for name, function in (("__enter__", begin), ("__exit__", end)):
        setattr(marker, name, function)


def _point_to_point(
    recorder: _Recorder, name: str, original: Callable[..., Any], *, peer: str, blocking: bool
) -> Callable[..., Any]:
    def call(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if recorder.nested:
            return original(tensor, *args, **kwargs)
        other = args[0] if args else kwargs.get(peer)
        group = args[1] if len(args) > 1 else kwargs.get("group")
        tag = args[2] if len(args) > 2 else kwargs.get("tag", 0)
        in_group = kwargs.get(f"group_{peer}")
        if other is None and in_group is not None:
            other = in_group if group is None else dist.get_global_rank(group, in_group)
        _check_peer(name, other)
        number = recorder.call(name, blocking, peer=other, bytes=tensor.nbytes, dtype=str(tensor.dtype), tag=tag)
        with recorder:
            result = original(tensor, *args, **kwargs)
        if blocking:
            # A receive from any rank returns the rank whose message it took.
            recorder.write(e="done", i=number, **({"peer": result} if other is None else {}))
            return result
        return _RecordedWork(result, recorder, number, once=name) if result is not None else result

    return call


def _check_peer(name: str, peer: int | None) -> None:
    """gloo would wait forever for a rank that does not exist, and fail obscurely on a message to the rank itself."""
    direction = "to" if "send" in name else "from"
    if peer is not None and not 0 <= peer < dist.get_world_size():
        last = dist.get_world_size() - 1
        raise RuntimeError(f"{name} {direction} rank {peer}: there is no such rank, the last one is rank {last}")
    if peer == dist.get_rank():
        raise RuntimeError(f"{name} {direction} rank {peer}, which is this rank itself: no message is needed")


def _collective(recorder: _Recorder, name: str, original: Callable[..., Any], *, holds: str) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def call(*args: Any, **kwargs: Any) -> Any:
        if recorder.nested:
            return original(*args, **kwargs)
        arguments = signature.bind_partial(*args, **kwargs).arguments
        blocking = not arguments.get("async_op", False)
        group = arguments.get("group")
        members = None if group is None or group is dist.group.WORLD else dist.get_process_group_ranks(group)
        tensors = arguments.get(holds) if holds else None
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors or [])
        typed = tensors or [one for one in (arguments.get("tensor"),) if isinstance(one, torch.Tensor)]
        number = recorder.call(
            name,
            blocking,
            group=members,
            root=_root(arguments, members),
            bytes=sum(tensor.nbytes for tensor in tensors),
            dtype=str(typed[0].dtype) if typed else None,
            op_name=getattr(arguments.get("op", dist.ReduceOp.SUM), "name", "") if "op" in signature.parameters else "",
            each=_each(name, arguments, tensors),
        )
        with recorder:
            try:
                result = original(*args, **kwargs)
            except RuntimeError as error:
                if "Invalid scalar type" not in str(error) or not typed:
                    raise
                bytes_of_it = "" if "reduce" in name else ", or pass its bytes as x.view(torch.uint8)"
                why = f"gloo has no {name} for {typed[0].dtype}: convert the tensor to another dtype{bytes_of_it}"
                raise RuntimeError(why) from None
        if blocking:
            recorder.write(e="done", i=number)
            return result
        if result is None:  # this rank is not in the group
            return None
        result.get_future().add_done_callback(lambda _: recorder.write(e="over", i=number))
        return _RecordedWork(result, recorder, number)

    return call


def _root(arguments: dict[str, Any], members: list[int] | None) -> int | None:
    """The `src` or `dst` of a collective, or the rank that its number in the group means; None if it has none."""
    for key in ("src", "dst"):
        if arguments.get(key) is not None:
            return int(arguments[key])
        if (place := arguments.get(f"group_{key}")) is not None:
            return int(members[place] if members is not None and 0 <= place < len(members) else place)
    return None


def _each(name: str, arguments: dict[str, Any], tensors: list[torch.Tensor]) -> int | None:
    """The bytes that every rank of a collective must name alike; None if they may differ, or if there are none."""
    if name == "scatter":
        tensors = [tensor] if isinstance(tensor := arguments.get("tensor"), torch.Tensor) else []
    split = arguments.get("output_split_sizes") or arguments.get("input_split_sizes")
    return None if name == "all_to_all" or split or not tensors else sum(tensor.nbytes for tensor in tensors)


def _caller() -> list[Any]:
    """[file, line] of the innermost frame that is neither ours nor torch's: the worker's call."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((_HERE, _TORCH)):
            return [file, frame.f_lineno]
        frame = frame.f_back
    return ["", 0]
