"""Of two measured layouts, does the planner find the faster one? `layout_pairs.json` has 84 pairs with their sources.

    python benchmarks/pairs.py [PAIRS.json] [--table]

A pair is one job (model, machine, GPUs, batch) in two layouts, `a` and `b`, both measured by the same people. A half of
the pairs, drawn by `SEED`, may be looked at while terms are changed; the other half judges. Programs are told apart by
`planner_software`, or by `PROGRAMS` for a source whose program is another one; what a program could do by itself does
not count, since both layouts ran. --table: the table of README.md.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from machines.cluster import GB
from planner import rows
from planner.software import FEATURES

PAIRS = Path(__file__).with_name("layout_pairs.json")
SEED = 42
#: Source → the program that comes nearest.
PROGRAMS = {
    "Hagemann et al. 2023": "megatron 2023", "InternEvo": "megatron 2023", "Megatron-Bridge": "bridge 26.06",
}  # fmt: skip
#: Fields of a side that are no fields of a row's layout. ZeRO below stage 3 over a part of the ranks is not known here.
NO_LAYOUT = ("measured", "unit", "recompute_detail", "shard")


class Verdict(NamedTuple):
    """Speeds of a over b, measured and predicted; None where a side cannot be predicted, for the reason `why_not`."""

    name: str
    knob: str
    looked_at: bool
    measured: float
    predicted: float | None
    why_not: str = ""

    @property
    def right(self) -> bool:
        return self.predicted is not None and (self.predicted > 1) == (self.measured > 1)


def run_of(pair: dict[str, Any], side: str) -> rows.Run:
    """One side of a pair as a run. Zero Bubble's embedding and output layer stand for a layer each."""
    model = {**pair["model"], "seq": pair["sequence"]}
    if pair["family"].startswith("Zero Bubble"):
        model["layers"] += 2
    row = {
        "name": pair["id"], "model": model, "cluster": pair["machine"], "gpus": pair["gpus"],
        "software": PROGRAMS.get(pair["family"], pair["planner_software"] or "megatron"),
        "layout": {key: value for key, value in pair[side].items() if key not in NO_LAYOUT},
        "precision": "bf16" if pair["precision"] == "fp16" else pair["precision"], "batch_sequences": pair["batch"],
        "published": {"step_seconds": 1},
    }  # fmt: skip
    run = rows.read(row)
    machine = run.cluster
    if nodes := pair.get("machine_override"):
        machine = replace(machine, ports=nodes["ports"], port=nodes["port_gb_s"] * GB)
    return replace(run, cluster=machine, software=replace(run.software, features=FEATURES))


def judge(pairs: list[dict[str, Any]]) -> list[Verdict]:
    """A verdict for each pair, in their order."""
    names = [pair["id"] for pair in pairs]
    random.Random(SEED).shuffle(names)
    shown, verdicts = set(names[: len(names) // 2]), []
    for pair in pairs:
        predicted, why_not = None, ""
        try:
            a, b = (rows.compare(run_of(pair, side)).prediction.tokens_per_gpu_per_second for side in "ab")
            predicted = a / b
        except rows.RowError as error:
            why_not = str(error)
        looked_at = pair["id"] in shown
        verdicts.append(Verdict(pair["id"], pair["knob"], looked_at, pair["a_over_b"], predicted, why_not))
    return verdicts


def table(verdicts: list[Verdict]) -> str:
    """The table of README.md."""
    clear = [verdict for verdict in verdicts if max(verdict.measured, 1 / verdict.measured) >= 1.1]
    parts = {
        "looked at": [v for v in verdicts if v.looked_at],
        "judging": [v for v in verdicts if not v.looked_at],
        "all": verdicts,
        "all that differ by 10 % or more": clear,
        "tensor parallelism against another axis": [v for v in verdicts if v.knob.startswith("tp against")],
    }
    lines = ["| pairs | number | order right |", "|---|---:|---:|"]
    for what, part in parts.items():
        right = sum(verdict.right for verdict in part)
        lines.append(f"| {what} | {len(part)} | {right} ({100 * right / len(part):.0f} %) |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Run the program; its exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("pairs", nargs="?", type=Path, default=PAIRS)
    parser.add_argument("--table", action="store_true", help="print the table of README.md alone")
    options = parser.parse_args(arguments)
    verdicts = judge(json.loads(options.pairs.read_text(encoding="utf-8")))
    for verdict in [] if options.table else verdicts:
        predicted = f"{verdict.predicted:.3f}" if verdict.predicted else "-"
        said = "" if verdict.right else verdict.why_not or "WRONG"
        print(f"{verdict.name:26} {verdict.knob:24} measured {verdict.measured:.3f} predicted {predicted}  {said}")
    print(table(verdicts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
