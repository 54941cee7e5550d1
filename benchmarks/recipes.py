"""Would the planner's advice stand beside published recipes? `recipes.json` has 80 of them.

    python benchmarks/recipes.py [RECIPES.json] [--only WORD] [--filled 0.85] [--table]

For each recipe: whether its layout is *accepted* (`planner.predict` finds it valid, and it fits the memory); whether
the planner's best layout is *valid* by `broken_rules`, which knows nothing of the planner; and whether that layout is
*as good*: valid, and no slower than the recipe's own by the planner's account (half a percent is a tie). Nobody has
measured the planner's layouts, so "as good" says that the search misses nothing, and not that the account is right.
--table: the table of README.md. The exit status is 1 if a best layout breaks a rule.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import planner
from machines import cluster as clusters
from machines.cluster import GB, GIB, Cluster
from planner import Layout, LayoutError, rows
from planner.software import FEATURES, SOFTWARE

RECIPES = Path(__file__).with_name("recipes.json")
TIE = 1.005
MODULES = {"core_attn", "layernorm", "mlp", "mla_up_proj", "moe_act", "moe"}


class Verdict(NamedTuple):
    """What is said about one recipe: seconds predicted for its own layout, those of the best, and what was measured."""

    name: str
    why_not: str
    seconds: float
    best: float
    broken: tuple[str, ...]
    measured: float | None

    @property
    def accepted(self) -> bool:
        return not self.why_not

    @property
    def as_good(self) -> bool:
        return not self.broken and self.best <= TIE * self.seconds


def machine(row: dict[str, Any]) -> Cluster:
    """The recipe's machine: one that the course knows, with the recipe's changes."""
    found, changes = clusters.find(row["cluster"]), dict(row.get("machine") or {})
    new: dict[str, Any] = {}
    for key, value in changes.items():
        if key in ("memory_gib", "memory_gb"):
            new["memory"] = value * (GIB if key == "memory_gib" else GB)
        elif key in ("memory_bandwidth_gb_s", "port_gb_s"):
            new[key.removesuffix("_gb_s")] = value * GB
        elif key == "flops_share":
            new["flops"] = {kind: rate * value for kind, rate in found.flops.items()}
        elif key == "network" and value == "efa":
            new |= {"network_step": clusters.EFA_STEP, "network_level": clusters.EFA_TREE}
        elif key == "ports":
            new["ports"] = value
        elif key not in ("name", "note"):
            raise ValueError(f"{row['name']}: the machine has no {key!r}")
    return replace(found, **new)


def layout_of(row: dict[str, Any]) -> Layout:
    """The recipe's layout. Its `recompute` may be "layers", which `recompute_layers` says alone."""
    given = {key: value for key, value in row["layout"].items() if value is not None}
    if given["recompute"] == "layers":
        given["recompute"] = "none"
    given["recompute_modules"] = tuple(given.get("recompute_modules", ()))
    return Layout(**given)


def parameters_by_hand(m: dict[str, Any]) -> tuple[float, float]:
    """(ordinary, routed) parameters, counted once more; attention of width 7,168 with experts is DeepSeek's."""
    h, layers = m["hidden"], m["layers"]
    heads, kv, d = m["heads"], m.get("kv_heads") or m["heads"], m.get("head_dim") or m["hidden"] // m["heads"]
    experts = m.get("experts") or 0
    attention = h * d * (2 * heads + 2 * kv)
    if experts and h == 7168:
        attention = h * (1536 + 512 + 64) + 1536 * heads * 192 + 512 * heads * 256 + heads * 128 * h
    wide, inner = 3 if m.get("gated", True) else 2, m.get("expert_ffn") or 0
    dense = (m.get("dense_layers") or 0) if experts else layers
    mlp = wide * h * (m["ffn"] * dense + (layers - dense) * (m.get("shared_experts") or 0) * inner)
    embeddings = (1 if m.get("tied") else 2) * m["vocab"] * h
    return layers * attention + mlp + embeddings, (layers - dense) * experts * wide * h * inner


def least_states(row: dict[str, Any], layout: Layout) -> float:
    """Bytes that no program can avoid: weights of two bytes, gradients of two, 12 of the optimizer, sharded."""
    ordinary, routed = (part / layout.pp for part in parameters_by_hand(row["model"]))
    ranks = layout.dp * layout.cp
    shard, same = min(layout.shard or ranks, ranks), max(1, ranks * layout.tp // layout.ep)
    if row["kind"] == "lora":
        return 2 * (ordinary / layout.tp + routed / layout.ep) / (ranks if layout.zero_stage == 3 else 1)
    stage = layout.zero_stage if layout.zero_stage < 3 or layout.pp == 1 else 1
    total = 0.0
    for place, nbytes in enumerate((12, 2, 2)):  # optimizer, gradients, weights: sharded from stage 1, 2, 3 on
        sharded = stage > place
        total += nbytes * ordinary / layout.tp / (shard if sharded else 1)
        total += nbytes * routed / layout.ep / (same if sharded else 1)
    return total


def broken_rules(
    row: dict[str, Any], layout: Layout, nbytes: float, memory: float, data_seconds: Callable[[Layout], float]
) -> tuple[str, ...]:
    """Rules that a layout breaks, whatever the planner says. data_seconds: the planner's price of data parallelism."""
    m, x, batch = row["model"], layout, row["batch_sequences"]
    sizes = (x.dp, x.tp, x.pp, x.cp, x.ep, x.micro_batch, x.virtual_stages)
    if not all(isinstance(size, int) and size >= 1 for size in sizes):
        return ("sizes are whole numbers",)
    micro, whole, v = batch // (x.dp * x.micro_batch), m["layers"] + (m.get("mtp") or 0), x.virtual_stages
    kv, experts, layers = m.get("kv_heads") or m["heads"], m.get("experts") or 0, math.ceil(m["layers"] / x.pp)
    names, ranks = set(x.recompute_modules), x.dp * x.cp
    holds = {
        "dp tp pp cp = gpus": x.dp * x.tp * x.pp * x.cp == row["gpus"],
        "batch / (dp micro_batch)": batch % (x.dp * x.micro_batch) == 0 and micro >= 1,
        "heads / tp": m["heads"] % x.tp == 0 and (kv % x.tp == 0 or x.tp % kv == 0),
        "ffn / tp": m["ffn"] % x.tp == 0,
        "sequence / 2 cp": m["seq"] % (2 * x.cp if x.cp > 1 else 1) == 0,
        "own tokens / tp": m["seq"] // x.cp % x.tp == 0 or not x.sequence_parallel,
        "a layer per stage": x.pp <= m["layers"],
        "interleaving needs a pipeline": v == 1 or x.pp > 1,
        "layers / (pp v)": v == 1 or any((whole + more) % (x.pp * v) == 0 for more in range(4)),
        "micro-batches / pp with interleaving": v == 1 or x.schedule != "1f1b" or micro % x.pp == 0,
        "micro-batches for the schedule": x.schedule == "1f1b" or micro >= 2 * x.pp,
        "experts / ep": x.ep == 1 or (experts > 0 and experts % x.ep == 0),
        "ranks of a stage / ep": ranks * x.tp % x.ep == 0,
        "HSDP": not x.shard or (x.zero_stage == 3 and ranks % x.shard == 0),
        "heads / cp tp": x.cp == 1 or x.context != "all_to_all" or kv % (x.cp * x.tp) == 0,
        "layers to recompute": 0 <= x.recompute_layers <= layers + 1 and 0 <= x.offload_layers <= layers + 1,
        "modules": names <= MODULES and ("moe_act" not in names or experts > 0),
        "mla_up_proj without MLA": "mla_up_proj" not in names or (experts > 0 and m["hidden"] == 7168),
        "memory": nbytes <= memory,
        "states alone exceed the memory": least_states(row, x) <= memory,
    }
    accumulates = (math.ceil(micro / x.pp) if v > 1 else micro) > 1 and ranks > 1 and row["kind"] != "lora"
    if x.zero_stage == 2 and accumulates:
        free = data_seconds(x) <= 1.01 * data_seconds(replace(x, zero_stage=1))
        holds["ZeRO-2 with accumulation for nothing"] = not free
    return tuple(rule for rule, fine in holds.items() if not fine)


def judge(row: dict[str, Any], filled: float | None = None) -> Verdict:
    """The verdict about one recipe. filled: as `planner.plan` has it."""
    model, cluster, software = rows.model_of(row["name"], row["model"]), machine(row), SOFTWARE[row["software"]]
    layout, batch, gpus, precision = layout_of(row), row["batch_sequences"], row["gpus"], row["precision"]
    trained = "lora" if row["kind"] == "lora" else "all"

    def predict(which: Layout, limit: bool = False) -> planner.Prediction:
        return planner.predict(model, cluster, which, batch, precision, software, limit, trained)

    def data_seconds(which: Layout) -> float:
        anything = replace(software, features=FEATURES)
        found = planner.predict(model, cluster, which, batch, precision, anything, False, trained)
        return found.time.get("data", 0.0)

    why_not, seconds = "", 0.0
    try:
        seconds = predict(layout).seconds
        predict(layout, True)
    except LayoutError as error:
        why_not = str(error)
    best, broken = math.inf, ("no plan",)
    try:
        found = planner.plan(model, cluster, gpus, batch, precision, software, trained, filled).best
        best, broken = found.seconds, broken_rules(row, found.layout, found.nbytes, cluster.memory, data_seconds)
    except LayoutError as error:
        broken = (str(error),)
    published = row.get("published") or {}
    measured = published.get("step_seconds")
    if speed := published.get("tokens_per_gpu_per_second"):
        measured = measured or batch * row["model"]["seq"] / gpus / speed
    return Verdict(row["name"], why_not, seconds, best, broken, measured)


def table(verdicts: list[Verdict]) -> str:
    """The table of README.md."""
    errors = [abs(v.seconds / v.measured - 1) for v in verdicts if v.measured and v.seconds]
    ratios = [v.best / v.seconds for v in verdicts if v.seconds]
    counts = {
        "accepted": sum(verdict.accepted for verdict in verdicts),
        "whose best layout is valid": sum(not verdict.broken for verdict in verdicts),
        "whose best layout is valid and as good as the recipe": sum(verdict.as_good for verdict in verdicts),
    }
    lines = ["| of the published recipes | |", "|---|---:|"]
    lines += [f"| {what} | {count} of {len(verdicts)} |" for what, count in counts.items()]
    lines.append(f"| seconds of the best over the recipe's, median | {statistics.median(ratios):.2f} |")
    if errors:
        middle = f"{100 * statistics.median(errors):.1f} %"
        lines.append(f"| error of the predicted seconds of the {len(errors)} that were measured, median | {middle} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Run the program; its exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("recipes", nargs="?", type=Path, default=RECIPES)
    parser.add_argument("--only", default="", help="only recipes with this in their name")
    parser.add_argument("--filled", type=float, help="the part of the memory that a plan may fill")
    parser.add_argument("--table", action="store_true", help="print the table of README.md alone")
    options = parser.parse_args(arguments)
    verdicts = []
    for row in json.loads(options.recipes.read_text(encoding="utf-8")):
        if options.only not in row["name"]:
            continue
        verdicts.append(verdict := judge(row, options.filled))
        if not options.table:
            said = "; ".join([*filter(None, [verdict.why_not]), *verdict.broken])
            print(f"{verdict.name[:46]:46} {verdict.seconds:9.3f} {verdict.best:9.3f}  {said}", flush=True)
    print(table(verdicts))
    return 1 if any(verdict.broken for verdict in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
