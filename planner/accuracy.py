"""How far predictions were from published runs: what stands behind a prediction as ±."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from functools import lru_cache

from planner import calibrate, rows
from planner.margin import Margin, kind, nearest
from planner.prediction import Prediction
from planner.software import Software

#: A family has at least so many runs, or the errors of all runs of its kind of model count.
LEAST_RUNS = 5


@lru_cache(maxsize=1)
def compared_runs() -> tuple[rows.Comparison, ...]:
    """The published runs that are tests: no constant comes from them, and nothing is known to be wrong with them."""
    gave, published = calibrate.names(), json.loads(calibrate.ROWS.read_text(encoding="utf-8"))
    used = [row for row in published if row["name"] not in gave and not row.get("unused")]
    return tuple(rows.compare(rows.read(row)) for row in used)


@lru_cache(maxsize=1)
def margins() -> dict[str, Margin]:
    """ "program, kind" → the margin of a program for a kind of model, and of all programs under the kind alone."""
    errors: dict[str, list[float]] = defaultdict(list)
    for compared in compared_runs():
        words = kind(compared.run.model)
        errors[words].append(abs(compared.error))
        errors[f"{compared.run.software.name}, {words}"].append(abs(compared.error))
    return {
        family: Margin(statistics.median(found), len(found), family)
        for family, found in errors.items()
        if len(found) >= LEAST_RUNS
    }


def margin(prediction: Prediction, software: Software, trained: str = "all") -> Margin:
    """± of a prediction of this program's speed. trained: as `predict` has it."""
    return nearest(margins(), prediction, software, trained)
