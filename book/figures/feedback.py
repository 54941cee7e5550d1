"""The still of error feedback: the way of two weights in three runs, made by lesson 07's own functions."""

from __future__ import annotations

import torch

from autograder.lesson import notebook

CAPTION = "The way of two weights, with and without feedback"
STEPS, RATE = 40, 0.1
DISTURBANCE = torch.tensor([5.0, 0.0])
MINIMUM, START = torch.tensor([0.0, 1.0]), torch.tensor([2.0, 0.0])
RUNS = ("both entries", "the larger entry", "with feedback")
#: In units of the picture: one weight, and the width of a run's part.
SCALE, WIDTH = 80, 250


def still() -> tuple[str, str]:
    """The picture and its text alternative."""
    marks, said = [], []
    for number, name in enumerate(RUNS):
        path = way(name)
        spots = [(10 + number * WIDTH + SCALE * (x + 0.2), 40 + SCALE * (1.2 - y)) for x, y in path]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
        goal = 10 + number * WIDTH + SCALE * 0.2, 40 + SCALE * 0.2
        marks += [
            f'<text class="still-title" x="{10 + number * WIDTH}" y="14">{name}</text>',
            f'<polyline class="still-box" style="opacity: 1" points="{points}"/>',
            *(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" style="fill: currentcolor"/>' for x, y in spots),
            f'<path class="still-box" style="opacity: 1" d="M{goal[0] - 6} {goal[1]}h12M{goal[0]} {goal[1] - 6}v12"/>',
        ]
        said.append(f"{name}: it ends at ({path[-1][0]:.2f}, {path[-1][1]:.2f})")
    key = f"{STEPS} steps of size {RATE} from (2, 0); the cross is the minimum, (0, 1)."
    marks.append(f'<text class="still-label" x="10" y="168">{key}</text>')
    alt = f"The way of two weights, which two ranks change. {'; '.join(said)}. The minimum is at (0, 1)."
    return f'<svg viewBox="0 0 {3 * WIDTH} 176" xmlns="http://www.w3.org/2000/svg">{"".join(marks)}</svg>', alt


def way(name: str) -> list[list[float]]:
    """The weights after each step of a run in which each of two ranks sends what `name` says."""
    lesson, w = notebook.functions("07_bandwidth"), START.clone()
    compressors = {
        "both entries": lambda rank, own: lesson["top_k_compress"](own, 1),
        "the larger entry": lambda rank, own: lesson["top_k_compress"](own, 0.5),
        "with feedback": lambda rank, own: memories[rank].compress(0, own),
    }
    memories, path = [lesson["ErrorFeedback"](0.5) for _ in range(2)], [w.tolist()]
    for _ in range(STEPS):
        sent = [compressors[name](rank, w - MINIMUM + sign * DISTURBANCE) for rank, sign in enumerate((1, -1))]
        w = w - RATE * sum(lesson["top_k_decompress"](*one, (2,)) for one in sent) / 2
        path.append(w.tolist())
    return path
