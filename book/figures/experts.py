"""The still of a layer of experts: the rows that four experts get from four ranks, by lesson 14's functions.

The routers' scores are those of the live figure (experts.js), so that page and paper show the same draw.
"""

from __future__ import annotations

import torch

from autograder.lesson import notebook

CAPTION = "Rows per expert. Ranks wait for the busiest one; a capacity cuts its queue, and drops choices"
RANKS, TOKENS, CHOICES, FAVORITE, DRAW = 4, 16, 2, 1, 68
#: name -> how much the router prefers expert FAVORITE, and the capacity factor.
CASES = {"without favorites": (0, None), "with a favorite": (5000, None), "and capacity factor 1": (5000, 1.0)}
#: In units of the picture: a row's length, a bar's height, the distance of two bars, and where bars begin.
ROW, HEIGHT, APART, LEFT, WIDTH = 2.6, 16, 21, 60, 250


def still() -> tuple[str, str]:
    """The picture and its text alternative."""
    marks, said = [], []
    for place, (name, (preference, factor)) in enumerate(CASES.items()):
        left = place * WIDTH
        marks.append(f'<text class="still-title" x="{left}" y="12">{name}</text>')
        counts, dropped, first = served(preference, factor)
        for expert in range(RANKS):
            y, x = 24 + APART * expert, left + LEFT
            marks.append(f'<text class="still-label" x="{left}" y="{y + 12}">expert {expert}</text>')
            for rank in range(RANKS):
                look = f"fill: var(--rank-{rank}); opacity: 1; stroke: none"
                width = ROW * counts[rank][expert]
                marks.append(f'<rect x="{x:g}" y="{y}" width="{width:g}" height="{HEIGHT}" style="{look}"/>')
                x += width
            total = sum(counts[rank][expert] for rank in range(RANKS))
            marks.append(f'<text class="still-label" x="{x + 5:g}" y="{y + 12}">{total}</text>')
        totals = [sum(column) for column in zip(*counts, strict=True)]
        idle = f"ranks wait {100 * (1 - sum(totals) / RANKS / max(totals)):.0f} % of the time"
        marks.append(f'<text class="still-label" x="{left}" y="{38 + APART * RANKS}">{idle}</text>')
        said.append(f"{name}: {', '.join(map(str, totals))}, so {idle}")
        if dropped:
            lost = f"{dropped} choices dropped, {first} of them first"
            marks.append(f'<text class="still-label" x="{left}" y="{55 + APART * RANKS}">{lost}</text>')
            said[-1] += f"; {lost}"
    y = 80 + APART * RANKS
    key = f"Rows of {TOKENS} tokens on each rank, {CHOICES} choices per token. Tokens of"
    marks.append(f'<text class="still-label" x="0" y="{y}">{key}</text>')
    for rank in range(RANKS):
        x = 2 * WIDTH - 90 + 80 * rank
        look = f"fill: var(--rank-{rank}); opacity: 1; stroke: none"
        marks.append(f'<rect x="{x}" y="{y - 11}" width="13" height="13" style="{look}"/>')
        marks.append(f'<text class="still-label" x="{x + 18}" y="{y}">rank {rank}</text>')
    alt = f"The rows that experts 0 to {RANKS - 1} get. {'; '.join(said)}."
    size = f"{3 * WIDTH} {88 + APART * RANKS}"
    return f'<svg viewBox="0 0 {size}" xmlns="http://www.w3.org/2000/svg">{"".join(marks)}</svg>', alt


def served(preference: int, factor: float | None) -> tuple[list[list[int]], int, int]:
    """How many rows each rank sends to each expert; how many choices are dropped, and how many of these are first."""
    lesson = notebook.functions("14_experts")
    most = None if factor is None else lesson["capacity"](TOKENS, RANKS, CHOICES, factor)
    counts, kept, first = [], 0, 0
    for of_rank in scores(preference):
        _, chosen, _ = lesson["route"](torch.tensor(of_rank) / 1e4, CHOICES)
        order, of_expert = lesson["plan"](chosen, RANKS, most)
        counts.append(of_expert.tolist())
        kept, first = kept + len(order), first + int((order % CHOICES == 0).sum())
    return counts, RANKS * TOKENS * CHOICES - kept, RANKS * TOKENS - first


def scores(preference: int) -> list[list[list[int]]]:
    """scores[rank][token][expert], as in experts.js."""
    return [
        [
            [8 * (shuffled(rank, token, e) + preference * (e == FAVORITE)) + e for e in range(RANKS)]
            for token in range(TOKENS)
        ]
        for rank in range(RANKS)
    ]


def shuffled(rank: int, token: int, expert: int) -> int:
    """A number from 0 to 9999 that looks random: `shuffled` of experts.js, in 32 bits."""
    x = (rank + DRAW) * 0x9E3779B1 ^ (token + 1) * 0x85EBCA6B ^ (expert + 1) * 0xC2B2AE35
    for shift, factor in ((15, 0x2C1B3C6D), (12, 0x297A2D39)):
        x &= 0xFFFFFFFF
        x = (x ^ x >> shift) * factor
    x &= 0xFFFFFFFF
    return (x ^ x >> 15) % 10000
