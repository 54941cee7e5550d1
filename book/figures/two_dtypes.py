"""The way of a gradient: two ranks accumulate over micro-batches, then reduce over ranks, then divide once."""

from __future__ import annotations

import functools

from drawing import box, drawing, label

CAPTION = "Where gradients are added, in which dtype, and what each choice costs"
#: In units of the picture: a rank's row, and where its boxes stand.
ROW, BATCHES = 96, 3
MICRO, MAIN, WHOLE = 0, 140, 312
WIDE = 420
#: At each place of the picture: where its text stands, its name, and its two dtypes with their price.
PLACES = (
    (
        0,
        "1 accumulate, on a rank",
        "bf16: 2 bytes per parameter,",
        "a sum of equal terms stalls",
        "float32: 4 bytes, safe",
    ),
    (
        214,
        "2 reduce, over N ranks",
        "bf16: 2 bytes sent per parameter,",
        "error grows like √N",
        "float32: 4 bytes sent, safe",
    ),
)

_label = functools.partial(label, anchor="middle")


def still() -> tuple[str, str]:
    """The picture and its text alternative."""
    marks, center = [], ROW - 6
    for rank in (0, 1):
        top = ROW * rank
        middle = top + 42
        for k in range(BATCHES):
            y = top + 28 * k
            marks.append(box(MICRO, y, 84, 24, "node-gpu"))
            marks.append(_label(MICRO + 42, y + 16, f"backward {k}"))
            marks.append(f'<path class="node-pcie" d="M{MICRO + 84} {y + 12}L{MAIN} {middle}"/>')
        marks.append(box(MAIN, middle - 30, 98, 60, "node-switch"))
        for line, text in enumerate((f"rank {rank}", "main gradient", "and count")):
            kind = "still-label" if line else "still-title"
            marks.append(_label(MAIN + 49, middle - 13 + 17 * line, text, kind))
        marks.append(f'<path class="node-pcie" d="M{MAIN + 98} {middle}L{WHOLE} {center}"/>')
        for x, number in ((MICRO + 112, 1), (MAIN + 135, 2)):
            y = middle if number == 1 else (middle + center) / 2
            marks.append(f'<circle class="node-port" cx="{x}" cy="{y:g}" r="9"/>')
            marks.append(_label(x, y + 4, f"{number}", "still-title"))
    marks.append(box(WHOLE, center - 40, 108, 80, "node-port"))
    for line, text in enumerate(("sum over ranks", "÷ all counts, once", "optimizer: float32")):
        marks.append(_label(WHOLE + 54, center - 16 + 20 * line, text))
    for x, *lines in PLACES:
        for line, text in enumerate(lines):
            marks.append(label(x, 2 * ROW + 14 + 16 * line, text, "still-label" if line else "still-title"))
    choices = ". ".join(f"{name}: {' '.join(prices)}" for _, name, *prices in PLACES)
    alt = (
        f"Two ranks. On each, {BATCHES} backward passes leave bf16 gradients, which are added to its main gradient: "
        "place 1. The main gradients and the counts of both ranks are then summed over the ranks: place 2. The sum is "
        f"divided once by all counts and goes to the optimizer, in float32. {choices}."
    )
    return drawing(WIDE, 2 * ROW + 68, marks), alt
