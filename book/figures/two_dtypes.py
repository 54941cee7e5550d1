"""The way of a gradient: two ranks accumulate over micro-batches, then reduce over ranks, then divide once."""

from __future__ import annotations

import functools

from drawing import box, drawing, label

CAPTION = "Where gradients are added: over micro-batches on a rank, and over ranks. Each place has a dtype of its own"
#: In units of the picture: a rank's row, and where its boxes stand.
ROW, BATCHES = 96, 3
MICRO, MAIN, WHOLE = 0, 132, 266
WIDE = 376

_label = functools.partial(label, anchor="middle")


def still() -> tuple[str, str]:
    """The picture and its text alternative."""
    marks = []
    marks.append(_label(MICRO + 42, 26, "bf16"))
    for x, number, name in ((MICRO + 102, 1, "accumulate"), (MAIN + 112, 2, "reduce")):
        marks += [_label(x + 6, 12, f"{number}", "still-title"), _label(x + 6, 26, name)]
    for rank in (0, 1):
        top = 36 + ROW * rank
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
        marks.append(f'<path class="node-pcie" d="M{MAIN + 98} {middle}L{WHOLE} {36 + ROW - 6}"/>')
    center = 36 + ROW - 6
    marks.append(box(WHOLE, center - 40, 110, 80, "node-port"))
    for line, text in enumerate(("sum over ranks", "÷ all counts, once", "optimizer: float32")):
        marks.append(_label(WHOLE + 55, center - 16 + 20 * line, text))
    alt = (
        f"Two ranks. On each, {BATCHES} backward passes leave bf16 gradients, which are added to its main gradient: "
        "place 1, accumulate. The main gradients and the counts of both ranks are then summed over the ranks: place 2, "
        "reduce. The sum is divided once by all counts and goes to the optimizer, in float32."
    )
    return drawing(WIDE, 36 + 2 * ROW - 8, marks), alt
