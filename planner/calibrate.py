"""`python -m planner.calibrate`: solve every calibrated constant again on the one published run that it names.

Constants share runs' terms, so they are solved in turn, a few rounds.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from planner import arithmetic, rows, software

HERE = Path(__file__).resolve().parent
#: The published runs: in an installed package beside this module, in the repository with the benchmarks.
PLACES = (HERE / "published_runs.json", HERE.parent / "benchmarks" / "published_runs.json")
ROWS = next((path for path in PLACES if path.is_file()), PLACES[1])

#: Constants that are not shares of a peak, and between which values each is looked for.
RANGES = {
    "HOST_MOE": (0.0, 0.05), "HOST_EAGER": (0.0, 0.05), "HOST_BLOCKING": (0.0, 0.05),
    "MOE_2025": (0.5, 3.0), "MOE_2026": (0.5, 3.0),
    "MOE_LATEST": (0.5, 3.0), "MXFP8_CAST": (0.0, 30.0),
}  # fmt: skip


def names() -> set[str]:
    """The runs from which constants were calibrated."""
    return {name for _, name in software.MATMUL_SHARE.values()} | {getattr(software, name)[1] for name in RANGES}


def solve(error: Callable[[float], float], low: float, high: float) -> float:
    """Where an error that changes its sign between low and high is 0, by halving."""
    rising = error(low) < error(high)
    for _ in range(45):
        middle = (low + high) / 2
        if (error(middle) > 0) == rising:
            high = middle
        else:
            low = middle
    return (low + high) / 2


def calibrate(path: Path = ROWS, rounds: int = 4) -> dict[str, float]:
    """Solve all constants and set them in this process; their values by name."""
    runs = {row["name"]: rows.read(row) for row in json.loads(path.read_text())}
    found = {}
    for _ in range(rounds):
        for key, (_, name) in software.MATMUL_SHARE.items():

            def share_error(value: float, key: tuple[str, str] = key, name: str = name) -> float:
                software.MATMUL_SHARE[key] = (value, name)
                return rows.compare(runs[name]).error

            found[" ".join(key)] = round(solve(share_error, 0.2, 1.2), 3)
            software.MATMUL_SHARE[key] = (found[" ".join(key)], name)
        for constant, (low, high) in RANGES.items():
            name = getattr(software, constant)[1]

            def error(value: float, constant: str = constant, name: str = name) -> float:
                setattr(arithmetic, constant, (value, name))
                return rows.compare(runs[name]).error

            found[constant] = round(solve(error, low, high), 5)
            setattr(arithmetic, constant, (found[constant], name))
    return found


if __name__ == "__main__":
    for constant, value in calibrate().items():
        print(f"{constant:22} {value:g}")
