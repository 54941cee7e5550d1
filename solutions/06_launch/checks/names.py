"""Lesson 06, exercise 1: a name for each attempt."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

from autograder.checking.check import check
from autograder.checking.expect import count_of_ranks, fail
from autograder.checking.stage import run_ranks
from autograder.checks.launch.common import outcome

#: Seconds that a rank may take when all others are there (a busy machine takes some of them), and after which an
#: attempt is killed.
LIMIT, CUT = 15.0, 0.3
#: Seconds between a rank and the next one, so that each attempt has an order.
BETWEEN = 0.08
#: Seconds for which a rank that comes late lets the others wait once.
PAUSE = 1.5


def _play(rank: int, world_size: int, fresh_name: Callable, scenes: list[dict]) -> list[tuple]:
    """Attempts on one store, one after the other; what this rank got in each, None where it did not take part.

    A scene has the ranks that call, in the order in which they come, the number of ranks that they are given, the
    pause before the last of them, and whether they are killed. No scene follows one in which a rank waited to the end:
    that one is wrong already.
    """
    served = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if rank == 0 else None
    told = [served and served.port]
    dist.broadcast_object_list(told)
    seen = []
    for number, scene in enumerate(scenes):
        # Each node counts its own restarts.
        os.environ["TORCHELASTIC_RESTART_COUNT"] = str(number if rank == 0 else 0)
        os.environ["TORCHELASTIC_RUN_ID"] = "job"
        torch.manual_seed(0)  # a new process has the same seed as the one before it
        limit = CUT if scene["killed"] else LIMIT + scene["pause"]
        wait = timedelta(seconds=limit)
        store = dist.TCPStore("127.0.0.1", told[0], is_master=False, wait_for_workers=False, timeout=wait)
        dist.barrier()
        got = None
        if rank in scene["ranks"]:
            last = len(scene["ranks"]) > 1 and rank == scene["ranks"][-1]
            time.sleep(BETWEEN * scene["ranks"].index(rank) + scene["pause"] * last)
            got = outcome(fresh_name, store, rank, scene["of"], seconds=limit)
        if got and got[0] == "returned":
            got = (*got, type(got[1]).__name__)
        seen.append(got)
        kinds: list[str | None] = [None] * world_size
        dist.all_gather_object(kinds, got and got[0])
        if "waited" in kinds and not scene["killed"]:
            break
    dist.barrier()
    return seen


def _scene(
    world_size: int, late: int = -1, ranks: tuple | None = None, killed: bool = False, pause: float = 0.0
) -> dict:
    ranks = tuple(range(world_size)) if ranks is None else ranks
    order = [rank for rank in ranks if rank != late] + [rank for rank in ranks if rank == late]
    return {"ranks": order, "of": world_size, "killed": killed, "pause": pause}


def _expect_names(fresh_name: Callable, world_size: int, scenes: list[tuple[str, dict]]) -> None:
    """In each attempt that is not killed, its ranks get one text, which no earlier attempt got."""
    results = run_ranks(_play, world_size, (fresh_name, [scene for _, scene in scenes]), timeout=60.0)
    names: list[str] = []
    for number, (name, scene) in enumerate(scenes):
        case = f"{count_of_ranks(scene['of'])}, {name}"
        got = [results[rank][number] for rank in scene["ranks"]]
        if scene["killed"]:
            names += [one[1] for one in got if one[0] == "returned"]
            continue
        kinds = [one[0] for one in got]
        for rank, one in zip(scene["ranks"], got, strict=True):
            if one[0] == "raised":
                fail(f"rank {rank} raised {one[1]}", case, ("raised", one[1]), one[1].split(":")[0])
        for rank, one in zip(scene["ranks"], got, strict=True):
            if one[0] == "waited":
                fail(f"rank {rank} was still waiting after {LIMIT:g} s, with all ranks there", case, ["waits", kinds])
        for rank, one in zip(scene["ranks"], got, strict=True):
            if one[2] != "str":
                fail(f"rank {rank} got {one[1]!r}, which is no text", case, one[2])
        texts = [one[1] for one in got]
        if len(set(texts)) > 1:
            # Sorted: on a busy machine the ranks do not always come in the order that was meant.
            old = sorted(text in names for text in texts)
            shape = sorted(text if len(text) < 20 else "long" for text in texts)  # a long one is random
            why = ", and one of them is that of an earlier attempt" if any(old) else ""
            fail(f"the ranks got different names, {texts}{why}", case, ["different", old, shape])
        if texts[0] in names:
            fail(f"an earlier attempt has had the name {texts[0]!r}", case, ["used", number])
        names.append(texts[0])


@check("06-ex1-fresh-name", points=2)
def attempts_get_fresh_names(fresh_name: Callable, *, rng: np.random.Generator) -> None:
    """In each of several attempts on one store, all ranks get the same new text, whichever of them comes late."""
    for world_size in (2, 3, 1):
        scenes = [("the first attempt", _scene(world_size))]
        for late in range(world_size):
            scenes.append((f"a later attempt in which rank {late} comes last", _scene(world_size, late)))
        if world_size == 2:
            scenes.append((f"an attempt in which rank 1 comes {PAUSE:g} s after rank 0", _scene(2, 1, pause=PAUSE)))
        _expect_names(fresh_name, world_size, scenes)


@check("06-ex1-fresh-name", points=1)
def killed_attempts_do_no_harm(fresh_name: Callable, *, rng: np.random.Generator) -> None:
    """The same holds after attempts that were killed, that some ranks never joined, or that had other world sizes."""
    scenes = [
        ("killed before rank 0 came", _scene(3, ranks=(1, 2), killed=True)),
        ("after an attempt that was killed before rank 0 came", _scene(3, late=0)),
        ("killed before rank 2 came", _scene(3, ranks=(0, 1), killed=True)),
        ("after an attempt that was killed before rank 2 came", _scene(3, late=2)),
        ("one rank less", _scene(2, ranks=(0, 1))),
        ("one rank more than before", _scene(3, late=0)),
        ("killed when only rank 0 was there", _scene(3, ranks=(0,), killed=True)),
        ("after an attempt of rank 0 alone", _scene(3, late=int(rng.integers(1, 3)))),
    ]
    _expect_names(fresh_name, 3, scenes)
