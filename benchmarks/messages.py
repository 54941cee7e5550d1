"""Times messages between ranks under two scheduling policies of Linux: batch, which `ranks` sets, and the usual one.

    .venv/bin/python benchmarks/messages.py [--rounds 5]

Every rank passes a vector of 7 numbers on around a ring, 200 times. The policies take turns, each in runs of its own.
Prints, for 2, 4 and 8 ranks, the median microseconds a step under each policy, and their ratio.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

import torch
import torch.distributed as dist

import ranks

STEPS = 200


def pass_around(rank: int, world_size: int, policy: int) -> float:
    """Inside a rank: microseconds a step, with all threads of the rank under this policy."""
    for thread in os.listdir("/proc/self/task"):
        os.sched_setscheduler(int(thread), policy, os.sched_param(0))
    mine, theirs = torch.zeros(7), torch.zeros(7)
    dist.barrier()
    started = time.perf_counter()
    for _ in range(STEPS):
        sending = dist.isend(mine, (rank + 1) % world_size)
        dist.recv(theirs, (rank - 1) % world_size)
        sending.wait()
    return (time.perf_counter() - started) / STEPS * 1e6


def main() -> None:
    """Time both policies in turn, and print a line for each number of ranks."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    print(f"{os.cpu_count()} cores, {STEPS} steps, median of {rounds} runs")
    for world_size in (2, 4, 8):
        times: dict[int, list[float]] = {os.SCHED_OTHER: [], os.SCHED_BATCH: []}
        for _ in range(rounds):
            for policy, found in times.items():
                found.append(statistics.mean(ranks.run(pass_around, world_size, (policy,))))
        usual, batch = (statistics.median(found) for found in times.values())
        print(f"{world_size} ranks: usual {usual:.0f} µs, batch {batch:.0f} µs a step, ratio {usual / batch:.1f}")


if __name__ == "__main__":
    main()
