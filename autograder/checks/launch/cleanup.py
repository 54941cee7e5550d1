"""Lesson 06, exercise 2: leave the group."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable

import torch.distributed as dist

from autograder.checking.check import check
from autograder.checking.expect import fail
from autograder.checking.stage import run_ranks
from autograder.checks.launch.common import meet_all


def _clean_up(rank: int, world_size: int, cleanup_ddp: Callable, folder: str) -> dict:
    """End the group, end it again, start and end a new one, then rank 0 alone ends one more."""
    seen, meeting = {}, dist.FileStore(os.path.join(folder, "meeting"), world_size)
    meet_all(meeting, "start", world_size)
    cleanup_ddp()
    seen["ended"] = not dist.is_initialized()
    try:
        cleanup_ddp()
        seen["twice"] = ""
    except Exception as error:
        seen["twice"] = type(error).__name__
        return seen
    if not seen["ended"]:
        return seen
    for name in ("again", "alone"):
        store = dist.FileStore(os.path.join(folder, name), world_size)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
        meet_all(meeting, name, world_size)
        if name == "again" or rank == 0:  # alone, the other ranks return at once
            cleanup_ddp()
            seen[name] = not dist.is_initialized()
    return seen


@check("06-ex2-cleanup-ddp")
def cleanup_ends_the_group(cleanup_ddp, *, rng):
    """Once, twice, after a new start, and without the other ranks."""
    for world_size in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            results = run_ranks(_clean_up, world_size, (cleanup_ddp, folder))
        case = f"{world_size} rank{'s' * (world_size > 1)}"
        for rank, seen in enumerate(results):
            if seen["twice"]:
                fail(f"the second cleanup_ddp() raised {seen['twice']} on rank {rank}", case, seen["twice"])
            if not seen["ended"]:
                fail(f"the group of rank {rank} is still up after cleanup_ddp()", case, "still up")
            if not seen["again"]:
                fail(f"a new group of rank {rank} is still up after cleanup_ddp()", case, "second group still up")
            if not seen.get("alone", True):
                fail("the group is still up after cleanup_ddp() on rank 0 alone", case, "alone")
