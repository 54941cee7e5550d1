"""The report's figures: vector pictures that need no other file and follow the light or dark mode of the screen.

Each has a text with the same numbers, for readers who cannot see it.
"""

from __future__ import annotations

import base64
import io
import math
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: The number of bars in the histogram of scores; each is a tenth of a lesson's points wide.
BINS = 10

INK, LINE, BAR = "#1c2330", "#d9dee6", "#0072b2"
#: Other colors in dark mode. The picture is a document of its own, so it has a style of its own.
_STYLE = """<style>
svg { --ink: #1c2330; --line: #d9dee6; --bar: #0072b2; }
@media (prefers-color-scheme: dark) { svg { --ink: #e4e8ee; --line: #323a47; --bar: #56b4e9; } }
</style>"""


class Picture(NamedTuple):
    """What an <img> needs: its source, its size in CSS pixels, and its text."""

    source: str
    width: int
    height: int
    alt: str


def distribution(scores: list[float], most: float) -> list[int]:
    """How many scores lie in each tenth of 0 to `most`. A tenth includes its lower bound, the last one also `most`."""
    counts = [0] * BINS
    for score in scores:
        # 3 of 10 points are three tenths, although 0.3 * 10 may come out as 2.9999999999999996.
        tenth = math.floor(BINS * score / most + 1e-9) if most else 0
        counts[min(max(tenth, 0), BINS - 1)] += 1
    return counts


def scores(lesson: str, scores: list[float], most: float) -> Picture:
    """A histogram of the scores of a lesson."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    counts = distribution(scores, most)
    edges = [most * tenth / BINS for tenth in range(BINS + 1)]
    figure = Figure(figsize=(4.8, 2.6), layout="constrained")
    axes = figure.add_subplot()
    bars = axes.bar(edges[:-1], counts, width=most / BINS or 1, align="edge", color=BAR, edgecolor=LINE)
    axes.bar_label(bars, labels=[str(count) if count else "" for count in counts], color=INK, padding=2)
    axes.set(xlabel=f"score (points of {most:g})", ylabel="submissions (number)", xticks=edges)
    axes.set_xticklabels([f"{edge:.4g}" for edge in edges])
    axes.set_title(f"{lesson}: scores of {_submissions(len(scores))}")
    axes.set_ylim(0, max(counts) * 1.15)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
    spread = ", ".join(
        f"{count} from {edges[tenth]:.4g} to {edges[tenth + 1]:.4g}" for tenth, count in enumerate(counts) if count
    )
    return _picture(figure, f"Histogram of the scores of {_submissions(len(scores))}, in points of {most:g}: {spread}.")


def solved(lesson: str, exercises: list[tuple[str, int, int]]) -> Picture:
    """What part of the submissions solved each exercise, given as (title, number solved, number of submissions)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.8, 1.1 + 0.34 * len(exercises)), layout="constrained")
    axes = figure.add_subplot()
    rates = [100 * right / count for _, right, count in exercises]
    bars = axes.barh(range(len(exercises)), rates, color=BAR, height=0.7)
    axes.bar_label(bars, labels=[f"{right} of {count}" for _, right, count in exercises], color=INK, padding=3)
    axes.set_yticks(range(len(exercises)), [title for title, _, _ in exercises])
    axes.invert_yaxis()  # the first exercise on top
    axes.set(xlim=(0, 118), xticks=range(0, 101, 20), xlabel="submissions with full points (%)")
    axes.set_title(f"{lesson}: exercises solved")
    rows = "; ".join(f"{title}: {right} of {count}" for title, right, count in exercises)
    return _picture(figure, f"Bar chart of the submissions with full points, one bar per exercise. {rows}.")


def _submissions(count: int) -> str:
    return f"{count} submission{'' if count == 1 else 's'}"


def _picture(figure: Figure, alt: str) -> Picture:
    from matplotlib import rc_context

    for axes in figure.axes:
        axes.set_facecolor("none")
        axes.title.set_color(INK)
        axes.tick_params(colors=INK)
        for label in (axes.xaxis.label, axes.yaxis.label):
            label.set_color(INK)
        for side, spine in axes.spines.items():
            spine.set_visible(side in ("left", "bottom"))
            spine.set_color(INK)
    drawn = io.StringIO()
    with rc_context({"svg.hashsalt": "report"}):  # the same figure is the same bytes
        figure.savefig(drawn, format="svg", facecolor="none", metadata={"Date": None, "Creator": None})
    text = drawn.getvalue()
    for name, value in (("ink", INK), ("line", LINE), ("bar", BAR)):
        text = re.sub(rf"(:\s*){value}", rf"\1var(--{name})", text)
    text = re.sub(r"(<svg\b[^>]*>)", lambda match: match[1] + _STYLE, text, count=1)
    width, height = (round(96 * inches) for inches in figure.get_size_inches())
    return Picture(f"data:image/svg+xml;base64,{base64.b64encode(text.encode()).decode()}", width, height, alt)
