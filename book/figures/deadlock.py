"""The still of ranks that wait for each other: what four ranks in a ring do in three orders, run and recorded."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist

import ranks

CAPTION = "Ranks in a ring that wait for each other"
RANKS = 4
ORDERS = {"all send first": range(RANKS), "rank 0 receives first": range(1, RANKS), "even ranks send first": (0, 2)}
#: In units of the picture.
WIDE, HIGH, RADIUS, NODE = 200, 190, 55, 15


def pass_on(rank: int, world_size: int, senders: list[int]) -> None:
    """Send to the right and receive from the left, the send first if this rank is one of `senders`."""
    x, got = torch.full((3,), float(rank)), torch.empty(3)
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    if rank in senders:
        dist.send(x, dst=right)
    dist.recv(got, src=left)
    if rank not in senders:
        dist.send(x, dst=right)


def stuck(senders: list[int]) -> bool:
    """Does a real run of four ranks hang?"""
    try:
        ranks.run(pass_on, RANKS, (senders,))
    except ranks.HangError:
        return True
    return False


def still() -> tuple[str, str]:
    """The picture and its text alternative."""
    marks, said = [], []
    for k, (order, senders) in enumerate(ORDERS.items()):
        hangs = stuck(list(senders))
        ends = "every rank waits forever" if hangs else "all messages arrive"
        said.append(f"{order}: {ends}")
        marks += [
            f'<text class="still-{look}" text-anchor="middle" x="{(k + 0.5) * WIDE:g}" y="{y}">{words}</text>'
            for look, words, y in (("title", order, 14), ("label", ends, 30))
        ]
        center = ((k + 0.5) * WIDE, 36 + HIGH / 2)
        marks += [mark for rank in range(RANKS) for mark in _rank(rank, rank in senders, *center)]
    alt = f"Four ranks in a ring; each sends to its right neighbor and receives from its left one. {'; '.join(said)}."
    size = f"0 0 {WIDE * len(ORDERS)} {HIGH + 36}"
    return f'<svg viewBox="{size}" xmlns="http://www.w3.org/2000/svg">{"".join(marks)}</svg>', alt


def _rank(rank: int, sends_first: bool, x: float, y: float) -> list[str]:
    """A circle in the rank's color, and its first call."""
    angle = 2 * math.pi * rank / RANKS - math.pi / 2
    x, y = x + RADIUS * math.cos(angle), y + RADIUS * math.sin(angle)
    first = f"send to {(rank + 1) % RANKS}" if sends_first else f"recv from {(rank - 1) % RANKS}"
    return [
        f'<circle class="still-box still-done" cx="{x:.1f}" cy="{y:.1f}" r="{NODE}" '
        f'style="stroke: var(--rank-{rank})"/>',
        f'<text class="still-label" text-anchor="middle" x="{x:.1f}" y="{y + 4:.1f}">{rank}</text>',
        f'<text class="still-label" text-anchor="middle" x="{x:.1f}" y="{y + NODE + 13:.1f}">{first}</text>',
    ]
