"""Exercises 6 and 7: what a layout costs, and all layouts of a cluster."""

from __future__ import annotations

import copy
import math
from collections import Counter
from typing import Any

import numpy as np

from autograder.checking.check import check
from autograder.checking.expect import expect_close, expect_equal, fail

COST, PLAN = "15-ex6-cost", "15-ex7-plan"
SEVENTY = {"params": 70.6e9, "layers": 80, "hidden": 8192, "heads": 64, "seq": 8192, "saved": 32}
BLOOM = {"params": 176e9, "layers": 72, "hidden": 14336, "heads": 112, "seq": 2048, "saved": 34}
H100S = {"gpus": 512, "per_node": 8, "memory": 1e15, "peak": 989e12, "efficiency": 0.54, "intra": 450e9, "inter": 50e9}
A100S = {"gpus": 384, "per_node": 8, "memory": 1e15, "peak": 312e12, "efficiency": 0.5, "intra": 300e9, "inter": 6.25e9}
NUMBERS = ("memory", "seconds", "mfu", "bubble")


def layout(tp: int, pp: int, dp: int, micro: int = 1, chunks: int = 1, recompute: bool = False) -> dict[str, Any]:
    """A layout as the exercise has it."""
    return {"tp": tp, "pp": pp, "dp": dp, "micro": micro, "chunks": chunks, "recompute": recompute}


#: Layouts that fit: one axis at a time, all together, inside a node and across, with few and many micro-batches; in the
#: last two of SEVENTY the rules only just hold: t equals the heads, pv the layers, db the batch, and M equals p.
FITTING = [
    (SEVENTY, H100S, layout(1, 1, 512), 512, 1),
    (SEVENTY, H100S, layout(1, 1, 512, recompute=True), 1024, 1),
    (SEVENTY, H100S, layout(8, 1, 64), 512, 0),
    (SEVENTY, H100S, layout(4, 1, 128, micro=2), 512, 1),
    (SEVENTY, H100S, layout(16, 1, 32, micro=2), 512, 2),
    (SEVENTY, H100S, layout(4, 2, 64), 512, 1),
    (SEVENTY, H100S, layout(8, 16, 4, micro=4, recompute=True), 512, 2),
    (SEVENTY, H100S, layout(4, 4, 32, chunks=4), 512, 1),
    (SEVENTY, H100S, layout(2, 4, 64, micro=2, chunks=2), 512, 2),
    (SEVENTY, H100S, layout(8, 8, 8, chunks=2, recompute=True), 512, 0),
    (SEVENTY, H100S, layout(4, 16, 8), 64, 1),
    (SEVENTY, H100S, layout(64, 1, 8, micro=2), 16, 1),
    (SEVENTY, H100S, layout(4, 16, 8, chunks=5), 128, 2),
    (BLOOM, A100S, layout(4, 12, 8, micro=2, recompute=True), 2048, 1),
    (BLOOM, A100S, layout(8, 6, 8, chunks=3), 768, 2),
    (BLOOM, {**A100S, "gpus": 8}, layout(4, 2, 1), 4, 0),
    (BLOOM, {**A100S, "gpus": 8}, layout(2, 1, 4), 4, 2),
]


def reason(model: dict, cluster: dict, one: dict, batch: int) -> str | None:
    """The first rule that fails, memory aside."""
    rules = {
        "gpus": one["tp"] * one["pp"] * one["dp"] == cluster["gpus"],
        "heads": model["heads"] % one["tp"] == 0,
        "layers": model["layers"] % (one["pp"] * one["chunks"]) == 0 and (one["chunks"] == 1 or one["pp"] > 1),
        "batch": batch % (one["dp"] * one["micro"]) == 0,
    }
    if rules["batch"] and one["chunks"] > 1:
        rules["batch"] = batch // (one["dp"] * one["micro"]) % one["pp"] == 0
    return next((name for name, holds in rules.items() if not holds), None)


def needed(model: dict, one: dict, batch: int, stage: int) -> float:
    """Bytes of a GPU, part by part: a weight's, its gradient's, its state's; then the activations of layers."""
    d = one["dp"]
    bytes_each = 2 + 2 / (d if stage == 2 else 1) + 12 / (d if stage >= 1 else 1)
    weights = bytes_each * model["params"] / one["tp"] / one["pp"]
    numbers = model["seq"] * one["micro"] * model["hidden"] / one["tp"]
    count = batch // (d * one["micro"])
    held = one["pp"] if one["chunks"] == 1 else one["pp"] + (one["pp"] - 1) / one["chunks"]
    layers = model["layers"] / one["pp"] * min(count, held)
    if one["recompute"]:
        return weights + numbers * (2 * layers + model["saved"])
    return weights + numbers * model["saved"] * layers


def spent(model: dict, cluster: dict, one: dict, batch: int) -> dict[str, float]:
    """Seconds, utilization and bubble: a step as slots of the pipeline, each with its products and its messages."""
    t, p, d, v = one["tp"], one["pp"], one["dp"], one["chunks"]
    count = batch // (d * one["micro"])
    tokens = one["micro"] * model["seq"]

    def sending(nbytes: float, group: int, stride: int) -> float:
        """Seconds for a rank's bytes in a group of ranks `stride` apart, each of which has a port of its own."""
        inside = max(1, cluster["per_node"] // stride)  # ranks of the group in a node
        across = min(cluster["intra"], inside * cluster["inter"])
        return nbytes / (across if group * stride > cluster["per_node"] else cluster["intra"])

    layer = 6 * model["params"] / model["layers"] + 12 * model["hidden"] * model["seq"]  # operations of a token
    vector = 2 * tokens * model["hidden"]  # bytes of one activation
    slot = 0.0  # one micro-batch through one rank's layers, forward and backward
    per_rank = model["layers"] / p
    slot += (
        per_rank * layer * tokens / t / (cluster["peak"] * cluster["efficiency"]) * (4 if one["recompute"] else 3) / 3
    )
    slot += per_rank * (6 if one["recompute"] else 4) * sending(2 * vector * (t - 1) / t, t, 1)
    if p > 1:
        slot += v * 2 * vector / t / cluster["intra" if t * p <= cluster["per_node"] else "inter"]  # through one port
    seconds = slot * (count + (p - 1) / v)
    seconds += sending(2 * (2 * model["params"] / t / p) * (d - 1) / d, d, t * p)
    work = batch * model["seq"] * model["layers"] * layer
    mfu = work / seconds / cluster["gpus"] / cluster["peak"]
    return {"seconds": seconds, "mfu": mfu, "bubble": (p - 1) / (v * count + p - 1)}


def _name(model: dict, one: dict, batch: int, stage: int) -> str:
    which = f"tp {one['tp']} pp {one['pp']} dp {one['dp']} micro {one['micro']} chunks {one['chunks']}"
    again = ", recomputed" if one["recompute"] else ""
    return f"{model['params'] / 1e9:g} billion parameters, {which}{again}, batch {batch}, stage {stage}"


def _called(cost: Any, model: dict, cluster: dict, one: dict, batch: int, stage: int) -> dict[str, Any]:
    """What the call returned, a dict with all entries; its arguments are as before."""
    arguments = copy.deepcopy((model, cluster, one))
    case = _name(model, one, batch, stage)
    got = cost(*arguments, batch, stage)
    expect_equal(case, isinstance(got, dict), True, what="whether cost returned a dict", evidence=type(got).__name__)
    missing = sorted({*one, "reason", *NUMBERS} - set(got))
    expect_equal(case, missing, [], what="the list of entries that the result lacks")
    return got


def _drawn(rng: np.random.Generator) -> list[tuple]:
    """The layouts that fit, each with a cluster and a model whose numbers are a little different."""
    found = []
    for model, cluster, one, batch, stage in FITTING:
        other = {
            **cluster,
            **{name: cluster[name] * float(rng.uniform(0.8, 1.25)) for name in ("peak", "intra", "inter")},
        }
        found.append(({**model, "params": model["params"] * float(rng.uniform(0.8, 1.25))}, other, one, batch, stage))
    return found


@check(COST, points=2)
def seconds_add_up_from_their_parts(cost, *, rng):
    """Seconds, bubble and mfu of a layout that fits are those of the formulas; the result has the layout's entries."""
    for model, cluster, one, batch, stage in _drawn(rng):
        case = _name(model, one, batch, stage)
        got = _called(cost, model, cluster, one, batch, stage)
        expect_equal(case, got["reason"], None, what="the reason")
        expect_equal(case, {name: got[name] for name in one}, one, what="the layout in the result")
        for name, want in spent(model, cluster, one, batch).items():
            expect_close(case, got[name], np.array(want), what=name, rtol=1e-9, evidence=_number(got[name]))


def _number(value: Any) -> Any:
    return value if isinstance(value, int | float) else str(value)


@check(COST, points=1.25)
def memory_is_weights_and_activations(cost, *, rng):
    """Memory follows the formulas at each stage; a layout that needs more than a GPU has is refused with its memory."""
    for model, cluster, one, batch, _ in _drawn(rng):
        for stage in (0, 1, 2):
            case, want = _name(model, one, batch, stage), needed(model, one, batch, stage)
            got = _called(cost, model, cluster, one, batch, stage)["memory"]
            expect_close(case, got, np.array(want), what="the memory", rtol=1e-9, evidence=_number(got))
        for factor, out in ((1.001, None), (0.999, "memory")):
            words = f"{case}, of which a GPU has {factor} times as much"
            got = _called(cost, model, {**cluster, "memory": want * factor}, one, batch, 2)
            expect_equal(words, got["reason"], out, what="the reason")
            if out:
                numbers = [got[name] for name in ("seconds", "mfu", "bubble")]
                expect_equal(words, numbers, [None] * 3, what="the list of seconds, mfu and bubble")
                expect_close(words, got["memory"], np.array(want), what="the memory", rtol=1e-9)
        own = _called(cost, model, cluster, one, batch, 2)["memory"]  # exact to the last bit: the answer's own number
        got = _called(cost, model, {**cluster, "memory": own}, one, batch, 2)["reason"]
        expect_equal(f"{case}, of which a GPU has exactly as much", got, None, what="the reason")
    one, arguments = layout(4, 4, 32), copy.deepcopy((SEVENTY, H100S, layout(4, 4, 32)))
    got = cost(*arguments, 512)["memory"]
    expect_close("without a stage", got, np.array(needed(SEVENTY, one, 512, 1)), what="the memory", rtol=1e-9)


#: (model, cluster, layout, batch): one rule that fails, and two at a time.
FAILING = [
    (SEVENTY, H100S, layout(4, 4, 16), 512),
    (SEVENTY, H100S, layout(8, 8, 16), 512),
    (SEVENTY, H100S, layout(128, 2, 2), 512),
    (SEVENTY, H100S, layout(1, 32, 16), 512),
    (SEVENTY, H100S, layout(4, 8, 16, chunks=4), 512),
    (SEVENTY, H100S, layout(8, 1, 64, chunks=2), 512),
    (SEVENTY, H100S, layout(4, 2, 64, micro=4), 384),
    (SEVENTY, H100S, layout(4, 4, 32), 500),
    (SEVENTY, H100S, layout(4, 4, 32, chunks=2), 64),
    (SEVENTY, H100S, layout(4, 4, 32, chunks=2), 160),
    (SEVENTY, H100S, layout(48, 3, 7), 500),
    (BLOOM, A100S, layout(3, 16, 8), 2048),
    (BLOOM, A100S, layout(96, 4, 1, chunks=4), 3),
    (BLOOM, A100S, layout(4, 96, 1), 2048),
    (BLOOM, A100S, layout(8, 16, 3), 2048),
    (BLOOM, {**A100S, "memory": 1.0}, layout(4, 12, 8), 2047),
    (BLOOM, {**A100S, "memory": 1.0}, layout(4, 12, 8), 2048),
]


@check(COST, points=0.75)
def the_first_rule_that_fails_is_the_reason(cost, *, rng):
    """The reason is the first rule of the table that fails, with None for the numbers; given dicts stay as they are."""
    for model, cluster, one, batch in FAILING:
        case, want = _name(model, one, batch, 1), reason(model, cluster, one, batch)
        arguments = copy.deepcopy((model, cluster, one))
        got = cost(*arguments, batch)
        expect_equal(
            case, isinstance(got, dict), True, what="whether cost returned a dict", evidence=type(got).__name__
        )
        expect_equal(case, got.get("reason"), want or "memory", what="the reason")
        if want:
            numbers = [got.get(name) for name in NUMBERS]
            expect_equal(case, numbers, [None] * 4, what="the list of memory, seconds, mfu and bubble")
        changed = list(arguments) != [model, cluster, one]
        expect_equal(case, changed, False, what="whether a given dict was changed")


# ---- 7 · plan ----


def _everything(gpus: int) -> list[dict[str, Any]]:
    found = []
    for tp in range(1, gpus + 1):
        for pp in range(1, gpus + 1):
            for dp in range(1, gpus + 1):
                if tp * pp * dp == gpus:
                    found += [layout(tp, pp, dp, b, v, again) for b in (1, 2, 4) for v in (1, 2, 4, 8)
                              for again in (False, True)]  # fmt: skip
    return found


#: (model, cluster, batch, stage): some layouts fit, some fail for each of the reasons; in the last one there may be
#: more stages than layers, and more replicas than sequences.
CLUSTERS = [
    ({"params": 3e9, "layers": 24, "hidden": 2560, "heads": 32, "seq": 2048, "saved": 34},
     {**H100S, "gpus": 12, "memory": 30e9}, 96, 1),
    ({"params": 7e9, "layers": 32, "hidden": 4096, "heads": 32, "seq": 4096, "saved": 34},
     {**A100S, "gpus": 16, "memory": 40e9}, 64, 2),
    ({"params": 1e9, "layers": 6, "hidden": 2048, "heads": 16, "seq": 1024, "saved": 34},
     {**H100S, "gpus": 12}, 8, 1),
]  # fmt: skip


def _planned(plan: Any, model: dict, cluster: dict, batch: int, stage: int, case: str) -> tuple[list, list]:
    got = plan(model, cluster, batch, stage)
    if not (isinstance(got, tuple | list) and len(got) == 2 and all(isinstance(one, list) for one in got)):
        fail("plan should return two lists", case, type(got).__name__)
    for one in (*got[0], *got[1]):
        if not isinstance(one, dict) or not {*layout(1, 1, 1), "reason", *NUMBERS} <= set(one):
            fail("the lists of plan should hold what cost returns", case, "no costs")
        for name in ("tp", "pp", "dp", "micro", "chunks"):
            kind = type(one[name]).__name__
            expect_equal(case, kind, "int", what=f"the type of a layout's {name}", evidence=[name, kind])
    return got[0], got[1]


def _in_words(names: list[str], values: tuple) -> str:
    return ", ".join(f"{name} {value}" for name, value in zip(names, values, strict=True))


@check(PLAN, points=1.25)
def every_layout_is_tried_once(plan, *, rng):
    """Every layout is there once: in the first list without a reason, or in the second with its reason."""
    for model, cluster, batch, stage in CLUSTERS:
        case = f"{cluster['gpus']} GPUs, {model['params'] / 1e9:g} billion parameters, stage {stage}"
        lists = _planned(plan, dict(model), dict(cluster), batch, stage, case)
        wanted: tuple[list, list] = ([], [])
        for one in _everything(cluster["gpus"]):
            why = reason(model, cluster, one, batch)
            if why is None and needed(model, one, batch, stage) > cluster["memory"]:
                why = "memory"
            wanted[why is not None].append((*one.values(), why))
        for got, want, what in zip(lists, wanted, ("that fit", "that do not fit"), strict=True):
            names = [*layout(1, 1, 1), "reason"]
            there, right = Counter(tuple(one[name] for name in names) for one in got), Counter(want)
            missing, count = sorted(map(str, right - there)), sum(there.values())
            seen = [count, *missing]
            text = f"the number of layouts {what}"
            if missing and count < len(want):
                text += f" (one is missing with {_in_words(names, next(iter(right - there)))})"
            expect_equal(case, count, len(want), what=text, evidence=seen)
            expect_equal(case, missing[:2], [], what=f"layouts and reasons missing among those {what}", evidence=seen)


@check(PLAN, points=0.75)
def what_fits_comes_fastest_first(plan, *, rng):
    """The layouts that fit are in the order of their seconds, those of the formulas; given dicts stay as they are."""
    for model, cluster, batch, stage in CLUSTERS:
        case = f"{cluster['gpus']} GPUs, {model['params'] / 1e9:g} billion parameters, stage {stage}"
        given = dict(model), dict(cluster)
        fitting, _ = _planned(plan, *given, batch, stage, case)
        want = sorted(
            spent(model, cluster, one, batch)["seconds"]
            for one in _everything(cluster["gpus"])
            if reason(model, cluster, one, batch) is None and needed(model, one, batch, stage) <= cluster["memory"]
        )
        got = [one["seconds"] for one in fitting]
        if len(got) != len(want) or not all(isinstance(x, int | float) and math.isfinite(x) for x in got):
            fail(f"expected {len(want)} layouts with seconds, got {len(got)}", case, len(got))
        expect_close(case, got, np.array(want), what="the list of seconds", rtol=1e-9)
        expect_equal(case, given != (model, cluster), False, what="whether a given dict was changed")
