"""What each lesson's layout does to the running model on 1,024 H100s: memory and bytes per GPU, seconds of a step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import running_model
from drawing import box, drawing, label
from plan_page import TIME

from machines.cluster import GB
from machines.model import MODELS

CAPTION = "The running model on 1,024 H100s, by layout"
#: In units of the picture: where each column begins and its longest bar, a row, where the rows begin, the width.
LEFT, LONGEST, ROW, TOP, WIDE = (0, 160, 268), (118, 66, 72), 34, 80, 372
#: What the parts of a bar are called, for each column, and which terms of the planner they hold.
MEMORY = {"weights, gradients, Adam": ["states"], "activations": ["activations"], "logits": ["logits"]}
MEMORY |= {"libraries, buffers": ["fixed"]}
SENT = {"data, ZeRO": ["data"], "tensor": ["tensor"], "stages": ["stages"]}
SECONDS = {
    "compute": list(TIME["computes"]),
    "communication": list(TIME["communicates"]),
    "waiting": list(TIME["waits"]),
}
COLUMNS = (("memory per GPU, GB", MEMORY), ("sent, GB", SENT), ("step time, s", SECONDS))


class Line(NamedTuple):
    """A row of the picture: its lessons, its layout, and for each column the parts' values; None: does not fit."""

    lessons: str
    layout: str
    columns: tuple[dict[str, float], dict[str, float], dict[str, float] | None]


def lines() -> list[Line]:
    """A line for each layout that a box has for the usual model and batch, from the most memory to the least."""
    usual, found = MODELS["Llama 3 8B"], []
    for boxes in running_model.together(running_model.boxes(Path(running_model.__file__).parents[1])):
        row = next(row for row in boxes[0].predictions if row.name == running_model.ADDED_UP)
        if boxes[0].model != usual or boxes[0].batch != running_model.BATCH or not row.found:
            continue
        values = (
            {k: v / GB for k, v in row.found.memory.items()},
            {k: v / GB for k, v in row.sent.items()},
            row.found.time,
        )
        parts = [
            {name: sum(terms.get(term, 0.0) for term in held) for name, held in groups.items()}
            for terms, (_, groups) in zip(values, COLUMNS, strict=True)
        ]
        fits = row.found.nbytes <= row.found.cluster.memory
        lessons = ", ".join(one.chapter[:2] for one in boxes)
        layout = running_model.named(replace(row.found.layout, dp=1))
        found.append(Line(lessons, layout, (parts[0], parts[1], parts[2] if fits else None)))
    return sorted(found, key=lambda line: -sum(line.columns[0].values()))


def still() -> tuple[str, str]:
    """The picture and its text alternative."""
    found, marks, said = lines(), [], []
    limit = running_model.find("H100").memory / GB
    for column, (title, groups) in enumerate(COLUMNS):
        left = LEFT[column]
        most = max(sum((line.columns[column] or {}).values()) for line in found)
        scale = LONGEST[column] / most
        marks.append(label(left, 12, title, "still-title"))
        for number, name in enumerate(groups):
            marks.append(box(left, 19 + 13 * number, 8, 8, f"mesh-{number}", 1))
            marks.append(label(left + 12, 27 + 13 * number, name))
        for row, line in enumerate(found):
            y, x, parts = TOP + ROW * row + 16, float(left), line.columns[column]
            for number, value in enumerate((parts or {}).values()):
                marks.append(box(x, y, value * scale, 11, f"mesh-{number}", 0))
                x += value * scale
            total = sum((parts or {}).values())
            text = f"{total:.3g}" if column == 2 else f"{total:,.0f}"
            after = LONGEST[0] if column == 0 else x  # aligned beside the dashed line
            marks.append(label(after + 3, y + 10, text if parts else "does not fit"))
            if column == 0:
                marks.append(label(0, y - 4, f"{line.lessons} · {line.layout}", "still-title"))
        if column == 0:
            marks.append(box(limit * scale, TOP + 14, 0.01, ROW * len(found) - 14, "node-network", 0))
    for line in found:
        memory, sent, seconds = (sum((parts or {}).values()) for parts in line.columns)
        step = f"{seconds:.3g} s" if line.columns[2] else "does not fit"
        said.append(f"lessons {line.lessons}, {line.layout}: {memory:.0f} GB, {sent:.0f} GB, {step}")
    alt = (
        f"Bars of memory per GPU, bytes sent per GPU and time of a step. An H100 has {limit:.0f} GB. {'; '.join(said)}."
    )
    return drawing(WIDE, TOP + ROW * len(found) + 8, marks), alt
