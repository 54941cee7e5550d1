"""How far predictions were from published runs: what stands behind a prediction as ±."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from functools import lru_cache

from planner import calibrate, rows
from planner.margin import Margin, families, nearest
from planner.prediction import Prediction
from planner.software import Software

#: A family has at least so many runs, or a wider one counts. Of LoRA only two runs were measured, and they count.
LEAST_RUNS = 4


@lru_cache(maxsize=1)
def compared_runs() -> tuple[rows.Comparison, ...]:
    """The published runs that are tests: no constant comes from them, and nothing is known to be wrong with them."""
    gave, published = calibrate.names(), json.loads(calibrate.ROWS.read_text(encoding="utf-8"))
    used = [row for row in published if row["name"] not in gave and not row.get("unused")]
    return tuple(rows.compare(rows.read(row)) for row in used)


@lru_cache(maxsize=1)
def compared_adapters() -> tuple[rows.Comparison, ...]:
    """The published runs of LoRA."""
    published = json.loads(calibrate.ROWS.read_text(encoding="utf-8"))
    return tuple(rows.compare(rows.read(row)) for row in published if row.get("trained") == "lora")


@lru_cache(maxsize=1)
def margins() -> dict[str, Margin]:
    """Family (`planner.margin.families`) → its margin."""
    errors: dict[str, list[float]] = defaultdict(list)
    for compared in (*compared_runs(), *compared_adapters()):
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
