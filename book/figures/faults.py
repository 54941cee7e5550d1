"""Seven recorded runs of lesson 17's loop, one healthy and six with a fault, and what each of eleven detectors says.

The runs are recorded while the book is built, which takes some ten seconds: four ranks train with the recorder that
students get (`solutions/17_capstone/faults.py`). The same bytes come out each time on one machine, so nothing is kept
in a file that could grow old. `study()` records them and lets the lesson's own functions judge them, on four ranks.
`data()` is what the page gets: the recorded numbers without any verdict. `faults.js` comes to its own ones.
`margins()` records more runs, with other seeds, steps and ranks, and says how far thresholds are from both sides.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
import statistics
from typing import Any

import torch
import torch.distributed as dist

import ranks
from autograder.checks import module
from autograder.lesson import notebook

RECORDER = module("17_capstone", "finding").RECORDER

CAPTION = "Six recorded runs, each with a fault, under eleven detectors"
RANKS, SEED, STEPS = 4, 0, 20
#: Where the fault is. No number is within 5 % of its threshold, so that no other machine's rounding decides.
AT, ON = 8, 1
#: `margins` looks at these seeds, steps and ranks, and at runs of STEPS steps without a fault.
SEEDS, PLACES = range(5), ((4, 0), (12, 3))
WORDS = {
    "bit": "a bit flips", "batch": "wrong batch", "gradient": "gradient × 2",
    "moments": "momentum lost", "rate": "rate × 2", "copy": "copy changes",
}  # fmt: skip
#: What a norm may be, as a multiple of the median that a detector compares it with.
LIMITS = {"local norm, own past": 2.0, "local norm, all ranks": 1.5, "update, own past": 1.3}
#: A detector's name, and what makes it light its lamp.
RULES = {
    "(a) the loss": "the mean loss does not fall",
    "guard": "the mean loss is above 1.5 × the median of the last five",
    "batches, all ranks": "two ranks have the same batch",
    "local norm, own past": f"a rank's own gradient's norm is above {LIMITS['local norm, own past']:g} × the median of "
    "its last five",
    "local norm, all ranks": f"a rank's own gradient's norm is above {LIMITS['local norm, all ranks']:g} × the ranks' "
    "median",
    "(b) after the step": "the ranks' parameters differ",
    "(b) before forward": "a rank's parameters are not those of its last step",
    "state before the step": "a rank's masters or moments are not those of its last step",
    "update, own past": f"the norm of a shard's update is above {LIMITS['update, own past']:g} × the median of its "
    "last five, from step 3 on",
    "norms, one process": "a rank's gradient's or update's norm is off by 0.1 %",
    "losses, one process": "the mean loss is off by 10⁻⁵",
}
DETECTORS = tuple(RULES)
DIGESTS = ("batch", "parameters_in", "state_in", "state_out", "parameters_out")
#: In units of the picture: the space for labels, a column's width, a line's height.
LABEL, WIDE, LINE = 140, 118, 22
#: By rank and step, a row of the recorder; and by detector, the step and the rank that it names, None for none.
Log = list[list[dict[str, Any]]]
Seen = dict[str, tuple[int, int | None]]


@functools.cache
def study() -> tuple[dict[str, Log], Log, dict[str, Seen]]:
    """For each fault, and "none", the log of the run; one process's log; and for each run what is seen."""
    tools = _tools()
    plants = {"none": None} | {kind: (kind, AT, ON) for kind in WORDS}
    results = ranks.run(_record, RANKS, (tools, list(plants.values()), _checks()), timeout=300)
    logs = {kind: [rows[number] for rows, _ in results] for number, kind in enumerate(plants)}
    reference = RECORDER.alone(tools, RANKS, SEED, STEPS)
    told = zip(*[told for _, told in results], strict=True)
    return logs, reference, {kind: _seen(logs[kind], reference, said) for kind, said in zip(logs, told, strict=True)}


def judge(logs: list[Log], reference: Log) -> list[Seen]:
    """What is seen of each of these logs. The lesson's own functions decide, each log's rank on a rank of its own."""
    results = ranks.run(_watch, len(reference), (logs, *_checks()), timeout=300)
    return [_seen(log, reference, told) for log, told in zip(logs, zip(*results, strict=True), strict=True)]


def _tools() -> dict[str, Any]:
    lesson = notebook.functions("17_capstone")
    names = ("build_model", "make_corpus", "make_batch", "cross_entropy", "ZeroOptimizer", "broadcast_parameters")
    return {name: lesson[name] for name in names}


def margins() -> dict[str, tuple[float, float, float, float]]:
    """For each detector that compares norms, (largest without a fault, threshold, least and most with its fault).

    Each is a ratio to the median that the detector takes. A healthy run has as many batches as ranks, and one whose
    rank has another one's batch has fewer, for every seed; an AssertionError otherwise.
    """
    cases: list[tuple[int, int, tuple[str, int, int] | None]] = [(seed, STEPS, None) for seed in SEEDS]
    for seed, (at, on), kind in itertools.product(SEEDS, PLACES, ("batch", "gradient", "rate")):
        cases.append((seed, at, (kind, at, on)))
    ratios = {"local norm, own past": _own_past, "local norm, all ranks": _all_ranks, "update, own past": _own_past}
    healthy: dict[str, list[float]] = {name: [] for name in ratios}
    faulty: dict[str, list[float]] = {name: [] for name in ratios}
    rows = ranks.run(_several, RANKS, (_tools(), cases), timeout=300)
    for (_, steps, plant), log in zip(cases, zip(*rows, strict=True), strict=True):
        batches = [len({mine[t]["batch"] for mine in log}) for t in range(steps)]
        assert (batches[-1] < RANKS) is (plant is not None and plant[0] == "batch")
        if plant is None:
            assert min(batches) == RANKS
        for name, ratio in ratios.items():
            what = "update" if name.startswith("update") else "gradient"
            if plant is None:
                healthy[name] += [ratio(log, what, r, t) for r in range(RANKS) for t in range(2, steps)]
            elif plant[0] == ("rate" if what == "update" else "gradient"):
                faulty[name].append(ratio(log, what, plant[2], steps - 1))
    return {name: (max(healthy[name]), LIMITS[name], min(faulty[name]), max(faulty[name])) for name in ratios}


def _several(rank, world_size, tools, cases) -> list[list[dict]]:
    return [RECORDER.record(rank, world_size, tools, seed, steps, plant) for seed, steps, plant in cases]


def _own_past(log: Any, what: str, rank: int, t: int) -> float:
    return log[rank][t][what] / statistics.median(row[what] for row in log[rank][max(0, t - 5) : t])


def _all_ranks(log: Any, what: str, rank: int, t: int) -> float:
    return log[rank][t][what] / statistics.median(rows[t][what] for rows in log)


def _checks() -> list[Any]:
    lesson = notebook.functions("17_capstone")
    return [lesson[name] for name in ("check_start", "check_step", "Guard", "ZeroOptimizer")]


def _record(rank, world_size, tools, plants, checks) -> tuple[Log, list[dict]]:
    """This rank's rows of each run, and what the lesson's checks say of them."""
    mine, everyone = [RECORDER.record(rank, world_size, tools, SEED, STEPS, plant) for plant in plants], [None] * RANKS
    dist.all_gather_object(everyone, mine)
    return mine, _watch(rank, world_size, list(zip(*everyone, strict=True)), *checks)


def _watch(rank, world_size, logs, check_start, check_step, guard_class, optimizer_class) -> list[dict]:
    """What the lesson's checks say of each run on this rank: by detector, (step, message) of its first problem."""
    found = []
    for log in logs:
        guard = guard_class(optimizer_class([torch.nn.Parameter(torch.zeros(4))], torch.optim.Adam))
        seen, last, losses = {}, {"parameters_out": None, "state_out": None}, _losses(log)
        for step, row in enumerate(log[rank], start=1):
            where = rank, world_size, step
            checks = {
                "(a) the loss": (check_step, losses[:step], 0.0, "", 0, 0),
                "(b) after the step": (check_step, [], 0.0, row["parameters_out"], 0, 0),
                "(b) before forward": (check_start, row["parameters_in"], last["parameters_out"]),
                "state before the step": (check_start, row["state_in"], last["state_out"]),
            }
            for name, (check, *given) in checks.items():
                try:
                    check(*where, *given)
                except RuntimeError as error:
                    seen.setdefault(name, (step, str(error)))
            if not guard.accepts(step, losses[step - 1]):
                seen.setdefault("guard", (step, ""))
            last = row
        found.append(seen)
    return found


def _seen(log: Log, reference: Log, told: tuple[dict, ...]) -> Seen:
    """Where each detector first sees something wrong: what the ranks were told, and what needs all rows."""
    seen: Seen = {name: (step, _named(name, [mine[name][1] for mine in told])) for name, (step, _) in told[0].items()}
    norms = [[dict.fromkeys(DIGESTS, "") | _norms(row) for row in rows] for rows in log]
    alone = [[{"batch": ""} | _norms(row) for row in rows] for rows in reference]
    if first := notebook.functions("17_capstone")["find_fault"](norms, alone):  # which is shown nothing but norms
        seen["norms, one process"] = first[:2]
    losses, meant = _losses(log), _losses(reference)
    for t in reversed(range(len(losses))):  # the first one comes last, and stays
        if abs(losses[t] - meant[t]) > 1e-5:
            seen["losses, one process"] = t + 1, None
        if len({rows[t]["batch"] for rows in log}) < len(log):
            seen["batches, all ranks"] = t + 1, None
        for rank in reversed(range(len(log))):
            if t > 0 and _own_past(log, "gradient", rank, t) > LIMITS["local norm, own past"]:
                seen["local norm, own past"] = t + 1, rank
            if _all_ranks(log, "gradient", rank, t) > LIMITS["local norm, all ranks"]:
                seen["local norm, all ranks"] = t + 1, rank
            if t > 1 and _own_past(log, "update", rank, t) > LIMITS["update, own past"]:
                seen["update, own past"] = t + 1, rank
    return seen


def _named(detector: str, messages: list[str]) -> int | None:
    """The rank that all ranks' messages name. The loss is a mean, alike on all ranks, so that (a) accuses nobody."""
    ranks_named = {int(number) for message in messages for number in re.findall(r"rank (\d+)[, ]", message)[:1]}
    return ranks_named.pop() if len(ranks_named) == 1 and detector != "(a) the loss" else None


def _norms(row: dict) -> dict:
    return {"gradient": row["gradient"], "update": row["update"]}


def _losses(log: Log) -> list[float]:
    """The mean loss of each step."""
    return [statistics.mean(row["loss"] for row in rows) for rows in zip(*log, strict=True)]


def data() -> str:
    """What the page gets, as JSON: the runs without a verdict."""
    logs, reference, _ = study()
    return pack(logs, reference)


def pack(logs: dict[str, Log], reference: Log) -> str:
    """These runs as JSON: by run and entry a list for each rank. A digest is its place in the list of all digests."""
    places: dict[str, int] = {}

    def column(log: Log, what: str) -> list[list]:
        if what in DIGESTS:
            return [[places.setdefault(row[what], len(places)) for row in rows] for rows in log]
        return [[float(f"{row[what]:.9g}") for row in rows] for rows in log]

    numbers = ("loss", "gradient", "update")
    runs = {kind: {what: column(log, what) for what in (*DIGESTS, *numbers)} for kind, log in logs.items()}
    alone = {what: column(reference, what) for what in numbers}
    digests = " ".join(digest[:6] for digest in places)
    whole = {"at": AT, "on": ON, "digests": digests, "runs": runs, "reference": alone}
    return json.dumps(whole, separators=(",", ":"))


def still() -> tuple[str, str]:
    """The picture and its text alternative: the first step at which each detector sees each fault."""
    *_, seen = study()
    width = LABEL + WIDE * len(WORDS)
    marks = [_text(LABEL + WIDE * k, 14, words, "title") for k, words in enumerate(WORDS.values())]
    for line, name in enumerate(DETECTORS, start=1):
        y = 16 + LINE * line
        marks += [f'<path class="still-box" d="M0 {y - 15}H{width}"/>', _text(0, y, name)]
        cells = [_where(seen[kind].get(name)) for kind in WORDS]
        marks += [_text(LABEL + WIDE * k, y, words) for k, words in enumerate(cells)]
    said = [
        f"{words}: {'; '.join(f'{name} in {_where(seen[kind][name])}' for name in DETECTORS if name in seen[kind])}"
        for kind, words in WORDS.items()
    ]
    alt = f"Which of {len(DETECTORS)} detectors sees a fault in step {AT} on rank {ON}, and when. {'. '.join(said)}."
    size = f"{width} {24 + LINE * len(DETECTORS)}"
    return f'<svg viewBox="0 0 {size}" xmlns="http://www.w3.org/2000/svg">{"".join(marks)}</svg>', alt


def _where(seen: tuple[int, int | None] | None) -> str:
    if seen is None:
        return "–"
    return f"step {seen[0]}" + (f", rank {seen[1]}" if seen[1] is not None else "")


def _text(x: float, y: float, words: str, look: str = "label") -> str:
    return f'<text class="still-{look}" x="{x}" y="{y}">{words}</text>'
