"""Whose gradient a router and an expert hold after backward on two ranks, and what is left to do with it."""

from __future__ import annotations

from drawing import box, drawing, label

CAPTION = "Backward from two ranks' losses. The exchanges have summed an expert's gradient, but not a router's"
#: (rank, what it holds, the ranks from whose losses a gradient reaches it).
HOLDERS = ((0, "router", (0,)), (0, "expert 0", (0, 1)), (1, "expert 1", (0, 1)), (1, "router", (1,)))
SUBSCRIPTS = "₀₁"
#: In units of the picture: left edges of the holders, a box, the rows' names, and each row's y.
LEFTS, WIDE, HIGH, NAMES = (2, 110, 240, 348), 100, 26, 460
LOSSES, PARTS, HELD, DONE, RESULT = 24, 114, 160, 178, 228


def _sum(losses: tuple[int, ...]) -> str:
    return " + ".join(f"∂L{SUBSCRIPTS[loss]}" for loss in losses)


def to_do(losses: tuple[int, ...]) -> str:
    """What makes the mean of both losses' gradients from what is held."""
    return "÷ 2" if len(losses) == len(SUBSCRIPTS) else "all-reduce, ÷ 2"


def still() -> tuple[str, str]:
    """The picture and its text alternative."""
    marks, said = [], []
    centers = [(LEFTS[2 * rank] + LEFTS[2 * rank + 1] + WIDE) / 2 for rank in (0, 1)]
    for (_, _, losses), left in zip(HOLDERS, LEFTS, strict=True):
        for loss in losses:
            x, end, y, bend = centers[loss], left + WIDE / 2, LOSSES + HIGH, (PARTS - LOSSES - HIGH) / 2
            way = f"M{x:g} {y}C{x:g} {y + bend:g} {end:g} {PARTS - bend:g} {end:g} {PARTS}"
            marks.append(f'<path class="moved" style="stroke: var(--rank-{loss})" d="{way}"/>')
    for rank, center in enumerate(centers):
        marks.append(label(LEFTS[2 * rank], 14, f"rank {rank}", "still-title"))
        frame = f'width="{WIDE}" height="{HIGH}" rx="3" style="fill: none; stroke: var(--rank-{rank}); stroke-width: 2"'
        marks.append(f'<rect x="{center - WIDE / 2:g}" y="{LOSSES}" {frame}/>')
        marks.append(label(center, LOSSES + 17, f"loss L{SUBSCRIPTS[rank]}", "still-label", "middle"))
    middle, pill = sum(centers) / 2, (LOSSES + HIGH + PARTS) / 2
    marks.append(box(middle - 58, pill - 10, 116, 19, "pill", 9))
    marks.append(label(middle, pill + 4, "all-to-alls, back", "still-title", "middle"))
    for (rank, name, losses), left in zip(HOLDERS, LEFTS, strict=True):
        center = left + WIDE / 2
        marks.append(box(left, PARTS, WIDE, HIGH, "node-gpu"))
        marks.append(label(center, PARTS + 17, name, "still-title", "middle"))
        marks.append(label(center, HELD, _sum(losses), "still-label", "middle"))
        marks.append(box(left, DONE, WIDE, 20, "pill", 9))
        marks.append(label(center, DONE + 14, to_do(losses), "still-label", "middle"))
        marks.append(label(center, RESULT - 8, f"½ ({_sum((0, 1))})", "still-label", "middle"))
        said.append(f"rank {rank}'s {name} holds {_sum(losses)}, which needs {to_do(losses)}")
    for y, name in ((HELD, "after backward"), (DONE + 14, "left to do"), (RESULT - 8, "gradient of the mean")):
        marks.append(label(NAMES, y, name, "still-label"))
    alt = f"Gradients flow back from two ranks' losses: {'; '.join(said)}. All four end as half of {_sum((0, 1))}."
    return drawing(NAMES + 126, RESULT, marks), alt
