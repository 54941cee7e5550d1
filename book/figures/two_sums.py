"""Where a sum over ranks is rounded: in every hop of a ring, or once per term with an all-to-all."""

from __future__ import annotations

from drawing import box, drawing, label

from benchmarks.measured import results

CAPTION = "One chunk of a gradient, summed in two ways. A dot is a rounding to bf16"
#: Ranks that are drawn, and ranks for which the errors are given.
RANKS, MANY = 4, 128
#: In units of the picture: a rank's box, the way to the next one, the rows of the two sums.
WIDE, HIGH, GAP = 78, 30, 38
RING, TERMS, OWNER = 22, 122, 200
WIDTH = RANKS * WIDE + (RANKS - 1) * GAP
SUBSCRIPTS = "₀₁₂₃"


def errors() -> tuple[float, float]:
    """Percent by which the two sums over `MANY` ranks are off, by lesson 04's formula."""
    row = results()[f"sum over {MANY} ranks"]
    once = row["predicted_rounded_once_relative_error"] / 2**0.5
    return 100 * row["predicted_ring_relative_error"], 100 * once


def _dot(x: float, y: float) -> str:
    return f'<circle cx="{x:g}" cy="{y:g}" r="4" style="fill: currentcolor"/>'


def still() -> tuple[str, str]:
    """The picture and its text alternative."""
    ring, once = errors()
    marks = [label(0, 12, f"Ring: off by {ring:.1f} % for {MANY} ranks", "still-title")]
    marks.append(label(0, TERMS - 10, f"All-to-all, sum in fp32: off by {once:.1f} % for any number", "still-title"))
    middle = RING + HIGH / 2
    sum_x = WIDTH / 2 - WIDE
    for rank in range(RANKS):
        x = rank * (WIDE + GAP)
        center = x + WIDE / 2
        if rank:
            marks.append(f'<path class="node-pcie" d="M{x - GAP} {middle}H{x}"/>')
        marks += [box(x, RING, WIDE, HIGH, "node-gpu"), box(x, TERMS, WIDE, HIGH, "node-gpu")]
        marks.append(_dot(x + 14, middle))  # of the rank's own gradient
        if rank:
            marks.append(_dot(x + WIDE - 14, middle))  # of the sum so far
        text = f"g{SUBSCRIPTS[rank]}"
        marks.append(label(center, RING + 20, f"{'+ ' if rank else ''}{text}", "still-label", "middle"))
        marks.append(label(center, TERMS + 20, text, "still-label", "middle"))
        marks.append(label(center, RING + HIGH + 16, f"rank {rank}", "still-label", "middle"))
        end = sum_x + WIDE * (rank + 0.5) / 2
        marks.append(f'<path class="node-pcie" d="M{center} {TERMS + HIGH}L{end:g} {OWNER}"/>')
        marks.append(_dot((center + end) / 2, (TERMS + HIGH + OWNER) / 2))
    marks.append(box(sum_x, OWNER, 2 * WIDE, HIGH, "node-switch"))
    marks.append(label(WIDTH / 2, OWNER + 20, "+ in fp32, at the owner", "still-label", "middle"))
    alt = (
        "Above, a ring: rank 0 sends its gradient to rank 1, which adds its own and sends the sum on, up to rank "
        f"{RANKS - 1}; every gradient and every partial sum is rounded to bf16. Below, an "
        f"all-to-all: each of {RANKS} ranks sends its gradient, rounded once, to the owner, which adds in fp32. "
        f"The ring is off by {ring:.1f} % for {MANY} ranks, the all-to-all by {once:.1f} % for any number."
    )
    return drawing(WIDTH, OWNER + HIGH + 6, marks), alt
