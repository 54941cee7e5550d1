"""How much faster is a warm `ranks.run` than `torch.multiprocessing.spawn`? Both in one run, in turn.

    python benchmarks/launch.py [--runs 3] [--world-size 4]

Each launch starts the ranks, does one all-reduce and ends them. Prints both medians and their ratio.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import ranks


def all_reduce_once(rank: int, world_size: int) -> float:
    """The work of one launch: a collective, which all ranks must join."""
    x = torch.ones(1)
    dist.all_reduce(x)
    return x.item()


def spawned(rank: int, world_size: int, rendezvous: str) -> None:
    """The same in a process that `mp.spawn` has started."""
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world_size)
    assert all_reduce_once(rank, world_size) == world_size
    dist.destroy_process_group()


def time_ranks(world_size: int) -> float:
    """Seconds for one warm `ranks.run`."""
    begin = time.perf_counter()
    assert ranks.run(all_reduce_once, world_size) == [world_size] * world_size
    return time.perf_counter() - begin


def time_spawn(world_size: int) -> float:
    """Seconds for one `torch.multiprocessing.spawn`."""
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        mp.spawn(spawned, args=(world_size, f"{folder}/rendezvous"), nprocs=world_size)
        return time.perf_counter() - begin


def main() -> None:
    """Alternate the two, so that a slow phase of the machine affects both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--world-size", type=int, default=4)
    arguments = parser.parse_args()
    time_ranks(arguments.world_size)  # warm: the server has loaded torch
    ours, theirs = [], []
    for _ in range(arguments.runs):
        ours += [time_ranks(arguments.world_size) for _ in range(5)]
        theirs.append(time_spawn(arguments.world_size))
    warm, spawn = statistics.median(ours), statistics.median(theirs)
    print(f"{arguments.world_size} ranks with one all-reduce, medians:")
    print(f"  torch.multiprocessing.spawn  {spawn:7.3f} s  ({len(theirs)} runs)")
    print(f"  ranks.run, warm              {warm:7.3f} s  ({len(ours)} runs)")
    print(f"  ratio                        {spawn / warm:7.1f}")


if __name__ == "__main__":
    main()
