"""Inside a rank: record every call of a communication function, before it begins and when it has ended.

`install(path)` replaces the communication functions of `torch.distributed` in this process by wrappers that append a
line to a file before and after the real call. The file outlives the process, so it shows what a rank was doing when it
hung or died. `current_path` says where this process records, and `detach` stops it. A line is a JSON object:

    {"e": "call", "i": 7, "op": "send", "peer": 1, "bytes": 64, …, "at": [file, line], "t": seconds}
    {"e": "wait", "i": 7, "at": …, "t": …}       the rank now blocks until operation 7 is done
    {"e": "done", "i": 7, "t": …}                the call of operation 7, or the wait for it, has returned
    {"e": "over", "i": 7, "t": …}                the asynchronous collective 7 is over, whether or not the rank waits
    {"e": "asked", "i": 7, "t": …}               the worker asked for the future or the state of operation 7
    {"e": "dropped", "i": 7, "t": …}             nobody holds the object of the message 7 any more
    {"e": "failed", "i": 7, "begun": true, …}    operation 7 raised, after it had begun or because torch refused it
    {"e": "left", "at": …, "t": …}               the worker ended the group of all ranks
    {"e": "begin", "i": 8, "name": "backward", "t": …}   the worker enters a stretch that it marked with
    {"e": "end", "i": 8, "t": …}                         torch.profiler.record_function, and leaves it

What torch's C++ code sends by itself, such as the gradients of DistributedDataParallel, is not recorded.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import json
import operator
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import device_mesh, distributed_c10d

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
    "all_reduce_coalesced": "tensors",
    "all_gather_coalesced": "input_tensor_list",
    "scatter_object_list": "",
}

#: Send or receive → its parameter for the other rank.
PEERS = {"send": "dst", "recv": "src", "isend": "dst", "irecv": "src"}

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
        #: Asynchronous operations → their numbers, and what they are called if they are messages.
        self.works: weakref.WeakKeyDictionary[dist.Work, tuple[int, str]] = weakref.WeakKeyDictionary()
        self.waited: set[int | None] = set()

    def write(self, **event: Any) -> None:
        event["t"] = time.monotonic()
        # "over" and "dropped" come from any thread, such as gloo's, and not from one that communicates.
        if event["e"] not in ("over", "dropped"):
            if threading.current_thread() is not threading.main_thread():
                event["thread"] = threading.get_ident()
            elif threading.active_count() > 1:
                event.setdefault("beside", "thread")
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

    def dropped(self, number: int) -> None:
        """Nobody holds the object of message `number` any more, so nobody can wait for it."""
        if number not in self.waited:
            self.write(e="dropped", i=number)

    @property
    def nested(self) -> bool:
        """Was this call made by torch itself, inside a call that is being recorded?"""
        return getattr(self._inside, "depth", 0) > 0

    @contextlib.contextmanager
    def failing(self, number: int) -> Iterator[None]:
        """Record it if operation `number` raises, and whether it may have begun: torch refuses some arguments."""
        try:
            yield
        except Exception as error:
            self.write(e="failed", i=number, begun=isinstance(error, RuntimeError))
            raise

    def __enter__(self) -> None:
        self._inside.depth = getattr(self._inside, "depth", 0) + 1

    def __exit__(self, *_: Any) -> None:
        self._inside.depth -= 1


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
    from torch.distributed import _functional_collectives  # needs the new names

    remaps = _functional_collectives.traceable_collective_remaps  # the functions that torch.compile can translate
    for name in (*PEERS, *COLLECTIVES, "new_group"):
        original = getattr(distributed_c10d, name, None)
        if original is None:  # this version of torch does not have it
            continue
        recorded = functools.wraps(original)(_recorded(recorder, name, original))
        _replace(name, original, recorded)
        if original in remaps:
            remaps[recorded] = remaps[original]
    _record_leaving(recorder)
    _record_works(recorder)
    _record_spans(recorder)


def _replace(name: str, original: Callable[..., Any], recorded: Callable[..., Any]) -> None:
    for module in (dist, distributed_c10d, device_mesh):
        if getattr(module, name, None) is original:
            setattr(module, name, recorded)


def _record_leaving(recorder: _Recorder) -> None:
    """Record where the worker ends the group of all ranks."""
    destroy = dist.destroy_process_group

    def recorded(group: Any = None) -> None:
        if group is None or group is dist.group.WORLD:
            recorder.write(e="left", at=_caller())
        destroy(group)

    _replace("destroy_process_group", destroy, functools.wraps(destroy)(recorded))


def _record_works(recorder: _Recorder) -> None:
    """Record the waits for asynchronous operations. Their objects stay torch's own, which torch itself may wait for."""
    wait, asked = dist.Work.wait, set[int]()

    def recorded(self: dist.Work, *args: Any, **kwargs: Any) -> Any:
        number, message = recorder.works.get(self, (None, ""))
        if number in recorder.waited and message:  # gloo would wait forever for one that has arrived already
            raise RuntimeError(f"wait() was called twice on the same {message}: call it once for each message")
        if number is None or number in recorder.waited:
            return wait(self, *args, **kwargs)
        recorder.write(e="wait", i=number, at=_caller(), **({"beside": "limit"} if args or kwargs else {}))
        with recorder.failing(number):
            result = wait(self, *args, **kwargs)
        recorder.waited.add(number)
        recorder.write(e="done", i=number)
        return result

    def asking(ask: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(self: dist.Work, *args: Any) -> Any:
            number, _ = recorder.works.get(self, (None, ""))
            if number is not None and number not in asked and not recorder.nested:
                asked.add(number)
                recorder.write(e="asked", i=number)
            return ask(self, *args)

        return functools.wraps(ask)(recorded)

    setattr(dist.Work, "wait", functools.wraps(wait)(recorded))  # noqa: B010 (no mypy on an assignment)
    for name in ("get_future", "is_completed", "synchronize"):
        setattr(dist.Work, name, asking(getattr(dist.Work, name)))


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


def _recorded(recorder: _Recorder, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """The function of this name, with its calls recorded. What torch does not accept is left to torch to refuse."""
    signature = inspect.signature(original)

    def call(*args: Any, **kwargs: Any) -> Any:
        facts = None if recorder.nested else _facts(name, signature, args, kwargs)
        if facts is None:
            return original(*args, **kwargs)
        blocking = facts.pop("blocking")
        number = recorder.call(name, blocking, **facts)
        try:
            with recorder, recorder.failing(number):
                result = original(*args, **kwargs)
        except RuntimeError as error:
            if "Invalid scalar type" not in str(error) or name in PEERS:
                raise
            bytes_of_it = "" if "reduce" in name else ", or pass its bytes as x.view(torch.uint8)"
            why = f"gloo has no {name} for {facts['dtype']}: convert the tensor to another dtype{bytes_of_it}"
            raise RuntimeError(why) from None
        # Of a call that starts nothing, torch returns None or, if it starts it later with others, an illegal Work.
        if blocking or result is None or isinstance(result, distributed_c10d._IllegalWork):
            # A receive from any rank returns the rank whose message it took.
            recorder.write(e="done", i=number, **({"peer": result} if name == "recv" and facts["peer"] is None else {}))
        elif not isinstance(result, dist.Work):  # coalesced calls return a future, whose waits are not seen
            recorder.write(e="asked", i=number)
        else:
            recorder.works[result] = number, name if name in PEERS else ""
            if name in PEERS:
                weakref.finalize(result, recorder.dropped, number).atexit = False
            else:
                # Not each of gloo's operations has a future: of reduce_scatter, nothing says when it was over.
                with recorder, contextlib.suppress(RuntimeError):
                    result.get_future().add_done_callback(lambda _: recorder.write(e="over", i=number))
        return result

    return call


def _facts(name: str, signature: inspect.Signature, args: Any, kwargs: Any) -> dict[str, Any] | None:
    """What is recorded of a call, and whether it blocks; None if it is not recorded."""
    try:
        given = signature.bind_partial(*args, **kwargs).arguments
    except TypeError:
        return None
    if name == "new_group":
        return _new_group(given)
    facts = _message(name, given) if name in PEERS else _collective(name, given)
    facts["blocking"] = name not in ("isend", "irecv") and not given.get("async_op", False)
    from_torch = sys._getframe(2).f_code.co_filename.startswith(_TORCH)
    if not facts["blocking"] and (name in PEERS or not from_torch):
        facts["direct"] = True  # if anybody waits for it, then by `wait`; torch may hand a collective to its C++ code
    return facts


def _message(name: str, given: dict[str, Any]) -> dict[str, Any]:
    peer = _rank(given, PEERS[name], _members(given.get("group")))
    _check_peer(name, peer)
    tensor = given.get("tensor")
    tag = _whole(given.get("tag", 0)) or 0
    return {"peer": peer, "bytes": _nbytes(tensor) or 0, "dtype": _dtype(tensor), "tag": tag}


def _check_peer(name: str, peer: int | None) -> None:
    """gloo would wait forever for a rank that does not exist, and fail obscurely on a message to the rank itself."""
    direction = "to" if "send" in name else "from"
    if peer is not None and not 0 <= peer < dist.get_world_size():
        last = dist.get_world_size() - 1
        raise RuntimeError(f"{name} {direction} rank {peer}: there is no such rank, the last one is rank {last}")
    if peer == dist.get_rank() and name != "send":  # of which torch itself says so
        raise RuntimeError(f"{name} {direction} rank {peer}, which is this rank itself: no message is needed")


def _collective(name: str, given: dict[str, Any]) -> dict[str, Any]:
    members, tensor = _members(given.get("group")), given.get("tensor")
    tensors = _listed(given.get(COLLECTIVES[name]))
    sizes = [_nbytes(one) for one in tensors]
    each = _listed(_nbytes(tensor)) if name == "scatter" else sizes
    unequal = name == "all_to_all" or given.get("output_split_sizes") or given.get("input_split_sizes")
    op = getattr(given.get("op", dist.ReduceOp.SUM), "name", "") if "reduce" in name else ""
    return {
        "group": members,
        "root": _rank(given, "src", members, default=_rank(given, "dst", members)),
        "bytes": sum(size or 0 for size in sizes),
        "dtype": _dtype(*tensors, tensor),
        "op_name": op,
        "each": None if unequal or not each or None in each else sum(size or 0 for size in each),
        **_traps(name, given, [*tensors, *_listed(tensor)]),
    }


def _new_group(given: dict[str, Any]) -> dict[str, Any] | None:
    """Who shall be in the group; None if the others need not call, or if it is not known."""
    ranks = given.get("ranks")
    if given.get("use_local_synchronization") or not (ranks is None or hasattr(ranks, "__len__")):
        return None
    members = range(dist.get_world_size()) if ranks is None else map(_whole, ranks)
    return {"blocking": True, "group": sorted(rank for rank in members if rank is not None), "bytes": 0}


def _traps(name: str, given: dict[str, Any], tensors: list[Any]) -> dict[str, Any]:
    """What gloo takes without a word and computes wrongly: memory with gaps, memory that two results share."""
    if name in ("all_reduce", "broadcast", "reduce", "scatter"):
        layouts = {_layout(tensor) for tensor in tensors if _nbytes(tensor)}
        return {"layout": layouts.pop() if len(layouts) == 1 else "several"} if layouts - {""} else {}
    results = _listed(given.get({"all_gather": "tensor_list", "gather": "gather_list"}.get(name, "output_tensor_list")))
    plain = [one for one in results if type(one) in (torch.Tensor, torch.nn.Parameter) and _nbytes(one)]
    ends = sorted((one.data_ptr(), one.data_ptr() + one.nbytes) for one in plain if one.is_contiguous())
    return {"shared": True} if any(end > start for (_, end), (start, _) in itertools.pairwise(ends)) else {}


def _layout(tensor: torch.Tensor) -> str:
    """How the elements lie in memory: "" in their order, "with gaps", or in another order."""
    if tensor.is_contiguous():
        return ""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride != expected:
            return "with gaps"
        expected *= size
    return f"with strides {tuple(tensor.stride())}"


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [] if value is None else [value]


def _members(group: Any) -> list[int] | None:
    """The ranks of a group; None for the group of all ranks, and for what is no group."""
    if group is dist.group.WORLD or not isinstance(group, dist.ProcessGroup):
        return None
    return [operator.index(rank) for rank in dist.get_process_group_ranks(group)]


def _rank(given: dict[str, Any], key: str, members: list[int] | None, default: int | None = None) -> int | None:
    """The rank in the parameter `key` ("src" or "dst"), or the one that its number in the group means; or `default`."""
    if (rank := _whole(given.get(key))) is not None:
        return rank
    if (place := _whole(given.get(f"group_{key}"))) is not None:
        return members[place] if members is not None and 0 <= place < len(members) else place
    return default


def _whole(value: Any) -> int | None:
    """A whole number of any type as Python's own; None for anything else."""
    try:
        return operator.index(value)
    except TypeError:
        return None


def _nbytes(value: Any) -> int | None:
    """The bytes of a dense tensor; None for anything else."""
    return value.nbytes if isinstance(value, torch.Tensor) and value.layout is torch.strided else None


def _dtype(*values: Any) -> str | None:
    return next((str(value.dtype) for value in values if isinstance(value, torch.Tensor)), None)


def _caller() -> list[Any]:
    """[file, line] of the innermost frame that is neither ours nor torch's: the worker's call."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((_HERE, _TORCH)):
            return [file, frame.f_lineno]
        frame = frame.f_back
    return ["", 0]
