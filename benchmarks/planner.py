"""How far is the planner from published training runs, and does it put layouts in the right order?

    python benchmarks/planner.py [ROWS.json] [--terms] [--part PART] [--table]

Without a file: `published_runs.json`, whose rows README.md describes. Prints for each run what is predicted and what
was published, in the published unit and in the way that its source counts FLOPs, the error of the throughput (+ means
that the prediction is too fast) and the term that costs most. Then, by family of runs, the errors; for each sweep (runs
that differ in their layout alone) the rank correlation and how much slower the layout that the planner would have
chosen was measured to be than the best; the measured memory. The last two lines are the median and the 90th percentile
of the errors, without the runs from which constants were calibrated and those marked as unused. --terms: all terms of
each run. --part: only rows of this part. --table: README.md's table of the errors by family, alone. A row that cannot
be read is named and left out; the exit status is then 1.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from machines.cluster import GIB
from planner import calibrate, rows
from planner.search import FILLED

#: Family of a row → what README.md calls it, in its order.
FAMILIES = {
    "BLOOM": "BLOOM's sweep, A100",
    "llm-foundry": "MosaicML llm-foundry, A100 and H100",
    "Megatron-LM": "Megatron-LM, 1.7 to 462 billion, H100",
    "NeMo 24.07": "NeMo of 2024, FP8, H100",
    "Bridge dense": "Megatron-Bridge, dense, FP8 to NVFP4, H100 to GB300",
    "Bridge MoE": "Megatron-Bridge, experts",
    "DeepSeek-V3": "DeepSeek-V3's own run, 2,048 H800",
    "Llama 3": "Llama 3 405B",
    "Nemotron-4": "Nemotron-4 340B",
    "torchtitan": "torchtitan, H100 and H200",
    "torchtitan A100": "torchtitan, A100",
    "torchtitan long": "torchtitan, 32,768 to 262,144 tokens",
    "torchao": "torchao",
    "Ultra-Scale": "Ultra-Scale Playbook and SmolLM3",
    "fms-fsdp": "fms-fsdp",
    "FSDP": "OLMo 2 and 3",
    "TinyLlama": "TinyLlama",
}
#: A sweep has at least so many layouts.
SWEEP = 4


def percentile(values: Sequence[float], part: float) -> float:
    """The value below which this part of the values lies, interpolated."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * part
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def ranks_of(values: Sequence[float]) -> list[float]:
    """The rank of each value; equal values share the mean of their ranks."""
    return [sum(x < value for x in values) + (sum(x == value for x in values) - 1) / 2 for value in values]


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """The rank correlation of two lists; 0 if one of them is constant."""
    a, b = ranks_of(a), ranks_of(b)
    if len(set(a)) < 2 or len(set(b)) < 2:
        return 0.0
    return statistics.correlation(a, b)


def sweeps(compared: list[tuple[dict[str, Any], rows.Comparison]]) -> list[list[rows.Comparison]]:
    """The runs that share model, machine, number of GPUs and precision, if they are at least `SWEEP` layouts.

    Of runs of one layout and batch, the fastest counts.
    """
    found: dict[str, dict[str, rows.Comparison]] = defaultdict(dict)
    for row, comparison in compared:
        key = json.dumps([row["model"], row["cluster"], row["gpus"], row["precision"], row["source"]])
        layout = f"{comparison.prediction.layout} {comparison.run.batch}"
        known = found[key].get(layout)
        if known is None or speed(comparison) > speed(known):
            found[key][layout] = comparison
    return [list(group.values()) for group in found.values() if len(group) >= SWEEP]


def speed(comparison: rows.Comparison) -> float:
    """The published throughput, in tokens per GPU and second."""
    return comparison.prediction.tokens_per_gpu_per_second / (1 + comparison.error)


def regret(sweep: list[rows.Comparison]) -> float:
    """How much slower the layout that the planner would choose was measured than the best one."""
    fitting = [
        c for c in sweep if c.prediction.nbytes <= FILLED * c.run.cluster.memory
    ] or sweep  # fmt: skip
    chosen = max(fitting, key=lambda c: c.prediction.tokens_per_gpu_per_second)
    return max(map(speed, sweep)) / speed(chosen) - 1


def number(value: float) -> str:
    """A value with four digits."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def main(arguments: list[str] | None = None) -> int:
    """Run the program; its exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("rows", nargs="?", type=Path, default=calibrate.ROWS, metavar="ROWS.json")
    parser.add_argument("--terms", action="store_true", help="print all terms of each run")
    parser.add_argument("--table", action="store_true", help="print README.md's table of families alone")
    parser.add_argument("--part", help="only rows of this part, such as 'held out'")
    options = parser.parse_args(arguments)
    try:
        read = json.loads(options.rows.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        print(f"{options.rows} cannot be read: {error}", file=sys.stderr)
        return 2
    if not isinstance(read, list) or not all(isinstance(row, dict) for row in read):
        print(f"{options.rows} holds no list of rows; benchmarks/README.md says what a row is", file=sys.stderr)
        return 2
    compared, bad = [], 0
    for row in read:
        if options.part and row.get("part") != options.part:
            continue
        try:
            compared.append((row, rows.compare(rows.read(row))))
        except rows.RowError as error:
            bad += 1
            print(error, file=sys.stderr)
    if options.table:
        print(table(compared))
        return 1 if bad else 0
    tests = show_runs(compared, options.terms)
    show_sweeps(sweeps(compared))
    show_memory([(row, c) for row, c in compared if (row["published"] or {}).get("memory_gib")])
    if not tests:
        print(f"{options.rows} has no run to compare with", file=sys.stderr)
        return 2
    print(f"median {100 * statistics.median(tests):.1f} %")
    print(f"90th percentile {100 * percentile(tests, 0.9):.1f} %")
    return 1 if bad else 0


def table(compared: list[tuple[dict[str, Any], rows.Comparison]]) -> str:
    """README.md's table: the errors of all runs that are tests, by family."""
    calibrated, families = calibrate.names(), defaultdict(list)
    for row, c in compared:
        if c.run.name in calibrated or row.get("unused"):
            continue
        kind = "mixture of experts" if c.run.model.experts else "dense"
        for family in (row["family"], kind, "**all**"):
            families[family].append(c.error)
    lines = ["| family | runs | median error | 90th percentile | signed median |", "|---|---:|---:|---:|---:|"]
    names = {"dense": "dense", "mixture of experts": "mixture of experts", "**all**": "**all**", **FAMILIES}
    for family, words in names.items():
        errors = families[family]
        sizes = [abs(error) for error in errors]
        signed = f"{100 * statistics.median(errors):+.1f} %".replace("-", "\N{MINUS SIGN}")
        middle, high = 100 * statistics.median(sizes), 100 * percentile(sizes, 0.9)
        lines.append(f"| {words} | {len(errors)} | {middle:.1f} % | {high:.1f} % | {signed} |")
    return "\n".join(lines)


def show_runs(compared: list[tuple[dict[str, Any], rows.Comparison]], terms: bool) -> list[float]:
    """Print each run, and the errors by family; the errors that count."""
    calibrated, families, tests = calibrate.names(), defaultdict(list), []
    for row, c in compared:
        time, seconds = c.prediction.time, c.prediction.seconds
        largest = c.prediction.largest_loss
        mark = "  calibration" if c.run.name in calibrated else "  unused" if row.get("unused") else ""
        values = f"predicted {number(c.predicted):>8} published {number(c.published):>8} {c.unit:26}"
        print(f"{c.run.name:50} {values} error {c.error:+7.1%}  {largest} {time[largest] / seconds:.0%}{mark}")
        if terms:
            parts = sorted(time.items(), key=lambda pair: -pair[1])
            print("    " + ", ".join(f"{term} {value / seconds:.1%}" for term, value in parts))
        if not mark:
            families[row.get("family") or c.run.software.name].append(c.error)
            families["dense" if not c.run.model.experts else "mixture of experts"].append(c.error)
            tests.append(abs(c.error))
    print(f"\n{'family':20} runs  median  90th percentile  signed median  worst")
    for family, errors in sorted(families.items(), key=lambda pair: pair[0].lower()):
        sizes = [abs(error) for error in errors]
        print(
            f"{family:20} {len(errors):4} {statistics.median(sizes):7.1%} {percentile(sizes, 0.9):16.1%} "
            f"{statistics.median(errors):+14.1%} {max(sizes):6.0%}"
        )
    return tests


def show_sweeps(found: list[list[rows.Comparison]]) -> None:
    """Print the order of each sweep."""
    if not found:
        return
    print(f"\n{'sweep':50} layouts  rank correlation  the chosen layout is slower by")
    for sweep in found:
        first = sweep[0].run
        name = f"{first.software.name}, {first.model.name.split(' DP')[0][:30]}, {sweep[0].prediction.layout.gpus} GPUs"
        predicted = [c.prediction.tokens_per_gpu_per_second for c in sweep]
        order = spearman(predicted, [speed(c) for c in sweep])
        print(f"{name:50} {len(sweep):7} {order:17.2f} {regret(sweep):12.1%}")
    print(f"median {statistics.median(map(regret, found)):.1%} slower")


def show_memory(found: list[tuple[dict[str, Any], rows.Comparison]]) -> None:
    """Print how far predicted memory is from measured memory, and which layouts are wrongly called too large."""
    if not found:
        return
    errors, wrong = [], []
    for row, c in found:
        errors.append(c.prediction.nbytes / GIB / row["published"]["memory_gib"] - 1)
        if c.prediction.nbytes > c.run.cluster.memory:
            wrong.append(c.run.name)
    sizes = [abs(error) for error in errors]
    print(
        f"\nmemory: {len(errors)} measured values, median error {statistics.median(sizes):.1%}, signed "
        f"{statistics.median(errors):+.1%}; wrongly called too large: {', '.join(wrong) or 'none'}\n"
    )


if __name__ == "__main__":
    sys.exit(main())
