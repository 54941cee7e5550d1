"""The bar of `grade` moves while a notebook is graded, the lesson's own solution included."""

from __future__ import annotations

import re

import pytest

from autograder.grading import bar
from autograder.grading.running import submission as running
from tests.helpers.toy_course import LESSON, Toy, submission

pytestmark = pytest.mark.jail


def test_the_bar_moves_with_each_cell(tmp_path, monkeypatch, capsys):
    """A single worker is this process (conftest.py), so that each of its ticks can be looked at."""
    toy = Toy(tmp_path / "class")
    toy.hand_in("ada", submission())
    seen, bars, tick, enter = [], [], running.tick, bar.Bar.__enter__
    monkeypatch.setattr(bar.Bar, "__enter__", lambda self: bars.append(self) or enter(self))

    def tick_and_look(path):
        tick(path)
        bars[0]._show()
        seen.append((round(bars[0].bar.n, 3), bars[0].bar.desc))

    monkeypatch.setattr(running, "tick", tick_and_look)
    assert not toy.course.grade(jobs=1)
    own = [n for n, text in seen if text == f"the lesson's own solution of {LESSON}"]
    theirs = [n for n, text in seen if text == "grading"]
    assert own == sorted(set(own)) and len(own) == 7 and 0 < own[0] < own[-1] < 1
    assert theirs == sorted(set(theirs)) and len(theirs) == 7 and 1 < theirs[0] < theirs[-1] < 2
    assert bars[0].bar.n == bars[0].bar.total == 2
    said = capsys.readouterr().err
    assert said.index("preparing") < said.index("solution"), "there before the first notebook"
    assert re.search(r"100%\|█+\| 2/2 \[\d\d:\d\d, 00:00 left\] graded ada", said)


def test_a_worker_elsewhere_does_without_the_file():
    running.tick("")
    running.tick("/nowhere/at/all")


def test_nothing_changed_leaves_no_bar(tmp_path, capsys):
    toy = Toy(tmp_path / "class")
    toy.hand_in("ada", submission())
    toy.course.grade(jobs=1)
    capsys.readouterr()
    toy.course.grade(jobs=1)
    assert "100%" not in capsys.readouterr().err
