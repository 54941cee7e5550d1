"""What a submission's text and data may take outside the jail: each limit, and what lies beyond it."""

import argparse
import contextlib
import itertools
import json
import os
import random
import re
import signal
import time
import types

import nbformat
import numpy as np
import pytest
import torch
from nbformat.v4 import new_code_cell, new_notebook

from autograder.checks import cases
from autograder.checks.expect import CheckFailed, expect_close, expect_raises
from autograder.checks.hints import same_evidence
from autograder.desk import regrade
from autograder.grade import limits, outcome, retry
from autograder.grade.jail import wire
from autograder.grade.nbgrader import reading, submission_files
from autograder.grade.pages import feedback
from autograder.grade.running import pictures, run_cells
from autograder.grade.running.kernels import Outputs, Reply
from autograder.lesson import skippable
from ranks.ledger import Ledger, Message, Span


@contextlib.contextmanager
def within(seconds):
    """Fails if what happens inside takes a processor longer."""
    began = time.process_time()
    yield
    assert time.process_time() - began < seconds


def stream(text):
    return {"msg_type": "stream", "content": {"name": "stdout", "text": text}}


def test_the_last_state_of_a_line_is_what_the_expression_kept():
    chance = random.Random(1)
    for _ in range(2000):
        text = "".join(chance.choices("ab\r\n", k=chance.randrange(12)))
        assert limits.last_states(text) == re.sub(r"[^\n]*\r(?!\n)", "", text), repr(text)


def test_one_long_line_is_cut_in_time():
    collected = Outputs()
    collected.add(stream("x" * 1_900_000))
    with within(1):
        assert len(collected.finished()[0].text) == 1_900_000


def test_errors_without_end_are_cut():
    collected = Outputs()
    for _ in range(2000):
        collected.add(
            {"msg_type": "error", "content": {"ename": "E", "evalue": "x" * 10_000, "traceback": ["y" * 9999]}}
        )
    shown = collected.finished()
    assert sum(len(str(output)) for output in shown) < limits.CELL_OUTPUT + 100_000
    assert "was cut" in str(shown) and shown[-1].output_type == "error", "the last error is still named"


def test_a_cell_that_is_too_long_says_so_and_is_not_parsed():
    nb = new_notebook(cells=[new_code_cell("x = 1\n" * limits.SOURCE, id="long"), new_code_cell("y = 1", id="short")])
    cells = reading.read_submission(nbformat.writes(nb)).cells
    assert "200,000 characters" in cells[0].source and cells[1].source == "y = 1"
    with pytest.raises(ValueError, match="keep data out of the source"):
        exec(cells[0].source, {})


def read_cells(*sources):
    nb = new_notebook(cells=[new_code_cell(source) for source in sources])
    return reading.read_submission(json.dumps(nb)).cells


def test_a_cell_with_many_accents_on_a_letter_is_not_parsed():
    many = "a" + "\u0315\u0300" * 90_000
    with within(2):
        cells = read_cells(many, "x = 'a" + "\u0344" * 16 + "'", "é" * 1_000 + " = 1")
    assert ["30 accents" in cell.source for cell in cells] == [True, True, False]


def test_cells_that_make_a_notebook_too_long_are_not_parsed():
    cells = read_cells("y = 1", *["x = '" + "1" * 150_000 + "'"] * 14)
    assert cells[0].source == "y = 1"
    assert ["2,000,000 characters" in cell.source for cell in cells[1:]] == [False] * 13 + [True]


def test_what_no_parser_reads_makes_every_cell_run():
    lesson = new_notebook(cells=[new_code_cell("import math", id="s", metadata={"tags": ["setup"]})])
    lesson.cells.append(new_code_cell("print(1)", id="demo"))
    deep = new_code_cell("a" + ".a" * 90_000, id="own")
    assert skippable.skippable_cells(lesson.cells, lesson) == {"demo"}
    assert skippable.skippable_cells([*lesson.cells, deep], lesson) == set()


def read(tree, data=b""):
    return wire._Reader(memoryview(bytearray(data)), {}).decode(tree)


@pytest.mark.parametrize("name", ["qint8", "quint8", "qint32", "quint4x2", "quint2x4"])
def test_a_quantized_tensor_does_not_cross(name):
    assert name not in wire.DTYPES
    with pytest.raises(KeyError):
        read(["T", name, [4], [0], [0, 4], [False, False]], b"1234")


@pytest.mark.parametrize("name", ["O", "V0", "V8", "T", "(1000000000,)f8", "f8,f8", "i4,(2,)O", "x" * 1000])
def test_an_array_of_something_else_than_numbers_texts_and_dates_does_not_cross(name):
    with pytest.raises((wire.WireError, TypeError, ValueError)):
        read(["a", name, [1], [0], [0, 8]], b"12345678")


def test_an_array_without_elements_has_no_endless_axis():
    with pytest.raises(wire.WireError, match="too long"):
        read(["a", "<f8", [10**9, 0], [0, 1], [0, 0]])
    assert read(["a", "<f8", [10**6, 0], [0, 1], [0, 0]]).shape == (10**6, 0)


def test_dtypes_that_do_not_cross_stay_where_they_are():
    kept = []
    writer = wire._Writer(lambda value: kept.append(value) or 7)
    assert writer.encode(torch.qint8)[0] == "o"
    assert writer.encode(np.zeros(2, "V3"))[0] == "o"
    assert len(kept) == 2


def test_of_many_objects_that_are_no_plain_data_none_crosses():
    with pytest.raises(wire.WireError, match="too many objects"):
        read(["l", [["o", "x", 1, "m"]] * 10_001])
    with pytest.raises(ValueError, match="too many objects"):
        wire._Writer(None).encode([object()] * 10_001)


def test_an_output_holds_texts_only_and_no_text_is_made_of_anything_else():
    collected = Outputs()
    collected.add_untrusted("stream", {"name": "stdout", "text": "a", "more": bytes(10**7)})
    collected.add_untrusted("stream", {"name": "stdout", "text": bytes(10**7)})
    assert [output.text for output in collected.finished()] == ["a"] and collected.size < 10_000


def test_a_cell_shows_at_most_two_thousand_outputs():
    collected = Outputs()
    for _ in range(5_000):
        collected.add_untrusted("stream", {"name": "stdout", "text": "a"})
        collected.add_untrusted("stream", {"name": "stderr", "text": "b"})
    assert 1_000 < len(collected.finished()) < 2_000


@pytest.mark.parametrize("value", [np.nan, np.inf, 1])
def test_evidence_of_many_elements_is_compared_at_once(value):
    many = np.full(1_000_000, value, np.float16)

    def answer():
        return many

    def check():
        yield cases.Call(answer, gives=cases.close(np.zeros(3)), what="the numbers")

    with pytest.raises(CheckFailed) as caught:
        cases.play(check(), {id(answer): "answer"})
    with within(1):
        assert same_evidence(caught.value.compared, caught.value.compared)
        assert not same_evidence(caught.value.compared, ("", np.zeros(1_000_000, np.float16)))


def picture_with(ledger):
    error = CheckFailed("the sum is wrong: got 3, expected 4")
    error.ledger = ledger
    return pictures.picture_of(error)


def test_a_forged_ledger_gives_no_picture_whatever_it_raises():
    class Forged(Ledger):
        def sends(self):
            raise ZeroDivisionError

    assert picture_with(Forged([Message(0, "send", 1, 1e308, 0.0, 0.0)], 2)) == {}
    picture = picture_with(Ledger([Message(0, "send", 10**30, -(10**400), 0.0, 1e308)], 2))
    assert picture == {} or picture["png"]


def test_a_picture_of_too_many_or_too_long_spans_is_not_drawn():
    def drawn(*spans):
        return picture_with(Ledger([Message(0, "send", 1, 8, 0.0, 1.0, "", 1)], 2, list(spans)))

    assert drawn(Span(0, "forward", 0.0, 1.0)).keys() == {"png", "alt"}
    assert drawn(*[Span(0, "f", 0.0, 1.0)] * (limits.PICTURE_SPANS + 1)) == {}
    assert drawn(Span(0, "f" * (limits.SPAN_NAME + 1), 0.0, 1.0)) == {}


@pytest.mark.parametrize(
    "source", [" \n" * 4_000, "x" * 2_001, "#" * 20_001, "\n" * 1_001], ids=["blanks", "line", "long", "lines"]
)
def test_source_that_would_take_long_to_color_is_escaped_plainly(source):
    with within(0.5):
        page = feedback._code(source + "<b>")
    assert "&lt;b&gt;" in page and "<span" not in page


def test_source_within_the_limits_is_colored():
    assert "<span" in feedback._code("x = 1\n" * 900)


def die(_):
    os.kill(os.getpid(), 9)


def wait(_):
    time.sleep(60)


def take(size):
    return len(bytearray(size))


def test_a_helper_may_die_and_the_next_call_works():
    helper = limits.Helper(2**30, 2.0)
    assert helper.call(take, 5) == 5
    first = helper.process.pid
    assert helper.call(take, 6) == 6 and helper.process.pid == first, "it is kept"
    with pytest.raises(limits.OutOfLimitsError, match="ended"):
        helper.call(die, 0)
    with pytest.raises(limits.OutOfLimitsError, match="MemoryError"):
        helper.call(take, 3 * 2**30)
    with pytest.raises(limits.OutOfLimitsError, match="2 seconds"):
        helper.call(wait, 0)
    assert helper.call(take, 7) == 7
    helper._end()


def test_a_helper_ends_when_terminated_though_its_parent_handles_the_signal():
    previous = signal.signal(signal.SIGTERM, lambda *_: None)  # as a Jupyter server does; it hung at its end
    try:
        helper = limits.Helper(2**30, 5.0)
        helper.call(take, 5)
        helper.process.terminate()
        helper.process.join(5)
        assert helper.process.exitcode == -signal.SIGTERM
    finally:
        signal.signal(signal.SIGTERM, previous)
        helper._end()


def test_a_page_that_cannot_be_made_shows_the_points(monkeypatch):
    def too_slow(*_):
        raise limits.OutOfLimitsError("it took more than 0 seconds")

    monkeypatch.setattr(feedback._helper, "call", too_slow)
    role = {"grade": True, "solution": False, "points": 2, "score": 1.0, "grade_id": "07-ex2-square-test"}
    nb = new_notebook(cells=[new_code_cell("assert x", id="07-ex2-square-test", metadata={"nbgrader": role})])
    info = {"notebook": "07_toy", "student": "ada", "score": 1.0, "max_score": 2.0}
    page = feedback.bounded_page(nb, info)
    assert "the points only" in page and "1 / 2" in page


FORMULAS = ["=1+1", " =1+1", "\n=1", "\t+1", "'=1", "@x", "-2", "＝1+1", "＋1", "－2", "＠x", " \r\n -2", "\ntext"]


@pytest.mark.parametrize("text", [*FORMULAS, "ada", "", "a=1", "'s", "3"])
def test_of_the_cells_of_a_csv_file_only_what_a_spreadsheet_might_run_is_quoted(text):
    assert limits.csv_cell(text) == (f"'{text}" if text in FORMULAS else text)


def test_a_message_must_have_a_name_as_a_word():
    def raises(text):
        raise ValueError(text)

    expect_raises("c", raises, "t must be positive", error=ValueError, mentions="t")
    with pytest.raises(CheckFailed):
        expect_raises("c", raises, "not that way", error=ValueError, mentions="t")


def test_spans_of_time_are_no_numbers_and_imaginary_parts_count():
    with pytest.raises(CheckFailed, match="numbers"):
        expect_close("c", np.array([1, 2], "m8[s]"), np.array([1.0, 2.0]), what="x", rtol=0.1)
    with pytest.raises(CheckFailed, match="wrong"):
        expect_close("c", np.array([1 + 5j]), np.array([1.0]), what="x", rtol=0.1)


def test_a_notebook_of_too_many_pieces_is_not_read():
    def read_back(nb):
        return outcome.of_notebook(reading.read_submission(json.dumps(nb))).problem

    nb = new_notebook(cells=[new_code_cell("x = [1]")])
    assert read_back(nb) == ""
    assert "too large" in read_back({**nb, "metadata": {"x": [{}] * limits.PARTS}})
    many = new_notebook(cells=[new_code_cell("", id=f"c{number}") for number in range(limits.CELLS + 1)])
    assert "2,001 cells (at most 2,000 are graded)" in read_back(many)


def test_data_files_are_taken_up_to_one_total(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "ALL_DATA", 25)
    for number in range(3):
        (tmp_path / f"{number}.bin").write_bytes(bytes(10))
    found = submission_files.read_folder(tmp_path, ["*.bin"])
    assert list(found.files) == ["0.bin", "1.bin"]
    assert found.left_out[0].startswith("2.bin: all files together are too large")


def test_errors_count_with_the_outputs_of_a_notebook():
    counts = itertools.count(1)

    def run(source, timeout):
        count = next(counts)
        frames = [f"Cell In[{count}]" + "x" * 20_000] * 3
        return Reply("error", error=("E" * 20_000, "t" * 20_000), traceback=frames, execution_count=count)

    kernel = types.SimpleNamespace(start=lambda: None, stop=lambda: None, run=run)
    cells = [new_code_cell("1/0", id=f"c{number}") for number in range(limits.CELLS)]
    kept = list(run_cells.run_cells(cells, lambda: kernel, run_cells.Limits()).values())
    assert len(str(kept)) < limits.ALL_OUTPUT + limits.CELLS * 1000
    assert len(kept[0].where) == 3 and not kept[-1].where and kept[-1].failure.error == "E" * 100


#: Would put a text into the clipboard, clear the screen and do so once more without an escape.
TERMINAL = "ValueError: \x1b]52;c;cGxhbnRlZA==\x1b\\ \x1b[2J \x9b2J ü"


def test_a_text_of_a_submission_gives_no_orders_to_the_terminal_of_who_grades(monkeypatch, capsys):
    test = nbformat.from_dict({"id": "07-ex1-a-test", "metadata": {"autograder": {}}})
    course = types.SimpleNamespace()
    monkeypatch.setattr(retry.grade, "course_of", lambda arguments: course)
    monkeypatch.setattr(retry, "failed_test", lambda *args: test)
    monkeypatch.setattr(retry, "run_again", lambda *args: (test, TERMINAL))
    assert retry.command(argparse.Namespace(student="a", lesson="07_a", exercise="07-ex1")) == 1
    said = capsys.readouterr().out + regrade._short(TERMINAL)
    assert said.count("ü") == 2 and not {"\x1b", "\x9b"} & set(said)


def test_old_formats_cost_nothing_more():
    """Converted from format 3, a heading's level becomes as many signs, and each bad output a warning."""
    outputs = [{"output_type": "strea"}] * 50_000
    cells = [{"cell_type": "heading", "level": 10**12, "source": "x"}]
    cells += [{"cell_type": "code", "input": "1", "language": "python", "outputs": outputs}]
    nb = {"nbformat": 3, "nbformat_minor": 0, "metadata": {}, "worksheets": [{"cells": cells}]}
    with within(30):
        read = reading.read_submission(json.dumps(nb))
    assert [cell.source for cell in read.cells] == ["# x", "1"]


def test_a_number_of_a_cell_is_short():
    run = run_cells._Run(lambda: None, run_cells.Limits())
    run.counts = {1}
    frames = ["Cell In[1], line 1", f"Cell In[{'9' * 5000}], line 1"]
    assert run.own_frames(Reply("error", traceback=frames)) == frames[:1]


def test_a_submissions_files_take_no_place_of_the_lessons():
    theirs = {"data.csv": b"t", "pieces.py/x.csv": b"t", "more": b"t", "mine/x.csv": b"t"}
    ours = {"pieces.py": b"o", "more/y.csv": b"o", "data.csv": b"o"}
    assert submission_files.next_to(ours, theirs) == ours | {"mine/x.csv": b"t"}
