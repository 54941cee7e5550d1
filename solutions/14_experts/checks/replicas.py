"""Exercise 7: experts with several replicas, placed so that the busiest GPU has little more than the mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from autograder.checks.cases import Call, at_most, fact, sentence
from autograder.checks.check import check

REPLICAS = "14-ex7-replicas"
#: Loads, GPUs, slots per GPU.
Problem = tuple[list[float], int, int]


@dataclass
class Plans:
    """What the plans of many problems have in common."""

    fault: str = sentence()
    excess: Any = fact("the mean excess of the busiest GPU over the mean load, in percent of that of the greedy rules,")


def _problems(rng: np.random.Generator) -> list[Problem]:
    """Three to five experts per GPU, and a slot more; or two, where two experts are far more popular than the others.

    Without these two, almost any use of the free slots would do.
    """
    found = []
    for number in range(40):
        gpus, each, heavy = int(rng.integers(3, 7)), int(rng.integers(3, 6)), number % 2
        loads = rng.integers(1, 201, gpus * each).astype(float)
        loads[: 2 * heavy] = np.round(2 * loads.sum() / gpus)
        found.append((rng.permutation(loads).tolist(), gpus, each + 1 + heavy))
    return found


def greedy(loads: list[float], gpus: int, slots: int) -> list[list[int]]:
    """EPLB's global policy: slots to the largest load per replica, replicas to the lightest GPU, heaviest first."""
    copies = np.ones(len(loads), int)
    while copies.sum() < gpus * slots:
        copies[np.argmax(np.array(loads) / copies)] += 1
    share = np.array(loads) / copies
    placed: list[list[int]] = [[] for _ in range(gpus)]
    for expert in sorted(np.repeat(np.arange(len(loads)), copies), key=lambda e: -share[e]):
        free = [mine for mine in placed if len(mine) < slots]
        min(free, key=lambda mine: sum(share[e] for e in mine)).append(int(expert))
    return placed


def _excess(problem: Problem, placed: list[list[int]]) -> float:
    """Of the busiest GPU over the mean, as a share of it. An expert that is nowhere is on every GPU."""
    loads, gpus, _ = problem
    replicas = [expert for mine in placed for expert in mine]
    lost = sum(load for expert, load in enumerate(loads) if expert not in replicas)
    most = max(sum(loads[e] / replicas.count(e) for e in mine) for mine in placed) + lost
    return most * gpus / sum(loads) - 1


def _fault(problem: Problem, placed: list[list[int]]) -> str:
    loads, gpus, slots = problem
    if len(placed) != gpus or any(len(mine) != slots for mine in placed):
        return f"expected {gpus} lists of {slots} experts each, got lists of {[len(mine) for mine in placed]}"
    lost = sorted(set(range(len(loads))) - {expert for mine in placed for expert in mine})
    return f"expert {lost[0]} of {len(loads)} has no replica" if lost else ""


def _place(place_replicas: Callable, problems: list[Problem]) -> Plans:
    """Where the submission runs: the plans of all problems."""
    plans = [place_replicas(list(loads), gpus, slots) for loads, gpus, slots in problems]
    faults = [fault for problem, placed in zip(problems, plans, strict=True) if (fault := _fault(problem, placed))]
    whole = [sum(_excess(p, plan) for p, plan in zip(problems, of, strict=True)) for of in (plans, _by_rule(problems))]
    return Plans(faults[0] if faults else "", round(100 * whole[0] / whole[1]))


def _by_rule(problems: list[Problem]) -> list[list[list[int]]]:
    return [greedy(*problem) for problem in problems]


def _call(place_replicas: Callable, rng: np.random.Generator, right: Plans) -> Call:
    return Call(_place, place_replicas, _problems(rng), gives=right, name="40 drawn loads")


@check(REPLICAS, points=0.25)
def every_expert_has_a_place(place_replicas, *, rng):
    """Every GPU has as many experts as slots, and every expert is on some GPU."""
    yield _call(place_replicas, rng, Plans(""))


@check(REPLICAS, points=1)
def no_worse_than_the_greedy_rules(place_replicas, *, rng):
    """The busiest GPU's excess over the mean is at most that of EPLB's rules, on average."""
    yield _call(place_replicas, rng, Plans(excess=at_most(100, slack=5, least=1)))


@check(REPLICAS, points=0.75)
def half_the_excess(place_replicas, *, rng):
    """The busiest GPU's excess over the mean is at most half of that of EPLB's rules, on average."""
    yield _call(place_replicas, rng, Plans(excess=at_most(50, least=1)))
