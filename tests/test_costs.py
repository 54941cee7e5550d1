"""Lesson 02: its oracles agree with numpy, chance never decides a mark, and the book's numbers hold."""

import math

import numpy as np
import pytest

from autograder.checks.costs import common, messages, speedup
from autograder.lessons import notebook
from tests.helpers import right_answers

LESSON = "02_costs"
RNG = np.random.default_rng(2)


def close(value):
    return pytest.approx(float(value), rel=1e-9)


@pytest.fixture(scope="module")
def lesson():
    return notebook.functions(LESSON)


def test_the_played_rounds_are_those_of_lesson_01():
    """2(N−1) rounds of the ring and 2⌈log2 N⌉ of the tree, for every N up to 130."""
    for n in range(1, 131):
        assert common.ring_seconds(0, n, 1, 0) == 2 * (n - 1)
        assert messages._tree_seconds(0, n, 1, 0) == 2 * math.ceil(math.log2(n))
        assert common.ring_seconds(n, n, 0, 1) == 2 * (n - 1)
        assert messages._tree_seconds(n, n, 0, 1) == 2 * math.ceil(math.log2(n)) * n


CROSSINGS = [(4, 160_000), (5, 90_909.0909091), (8, 376_470.588235), (64, 2_272_897.19626)]


@pytest.mark.parametrize(("n", "nbytes"), CROSSINGS)
def test_ring_and_tree_tie_at_the_published_crossovers(lesson, n, nbytes):
    prices = (20e-6, 0.1e-9)
    assert messages._meeting_point(n, *prices) == pytest.approx(nbytes, rel=1e-9)
    at = lesson["crossover_bytes"](n, *prices)
    assert at == close(nbytes)
    assert lesson["ring_time"](at, n, *prices) == close(lesson["tree_time"](at, n, *prices))
    assert lesson["ring_time"](at + 1, n, *prices) < lesson["tree_time"](at + 1, n, *prices)


@pytest.mark.parametrize("n", [2, 3])
def test_two_and_three_ranks_tie_at_zero_bytes(lesson, n):
    assert lesson["ring_time"](0, n, 20e-6, 0.1e-9) == lesson["tree_time"](0, n, 20e-6, 0.1e-9) > 0


def test_the_line_is_that_of_polyfit():
    for _, sizes, seconds in messages._line_cases(RNG):
        beta, alpha = np.polyfit(np.array(sizes, float), np.array(seconds, float), 1)
        got = messages._best_line(sizes, seconds)
        assert float(got[0]) == pytest.approx(alpha, abs=1e-9 * max(seconds))
        assert float(got[1]) == pytest.approx(beta, rel=1e-6, abs=1e-9 * max(seconds) / max(sizes))


def test_the_fraction_is_the_best_of_a_fine_grid():
    for _ in range(20):
        ns = RNG.integers(2, 40, 5)
        speedups = RNG.uniform(0.7, 3, 5)
        grid = np.linspace(0, 1, 100_001)[:, None]
        errors = np.sum((1 / speedups - (1 - grid) - grid / ns) ** 2, axis=1)
        assert float(speedup._best_fraction(ns, speedups)) == pytest.approx(grid[np.argmin(errors), 0], abs=1e-5)


@pytest.mark.parametrize("name", right_answers.right_answers(LESSON))
def test_chance_takes_no_mark(name):
    right_answers.keeps_all_marks(LESSON, name)
