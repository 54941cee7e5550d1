"""The still of causal attention: 24 tokens on five ranks in three layouts, counted by lesson 13's functions."""

from __future__ import annotations

import torch

from autograder.lesson import notebook

CAPTION = "Which rank computes which pairs of queries and keys, and how long ranks wait by each of three rules"
LENGTH, RANKS = 24, 5  # what the figure's question asks: twice 5 does not divide 24
LAYOUTS = ("contiguous", "striped", "zigzag")
#: In units of the picture: a cell's size, and the space between two squares.
CELL, GAP = 8, 16
TOP = 36


def waiting(pairs: torch.Tensor) -> tuple[float, float, float]:
    """The share of time that ranks wait in step, in a ring, and after one gather; pairs: (steps, ranks)."""
    start = end = torch.zeros(len(pairs))
    for counts in pairs:  # a rank goes on once both neighbors have begun this step: one sends to it, one receives
        end = start + counts
        start = torch.stack([end, start.roll(1), start.roll(-1)]).amax(0)
    steps, mean = pairs.amax(1).sum(), pairs.sum() / len(pairs)
    longest = (steps, end.max(), pairs.sum(0).max())
    in_step, in_ring, gathered = (1 - (mean / time).item() for time in longest)
    return in_step, in_ring, gathered


def still() -> tuple[str, str]:
    """The picture and its text alternative."""
    lesson = notebook.functions("13_context")
    marks, said, left = [], [], 0
    for layout in LAYOUTS:
        positions = [lesson["shard_positions"](LENGTH, rank, RANKS, layout) for rank in range(RANKS)]
        shares = [f"{100 * share:.1f}" for share in waiting(lesson["pair_counts"](positions))]
        waits = f"waiting {' / '.join(shares)} %"
        marks.append(f'<text class="still-title" x="{left}" y="12">{layout}</text>')
        marks.append(f'<text class="still-label" x="{left}" y="28">{waits}</text>')
        owner = {position: rank for rank, shard in enumerate(positions) for position in shard.tolist()}
        for query in range(LENGTH):
            for key in range(query + 1):
                x, y = left + key * CELL, TOP + query * CELL
                look = f"fill: var(--rank-{owner[query]}); fill-opacity: 0.45; opacity: 1; stroke: none"
                shape = f'x="{x}" y="{y}" width="{CELL - 1}" height="{CELL - 1}"'
                marks.append(f'<rect class="still-box" {shape} style="{look}"/>')
        said.append(f"{layout}: {waits}")
        left += LENGTH * CELL + GAP
    key = f"{LENGTH} tokens on {RANKS} ranks. Rows are queries in the color of their rank, columns keys."
    rules = "Waiting: in step / in a ring / after one gather."
    for line, y in ((key, 16), (rules, 32)):
        marks.append(f'<text class="still-label" x="0" y="{TOP + y + LENGTH * CELL}">{line}</text>')
    alt = f"Which of {RANKS} ranks computes which pairs of {LENGTH} queries and keys. {rules} {'; '.join(said)}."
    size = f"{left - GAP} {TOP + 38 + LENGTH * CELL}"
    return f'<svg viewBox="0 0 {size}" xmlns="http://www.w3.org/2000/svg">{"".join(marks)}</svg>', alt
