"""What one rank does from its start to its end; runs in a process of its own.

It is told what to do over a connection, joins the process group, calls the worker and hands back bytes.
It keeps the group open until the parent says that every rank is done: a rank that returns early must not
make the others' waits look like network errors.
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

from ranks import record

_LOOPBACK = {"linux": "lo", "darwin": "lo0"}


def main(connection: Any, rank: int) -> None:
    """Serve one run as `rank`: receive the job, do it, deliver ("result", bytes) or ("error", …)."""
    job = connection.recv()
    _redirect_output(job["folder"], rank)
    _take_over_environment(job)
    try:
        _join(job, rank)
        worker, args = pickle.loads(job["payload"])
        result = worker(rank, job["world_size"], *args)
        for thread in threading.enumerate():  # as a Python program that ends would
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
        message = _pack(result)
    except BaseException as error:
        message = ("error", type(error).__name__, str(error), _frames(error))
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    with contextlib.suppress(OSError, EOFError):
        connection.send(message)
        connection.recv()  # the parent has everybody's answer
    os._exit(0)  # no teardown that could wait for another rank


def _join(job: dict, rank: int) -> None:
    """Seed, start the process group over files and loopback, and begin to record."""
    folder, world_size = Path(job["folder"]), job["world_size"]
    torch.set_num_threads(1)
    torch.manual_seed(job["seed"] + rank)
    np.random.seed((job["seed"] + rank) % 2**32)
    random.seed(job["seed"] + rank)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world_size))
    if sys.platform in _LOOPBACK:
        os.environ["GLOO_SOCKET_IFNAME"] = _LOOPBACK[sys.platform]
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(str(folder / "rendezvous"), world_size),
        rank=rank,
        world_size=world_size,
        timeout=datetime.timedelta(seconds=job["timeout"] + 60),  # ours comes first, and explains more
    )
    if hasattr(signal, "SIGUSR1"):
        # Prints the stack even from inside a C++ call, where no Python signal handler would run.
        faulthandler.register(signal.SIGUSR1, (folder / f"stack.{rank}").open("w"), all_threads=False)
    dist.barrier()  # all start together, so that the times of the first messages mean something
    record.install(str(folder / f"events.{rank}"))


def _take_over_environment(job: dict) -> None:
    """The parent's folder, import path and variables, as they are at the time of the call."""
    os.environ.clear()
    os.environ.update(job["environment"])
    os.chdir(job["cwd"])
    sys.path[:] = job["sys_path"]


def _redirect_output(folder: str, rank: int) -> None:
    """Everything printed, from Python and from C++, goes to a file that the parent reads as it grows."""
    output = os.open(os.path.join(folder, f"output.{rank}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdin = open(0, closefd=False)
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)


def _pack(result: Any) -> tuple:
    """The result as bytes, so that nothing of it can be lost when this process ends."""
    import cloudpickle

    try:
        return ("result", cloudpickle.dumps(result))
    except Exception as error:
        what = f"returned a {type(result).__name__}, which cannot be sent back ({error}); return plain values"
        return ("error", "", what, [])


def _frames(error: BaseException) -> list[dict]:
    """The chain of exceptions, the cause first, as plain data; the parent knows the cells' source."""
    chain: list[dict] = []
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        stack = [(f.filename, f.lineno, f.name) for f in traceback.extract_tb(error.__traceback__)]
        chain.append({"type": type(error).__name__, "text": str(error), "stack": stack})
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return chain[::-1]
