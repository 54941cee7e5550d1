"""What one rank does from its start to its end, in a process of its own.

It receives its job over a connection, joins the process group, calls the worker and sends back the result as bytes.
It keeps the group open until the parent says that every rank is done: when a rank returns early, the others' waits
must not fail with network errors.
"""

from __future__ import annotations

import contextlib
import datetime
import faulthandler
import os
import pickle
import random
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from ranks import record, sending

#: Characters of an exception's text that are sent to the parent.
LONGEST_TEXT = 20_000

_LOOPBACK = {"linux": "lo", "darwin": "lo0"}


def main(connection: Any, rank: int) -> None:
    """Serve one run as `rank`: receive the job, do it, deliver ("result", bytes) or ("error", …)."""
    job = connection.recv()
    _redirect_output(job["folder"], rank)
    _take_over_environment(job)
    try:
        _join(job, rank)
        worker, args, main_names = pickle.loads(job["payload"])
        sending.put_into_main(main_names)
        try:
            result = worker(rank, job["world_size"], *args)
        except SystemExit as error:
            if error.code not in (None, 0):
                raise
            result = None  # as a program that ends well
        for thread in threading.enumerate():  # as a Python program that ends would
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
        message = _pack(result)
    except BaseException as error:
        message = ("error", type(error).__name__, _text(error), _frames(error))
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    with contextlib.suppress(OSError, EOFError):
        connection.send(message)
        connection.recv()  # the parent has everybody's answer
    os._exit(0)  # no teardown that could wait for another rank


def _join(job: dict[str, Any], rank: int) -> None:
    """Seed the random numbers, start the process group over loopback, and begin to record."""
    folder, world_size = Path(job["folder"]), job["world_size"]
    torch.set_num_threads(1)
    # Without devices, torch.manual_seed keeps seeds for them all the same, in a seventh of the time of an empty run.
    seed_torch = torch.manual_seed if torch.accelerator.is_available() else torch.default_generator.manual_seed
    seed_torch(job["seed"] + rank)
    np.random.seed((job["seed"] + rank) % 2**32)
    random.seed(job["seed"] + rank)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world_size))
    if sys.platform in _LOOPBACK:
        os.environ["GLOO_SOCKET_IFNAME"] = _LOOPBACK[sys.platform]
    _let_no_thread_interrupt_another()
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(str(folder / "rendezvous"), world_size),
        rank=rank,
        world_size=world_size,
        # The run's own timeout comes first and explains more; on a busy machine it comes late.
        timeout=datetime.timedelta(seconds=job["timeout"]) + datetime.timedelta(days=1),
    )
    if sys.platform != "win32":
        # Prints the stack even from inside a C++ call, where no Python signal handler would run.
        faulthandler.register(signal.SIGUSR1, (folder / f"stack.{rank}").open("w"), all_threads=False)
    dist.barrier()  # a common start, so that the first messages' times can be compared
    record.install(str(folder / f"events.{rank}"))


def _let_no_thread_interrupt_another() -> None:
    """Run this process's threads, also those that start later, under Linux's policy for batch work.

    gloo's own thread wakes up for each message. Under the usual policy it often interrupts the thread that calls send
    or receive while that one holds the connection's lock. It then tries to take the lock again and again until its
    time slice ends (`Pair::handleEvents` in gloo/transport/tcp/pair.cc). With more ranks than cores this takes nearly
    all of the time: 4 ranks on 2 cores pass a message on in 2 ms instead of 0.2 ms (`benchmarks/messages.py`).
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # a container may forbid it
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _take_over_environment(job: dict[str, Any]) -> None:
    """Take the parent's working folder, import path and environment variables as they were at the call of `run`."""
    os.environ.clear()
    os.environ.update(job["environment"])
    os.chdir(job["cwd"])
    sys.path[:] = job["sys_path"]


def _redirect_output(folder: str, rank: int) -> None:
    """Send what Python and C++ print to a file, which the parent reads as it grows."""
    output = record.open_to_append(os.path.join(folder, f"output.{rank}"))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdin = open(0, closefd=False)
    for fd, name in ((1, "stdout"), (2, "stderr")):
        stream = open(fd, "w", buffering=1, encoding="utf-8", errors="replace", newline="\n", closefd=False)
        setattr(sys, name, stream)


def _pack(result: Any) -> tuple[Any, ...]:
    """("result", its bytes), which outlive this process, as shared memory would not."""
    try:
        return ("result", sending.packed(result))
    except Exception as error:
        what = f"returned a {type(result).__name__}, which cannot be sent back ({error}); return plain values"
        return ("error", "", what, [])


def _text(error: BaseException) -> str:
    """What an exception says of itself, whatever that takes: as text that can be printed, and not without end."""
    if type(error).__name__ == "BdbQuit":
        return "breakpoint() and pdb need a terminal, which a rank does not have: print, or call the function by itself"
    if isinstance(error, EOFError) and str(error) == "EOF when reading a line":
        return "input() has nothing to read in a rank: pass what it needs in `args`"
    try:
        text = str(error)
    except Exception as another:
        return f"(its text cannot be shown: __str__ raised {type(another).__name__})"
    if "Unable to find address for: lo" in text:
        return "gloo finds no loopback network on this machine, over which the ranks would talk: `ip link set lo up`"
    if len(text) > LONGEST_TEXT:
        text = f"{text[:LONGEST_TEXT]} … and {len(text) - LONGEST_TEXT:,} more characters"
    return text.encode("utf-8", "backslashreplace").decode()


def _said(error: BaseException) -> str:
    """The text of an exception, the notes that were added to it, and the exceptions that it groups."""
    lines = [_text(error), *(str(note) for note in getattr(error, "__notes__", ()))]
    lines += [f"  {type(one).__name__}: {_text(one)}" for one in getattr(error, "exceptions", ())]
    return "\n".join(lines)


def _frames(error: BaseException) -> list[dict[str, Any]]:
    """The chain of exceptions, the cause first, as plain data; the parent knows the source of the cells."""
    chain: list[dict[str, Any]] = []
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        stack = [(f.filename, f.lineno, f.name) for f in traceback.extract_tb(link.__traceback__)]
        chain.append({"type": type(link).__name__, "text": _said(link), "stack": stack})
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return chain[::-1]
