"""The still of the pipeline: GPipe and 1F1B, as the functions of lesson 11 order and time them."""

from __future__ import annotations

from typing import Any

from autograder.lesson import notebook

CAPTION = "Schedules of a pipeline"
STAGES, MICRO_BATCHES = 4, 6
FORWARD, BACKWARD = 1, 2
#: In units of the picture: a forward's width, a row's height, the space for labels.
WIDE, HIGH, LEFT, RIGHT, TITLE = 20, 22, 54, 92, 24


def still() -> tuple[str, str]:
    """The picture and its text alternative."""
    lesson = notebook.functions("11_pipeline")
    marks: list[str] = []
    said, y, width = [], 0, 0
    for name, make in (("GPipe", lesson["gpipe_schedule"]), ("1F1B", lesson["one_f_one_b_schedule"])):
        schedule = make(STAGES, MICRO_BATCHES)
        spans = lesson["simulate"](schedule, FORWARD, BACKWARD)
        peaks = lesson["peak_activations"](schedule)
        bubble = lesson["bubble_fraction"](schedule, FORWARD, BACKWARD)
        whole = max(end for mine in spans for _, end in mine)
        marks.append(f'<text class="still-title" x="{LEFT}" y="{y + 15}">{name}: bubble {bubble:.1%}</text>')
        for stage in range(STAGES):
            marks += _row(y + TITLE + stage * HIGH, stage, schedule[stage], spans[stage])
            right, middle = LEFT + whole * WIDE + 8, y + TITLE + stage * HIGH + 15
            marks.append(f'<text class="still-label" x="{right:g}" y="{middle}">at most {peaks[stage]} alive</text>')
        said.append(f"{name} takes {whole:g} forwards; its stages keep at most {', '.join(map(str, peaks))} alive")
        y, width = y + TITLE + STAGES * HIGH + 14, max(width, LEFT + whole * WIDE + RIGHT)
    alt = (
        f"Two schedules of {STAGES} stages and {MICRO_BATCHES} micro-batches as Gantt charts. A backward takes "
        f"as long as {BACKWARD} forwards. {'. '.join(said)}."
    )
    return f'<svg viewBox="0 0 {width:g} {y}" xmlns="http://www.w3.org/2000/svg">{"".join(marks)}</svg>', alt


def _row(y: float, stage: int, entries: list[tuple[Any, ...]], spans: list[tuple[float, float]]) -> list[str]:
    """One stage's entries: pale forwards, full backwards, with the numbers of their micro-batches."""
    marks = [f'<text class="still-label" x="0" y="{y + 15}">stage {stage}</text>']
    for (kind, m), (start, end) in zip(entries, spans, strict=True):
        x, wide = LEFT + start * WIDE, (end - start) * WIDE
        look = f"fill: var(--rank-{stage % 8}); fill-opacity: {0.35 if kind == 'F' else 0.9}; opacity: 1"
        marks += [
            f'<rect class="still-box" x="{x:g}" y="{y}" width="{wide:g}" height="{HIGH - 3}" style="{look}"/>',
            f'<text class="still-label" x="{x + wide / 2:g}" y="{y + 14}" text-anchor="middle">{m}</text>',
        ]
    return marks
