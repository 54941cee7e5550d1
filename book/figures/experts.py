"""The still of a layer of experts: the rows that four experts get from four ranks, by lesson 14's functions."""

from __future__ import annotations

import torch

from autograder.lessons import notebook

CAPTION = "Rows on their way to their experts"
RANKS, TOKENS, CHOICES = 4, 16, 2
#: name -> how much the router prefers expert 1, and the capacity factor.
CASES = {"without favorites": (0.0, None), "with a favorite": (2.0, None), "and capacity factor 1": (2.0, 1.0)}
#: In units of the picture: a row's length, a bar's height, the distance of two bars, and where bars begin.
ROW, HEIGHT, APART, LEFT, WIDTH = 2.4, 16, 21, 60, 250


def still() -> tuple[str, str]:
    """The picture and its text alternative."""
    marks, said = [], []
    for place, (name, (preference, factor)) in enumerate(CASES.items()):
        left = place * WIDTH
        marks.append(f'<text class="still-title" x="{left}" y="12">{name}</text>')
        counts = rows(preference, factor)
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
        said.append(f"{name}: {', '.join(map(str, totals))}")
    key = f"Rows of {TOKENS} tokens on each rank, {CHOICES} choices per token, in the color of the token's rank."
    marks.append(f'<text class="still-label" x="0" y="{40 + APART * RANKS}">{key}</text>')
    alt = f"The rows that experts 0 to {RANKS - 1} get. {'; '.join(said)}."
    size = f"{3 * WIDTH} {48 + APART * RANKS}"
    return f'<svg viewBox="0 0 {size}" xmlns="http://www.w3.org/2000/svg">{"".join(marks)}</svg>', alt


def rows(preference: float, factor: float | None) -> list[list[int]]:
    """How many rows each rank sends to each expert."""
    lesson, generator = notebook.functions("14_experts"), torch.Generator().manual_seed(2)
    most = None if factor is None else lesson["capacity"](TOKENS, RANKS, CHOICES, factor)
    counts = []
    for _ in range(RANKS):
        logits = torch.randn(TOKENS, RANKS, generator=generator) + preference * torch.eye(RANKS)[1]
        _, chosen, _ = lesson["route"](logits, CHOICES)
        counts.append(lesson["plan"](chosen, RANKS, most)[1].tolist())
    return counts
