"""Rectangles, labels and the frame of the drawings in `book/figures/` that never move; their looks are in the CSS."""

from __future__ import annotations


def box(x: float, y: float, width: float, height: float, kind: str, rounded: float = 3) -> str:
    """A rectangle of this CSS class."""
    return f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{rounded:g}"/>'


def label(x: float, y: float, text: str, kind: str = "still-label", anchor: str = "start", style: str = "") -> str:
    """Text of this CSS class; x is where it starts, its middle or its end, by `anchor`."""
    anchored = f' text-anchor="{anchor}"' if anchor != "start" else ""
    styled = f' style="{style}"' if style else ""
    return f'<text class="{kind}" x="{x:g}" y="{y:g}"{anchored}{styled}>{text}</text>'


def drawing(width: float, height: float, marks: list[str]) -> str:
    """The whole picture, of this size in its own units, of which the page makes pixels where it has room."""
    size = f'width="{width:g}" viewBox="0 0 {width:g} {height:g}"'
    return f'<svg class="two-nodes" {size} xmlns="http://www.w3.org/2000/svg">{"".join(marks)}</svg>'
