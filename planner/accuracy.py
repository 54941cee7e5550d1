"""How far predictions were from published runs: what stands behind a prediction as ±."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from planner import calibrate, rows
from planner.margin import Margin, families, nearest
from planner.prediction import Prediction
from planner.software import Software

#: A family has at least so many runs, or a wider one counts. Of LoRA only two runs were measured, and they count.
LEAST_RUNS = 4


def _compared(counts: Callable[[Mapping[str, Any]], bool]) -> tuple[rows.Comparison, ...]:
    """The published runs whose rows count."""
    published = json.loads(calibrate.ROWS.read_text(encoding="utf-8"))
    return tuple(rows.compare(rows.read(row)) for row in published if counts(row))


@lru_cache(maxsize=1)
def compared_runs() -> tuple[rows.Comparison, ...]:
    """The published runs that are tests: no constant comes from them, and nothing is known to be wrong with them."""
    gave = calibrate.names()
    return _compared(lambda row: row["name"] not in gave and not row.get("unused"))


@lru_cache(maxsize=1)
def margins() -> dict[str, Margin]:
    """Family (`planner.margin.families`) → its margin."""
    errors: dict[str, list[float]] = defaultdict(list)
    for compared in (*compared_runs(), *_compared(lambda row: row.get("trained") == "lora")):
        run = compared.run
        for family in dict.fromkeys(families(compared.prediction, run.precision, run.software, run.trained)):
            errors[family].append(abs(compared.error))
    return {
        family: Margin(statistics.median(found), len(found), family)
        for family, found in errors.items()
        if len(found) >= LEAST_RUNS or family.startswith("LoRA")
    }


def margin(prediction: Prediction, precision: str, software: Software, trained: str = "all") -> Margin:
    """± of a prediction of this program's speed in this precision. trained: as `predict` has it."""
    return nearest(margins(), prediction, precision, software, trained)
