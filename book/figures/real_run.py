"""The real run of lesson 17: its log, its prediction, and the curve that the chapter shows.

`benchmarks/measured/real_run.jsonl` has a row per step, in the order in which they ran, and `real_run.json` what was
predicted and under which conditions all was measured.
"""

from __future__ import annotations

import copy
import functools
import json
import math
from typing import Any

import numpy as np

import ranks
from autograder.lesson import notebook

MEASURED = notebook.ROOT / "benchmarks" / "measured"
#: The prediction's power law E + k · FLOPs^-a is fitted for each of these E.
FLOORS = (0.0, 1.5)
BLUE, ORANGE, GREEN, RED, GREY = (ranks.COLORS[i] for i in (0, 1, 2, 5, 7))


def log() -> tuple[list[dict], list[dict], list[dict]]:
    """The rows of all steps, each once; and those that ran before the kill and again after it, in both forms."""
    rows = [json.loads(line) for line in (MEASURED / "real_run.jsonl").read_text(encoding="utf-8").splitlines()]
    again = next(i for i in range(1, len(rows)) if rows[i]["step"] <= rows[i - 1]["step"])
    resumed = rows[again]["step"]
    first = [row for row in rows[:again] if row["step"] >= resumed]
    return rows[: again - len(first)] + rows[again:], first, rows[again : again + len(first)]


def study() -> dict[str, Any]:
    """What was predicted, and under which conditions; with the FLOPs of the tokens that were there.

    The script counts each step as a whole one, as for its prediction: 1.6 to 1.7 % more.
    """
    found = copy.deepcopy(_recorded())
    for run, steps in [(found, len(log()[0])), *((point, point["steps"]) for point in found["points"])]:
        run["flops"] *= tokens(steps) / (steps * found["tokens_per_step"])
    return found


@functools.cache
def _recorded() -> dict[str, Any]:
    return json.loads((MEASURED / "real_run.json").read_text(encoding="utf-8"))


def epoch() -> tuple[int, int]:
    """The sequences of an epoch, and its steps, the last of which has only what is left of the text."""
    found = _recorded()
    sequences = (found["training_tokens"] - found["context"]) // found["context"]
    return sequences, math.ceil(sequences / found["sequences_per_step"])


def tokens(step: int) -> int:
    """The tokens of the first so many steps."""
    found, (sequences, steps) = _recorded(), epoch()
    epochs, more = divmod(step, steps)
    return found["context"] * (epochs * sequences + more * found["sequences_per_step"])


def reruns() -> dict[str, Any]:
    """What `benchmarks/spike.py` recorded of the run's first steps: other shuffles and rates, and some remedies."""
    return json.loads((MEASURED / "spike.json").read_text(encoding="utf-8"))


def band(points: list[dict], flops: float) -> tuple[float, float]:
    """Bits per byte at so many FLOPs, by the power laws through the points."""
    x, bits = np.log([point["flops"] for point in points]), np.array([point["bits"] for point in points])
    fits = [(floor, np.polyfit(x, np.log(bits - floor), 1)) for floor in FLOORS]
    low, high = sorted(floor + math.exp(np.polyval(fit, math.log(flops))) for floor, fit in fits)
    return low, high


def curve() -> ranks.Figure:
    """Bits per byte over tokens, with the kill and the spikes; and the end alone, with the prediction and baselines."""
    (steps, lost, _), found = log(), study()
    points, flops = found["points"], found["flops"]
    low, high = band(points, flops)
    left_out = [edge for i in range(len(points)) for edge in band(points[:i] + points[i + 1 :], flops)]
    at_step = [tokens(step) / 1e6 for step in range(len(steps) + 1)]  # million tokens
    end, final = at_step[-1], steps[-1]
    alt = (
        f"Bits per byte against tokens. On training batches they fall from {steps[0]['loss']:.1f} to "
        f"{final['loss']:.2f}, with two spikes in warm-up, whose end is marked; on held-out chapters to "
        f"{final['validation']:.2f}. A mark is the kill. A second panel has the last third on a larger scale: at its "
        f"right end a short bar from {low:.2f} to {high:.2f} is the prediction from three smaller runs, a pale one "
        f"from {min(left_out):.2f} to {max(left_out):.2f} what it is without one of them. Dashed lines are baselines."
    )
    fig = ranks.Figure(figsize=(8.8, 4.6), alt=alt)
    whole, close = fig.subplots(1, 2, width_ratios=(1.75, 1))
    judged = [row for row in steps if "validation" in row]
    at, bits = [at_step[r["step"]] for r in judged], [r["validation"] for r in judged]
    losses = [r["loss"] for r in steps]
    whole.plot([at_step[r["step"]] for r in steps], losses, color=BLUE, lw=0.9, label="training batches")
    for ax in (whole, close):
        ax.plot(at, bits, "o-", color=ORANGE, ms=4, lw=1.5, label="held-out chapters")
        ax.spines[["right", "top"]].set_visible(False)
    killed = at_step[lost[-1]["step"]]
    whole.axvspan(at_step[lost[0]["step"] - 1], killed, ymax=0.72, color=RED, alpha=0.3, lw=0)
    words = f"rank 2 killed\nin step {lost[-1]['step'] + 1}: the\nrun resumes, and\n{len(lost)} steps run twice"
    arrow = {"arrowstyle": "->", "color": "#8a3c00", "lw": 0.9}
    where = {"ha": "center", "va": "center", "fontsize": 8.5, "color": "#8a3c00"}
    whole.annotate(
        words, (killed, losses[lost[-1]["step"] - 1] + 0.03), ((killed + end) / 2, 3.2), arrowprops=arrow, **where
    )
    spike = max(steps[5:], key=lambda row: row["loss"])
    second = max(steps[spike["step"] + 1 :], key=lambda row: row["norm"])
    for row, lift in ((spike, 0.0), (second, 0.1)):
        words = f"step {row['step']}: {row['loss']:.2f}"
        whole.text(at_step[row["step"]] + 0.03, row["loss"] + lift, words, va="center", fontsize=8.5, color=BLUE)
    warm = at_step[max(steps, key=lambda row: row["lr"])["step"]]
    whole.axvline(warm, ymax=0.45, color=GREY, ls=":", lw=1)
    whole.text(warm + 0.02, 1.9, "warm-up ends", fontsize=8.5, color="#444444")
    epoch = found["training_tokens"] / 1e6
    top = whole.secondary_xaxis("top", functions=(lambda x: x / epoch, lambda x: x * epoch))
    top.set_xlabel("times through the training text", fontsize=9)
    whole.set(xlim=(0, end), ylim=(1.75, 4.85), xlabel="million tokens", ylabel="bits per byte")
    title = f"{found['parameters']:,} parameters"
    whole.legend(frameon=False, loc=(0.42, 0.78), title=title, title_fontsize=9)

    at_end = {"xmin": 0.93, "color": GREEN, "lw": 0}  # the predictions are of the run's end
    close.axhspan(min(left_out), max(left_out), alpha=0.2, **at_end)
    close.axhspan(low, high, alpha=0.7, **at_end)
    for value in found["baselines"].values():
        close.axhline(value, color=GREY, ls=(0, (4, 3)), lw=0.9)
    labels = [(value, f"{name}: {value:.2f}", "#444444") for name, value in found["baselines"].items()]
    labels.append(((low + high) / 2, f"predicted for the end: {low:.2f} to {high:.2f}", "#00624a"))
    labels.append((max(left_out) - 0.01, f"without one point: {min(left_out):.2f} to {max(left_out):.2f}", "#00624a"))
    labels.append((final["validation"], f"reached: {final['validation']:.2f}", "#8a5a00"))
    height = 9.0
    for value, text, color in sorted(labels, reverse=True):  # labels keep their distance; a line leads to each value
        height = min(height - 0.022, value + 0.012)
        close.plot([end, end * 1.012], [value, height], color=color, lw=0.7, clip_on=False)
        close.text(end * 1.016, height, text, va="center", fontsize=8.5, color=color)
    close.set(xlim=(2 / 3 * end, end), ylim=(2.1, 2.53), xlabel="million tokens")
    close.set_title("the last third", fontsize=9)
    return fig
