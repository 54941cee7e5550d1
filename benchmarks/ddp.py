"""How fast is lesson 05's bucketed wrapper compared with torch's DistributedDataParallel? Both in one run, in turn.

    python benchmarks/ddp.py [--rounds 30] [--steps 5] [--world-size 2]

Each rank wraps two copies of one model, trains a few steps with the first, a few with the second, and so on;
torch's has a process group of its own. Prints the median time of a step for both and their ratio.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import ranks
from autograder.lesson import notebook

WIDTH, LAYERS, ROWS = 1024, 8, 128
#: One layer per bucket: 1024² weights and 1024 biases of 4 bytes are a little more than 4 MiB.
BUCKET_MIB = 5


def build() -> nn.Module:
    """33.6 MB of parameters, the same on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(*[layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())])


def seconds_a_step(rank: int, world_size: int, ddp_class: Any, rounds: int, steps: int) -> tuple[list, list]:
    """In a rank: the seconds of a training step in each round but the first, with our wrapper and with torch's."""
    model = build()
    ours = ddp_class(copy.deepcopy(model), bucket_bytes=BUCKET_MIB * 2**20)
    theirs = nn.parallel.DistributedDataParallel(model, process_group=dist.new_group(), bucket_cap_mb=BUCKET_MIB)
    x = torch.randn(ROWS, WIDTH)
    runs: list[tuple[nn.Module, torch.optim.Optimizer, Callable, list]] = [
        (ddp, torch.optim.SGD(ddp.parameters(), lr=0.01), finish, [])
        for ddp, finish in ((ours, ours.finish_gradient_sync), (theirs, lambda: None))
    ]
    for _ in range(rounds + 1):
        for ddp, optimizer, finish, times in runs:
            dist.barrier()
            begin = time.perf_counter()
            for _ in range(steps):
                optimizer.zero_grad()
                ddp(x).square().mean().backward()
                finish()
                optimizer.step()
            times.append((time.perf_counter() - begin) / steps)
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)  # both did the same work
    return runs[0][3][1:], runs[1][3][1:]


def main() -> None:
    """Alternate the two, so that a slow phase of the machine affects both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--world-size", type=int, default=2)
    arguments = parser.parse_args()
    ddp_class = notebook.functions("05_ddp")["DistributedDataParallel"]
    results = ranks.run(
        seconds_a_step, arguments.world_size, (ddp_class, arguments.rounds, arguments.steps), timeout=600
    )
    # A step lasts as long as its slowest rank.
    ours, theirs = ([max(column) for column in zip(*of_ranks, strict=True)] for of_ranks in zip(*results, strict=True))
    mine, torchs = statistics.median(ours), statistics.median(theirs)
    pairs = sorted(a / b for a, b in zip(ours, theirs, strict=True))
    low, high = pairs[len(pairs) // 4], pairs[-1 - len(pairs) // 4]
    print(f"{arguments.world_size} ranks, {len(ours)} rounds of {arguments.steps} steps each, median of a step:")
    print(f"  torch's DistributedDataParallel  {1e3 * torchs:7.1f} ms")
    print(f"  lesson 05's                      {1e3 * mine:7.1f} ms")
    print(f"  ratio                            {mine / torchs:7.2f}     (half of the rounds: {low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
