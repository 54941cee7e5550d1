"""Long, deep, wide, odd and broken input for each place outside the jail that takes a submission's text or data.

Seconds of it in `make test`, minutes in `make thorough`. A failure prints the seed; `AUTOGRADER_FUZZ=SEED` repeats it.
"""

import contextlib
import csv
import io
import json
import os
import random
import resource
import secrets
import socket
import threading
import time

import nbformat
import numpy as np
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from autograder.checks.expect import CheckFailed
from autograder.checks.hints import same_evidence
from autograder.grade import limits
from autograder.grade.jail import wire
from autograder.grade.nbgrader import reading
from autograder.grade.nbgrader.gradebook import Row, csv_of
from autograder.grade.pages import feedback, safe_html
from autograder.grade.running import pictures
from autograder.grade.running.kernels import Outputs
from autograder.lesson import names, skippable
from ranks.ledger import Ledger, Message

#: Seconds of computing and bytes of memory that one input may take, at most.
SECONDS, MEMORY = 20.0, 3 * 2**30

PIECES = [
    "a", " ", "\n", "\r", "\t", "\0", "\x1b[31m", "\u202e", "\ud800", "é", "𝔘", "=1+1", "'", '"', '"""', "\\", "#", "(",
    "[", "{", ")", "lambda:", "a.", "-", "not ", "if x:\n", "    ", "%magic\n", "!ls\n", "<b>", "<div style='", "<!--",
    "&lt;", "](", "![", "`", "*", "_", "$", "|", "- ", "> ", "1. ", "<script>", "base64,", "A=", "\u2028", "async ",
]  # fmt: skip
NUMBERS = [0, 1, -1, 2**31, -(2**63), 2**64, 10**400, 1e308, -0.0, 5e-324, True, None, "x", [], {}]
NAMES = [*"ifltsSqzdToObBaAyYcrpDN", "", "no", "decode", "__class__"]
DTYPES = [
    "<f8",
    "<f2",
    "|u1",
    "|b1",
    "<U3",
    "|S0",
    "|V0",
    "O",
    "T",
    "(9,)f8",
    "f8,f8",
    "m8",
    "M8[s]",
    "float32",
    "qint8",
    "bool",
]


def text(chance, most):
    """A text: few pieces in disorder, or one piece or two many times."""
    size = int(most ** chance.random())
    if chance.random() < 0.5:
        return "".join(chance.choices(PIECES, k=min(size, 2_000)))
    unit = "".join(chance.choices(PIECES, k=chance.randint(1, 2)))
    return chance.choice(["", "x = "]) + unit * max(1, size // len(unit)) + chance.choice(["", "\n", "b"])


def tree(chance, depth=0):
    """A tree as the wire's JSON, nearly right or not at all."""
    kind = chance.random()
    if depth > chance.randint(1, 60) or kind < 0.2:
        return chance.choice([*NUMBERS, text(chance, 50)])
    if kind < 0.4:
        shape = [chance.choice([0, 1, 2, 4, -1, 2**40, "2"]) for _ in range(chance.randint(0, 3))]
        order = chance.choice([list(range(len(shape))), [0, 0], [9], [-1], [], ["x"]])
        place = [chance.choice([0, 8, -8, 2**70]), chance.choice([0, 8, 16, 32, -1])]
        return [chance.choice("aAT"), chance.choice(DTYPES), shape, order, place, [False, chance.random() < 0.5]]
    return [chance.choice(NAMES), *(tree(chance, depth + 1) for _ in range(chance.randint(0, 3)))]


def deep(unit, end, times):
    return unit * times + end * times


def reads_the_wire(chance):
    kind = chance.random()
    if kind < 0.8:
        body = json.dumps(tree(chance)).encode()
    elif kind < 0.9:
        body = deep(
            chance.choice(["[", '["l",[', '{"a":']), chance.choice(["]", "]]", "}"]), chance.randint(1, 100_000)
        ).encode()
    else:
        body = chance.randbytes(chance.randint(0, 200))
    header = wire._HEADER.pack(chance.choice([len(body), len(body) + 8]), chance.choice([len(body), len(body) // 2]))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.settimeout(10)
        sender = threading.Thread(target=_send, args=(ours, header + body + bytes(8)))
        sender.start()
        with contextlib.suppress(wire.WireError, EOFError, OSError):
            wire.receive(theirs)
        theirs.close()
        sender.join()


def _send(connection, data):
    try:
        connection.sendall(data)
        connection.shutdown(1)
    except OSError:
        pass


def cuts_output(chance):
    collected = Outputs()
    for _ in range(chance.randint(1, 20)):
        kind = chance.choice(
            ["stream", "display_data", "error", "execute_result", "clear_output", "update_display_data", "x"]
        )
        content = {
            "name": chance.choice(["stdout", "stderr", 7]), "text": text(chance, 500_000),
            "wait": chance.choice([0, 1]),
            "ename": text(chance, 100), "evalue": text(chance, 500_000), "traceback": [text(chance, 1000)],
            "data": {chance.choice(["text/plain", "text/html", "image/png", "a/json"]): text(chance, 300_000)},
            "transient": chance.choice([{}, {"display_id": "1"}, None]), "execution_count": chance.choice(NUMBERS),
        }  # fmt: skip
        collected.add_untrusted(kind, content)
    shown = safe_html.outputs(collected.finished())
    assert len(str(shown)) < 20 * limits.CELL_OUTPUT


def parses_source(chance):
    nb = new_notebook(
        cells=[chance.choice([new_code_cell, new_markdown_cell])(text(chance, 400_000)) for _ in range(3)]
    )
    cells = reading.read_submission(json.dumps(nb)).cells
    lesson = new_notebook(cells=[new_code_cell("import math", id="s", metadata={"tags": ["setup"]})])
    skippable.skippable_cells([*lesson.cells, *cells], lesson)
    assert all(len(cell.source) <= limits.SOURCE for cell in cells)
    for cell in cells:
        with contextlib.suppress(names.UNPARSABLE):
            names.of_cell(cell)


def compares_evidence(chance):
    def value(depth=0):
        kind = chance.random()
        if kind < 0.4 or depth > 5:
            shape = tuple(chance.choice([0, 1, 7, 300]) for _ in range(chance.randint(0, 3)))
            content = chance.choice([np.nan, np.inf, 1, 1e300, 1j, True])
            return np.full(shape, content)
        if kind < 0.6:
            return {chance.choice("abc"): value(depth + 1)}
        return [value(depth + 1)] if kind < 0.8 else chance.choice([1.5, "x", None, text(chance, 1000)])

    one = value()
    same_evidence(one, value())
    if isinstance(one, np.ndarray):
        assert same_evidence(one, one.copy()) == (one.dtype.kind in "fciu")


def draws_a_ledger(chance):
    def message():
        numbers = [0, 1, 2, 3, -1, 10**30, -(10**400), 2**31]
        times = [0.0, 1.0, -1.0, 1e308, -1e308, 5e-324, 10**400]
        call = chance.choice(["send", "recv", "isend", "irecv", "barrier", "all_reduce", text(chance, 300)])
        return Message(
            chance.choice([0, 1]), call, chance.choice([None, *numbers]), chance.choice(numbers),
            chance.choice(times), chance.choice([None, *times]), file=text(chance, 200), line=chance.choice(numbers),
            posted=chance.choice(numbers), completed=chance.choice([None, *numbers]),
        )  # fmt: skip

    error = CheckFailed("the sum is wrong: got 3, expected 4")
    error.ledger = Ledger([message() for _ in range(chance.randint(1, 12))], 2)
    pictures.picture_of(error)


def makes_a_page(chance):
    role = {"grade": True, "solution": False, "points": 2, "score": 1.0, "grade_id": "07-ex2-square-test"}
    cells = [new_code_cell("assert x", id="07-ex2-square-test", metadata={"nbgrader": role})]
    cells += [new_markdown_cell(limits.well_formed(text(chance, 20_000)))]
    cells += [new_code_cell(limits.source(limits.well_formed(text(chance, 400_000))))]
    cells[-1].outputs = [nbformat.v4.new_output("stream", text=limits.well_formed(text(chance, 200_000)))]
    info = {"notebook": "07_toy", "student": "ada", "score": 1.0, "max_score": 2.0}
    page = feedback.bounded_page(new_notebook(cells=cells), info)
    assert "1 / 2" in page and "<script" not in page.lower().split("<main>")[1]


def writes_csv(chance):
    name = text(chance, 200).replace("\0", "")
    row = Row(name, "07_toy", "07-ex1", 1.0, 2.0, 1.0, None, False, None)
    table = csv_of([row])
    assert not limits.csv_cell(name).lstrip().startswith(("=", "+", "-", "@"))
    first = next(csv.reader(io.StringIO(table.split("\n", 1)[1], newline="")))[0]
    assert first == limits.csv_cell(name)


PLACES = [reads_the_wire, cuts_output, parses_source, compares_evidence, draws_a_ledger, makes_a_page, writes_csv]
each_place = pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)


def fuzz(place, seconds):
    """Send inputs to a place for so long. A failure says which seed repeats it."""
    given = os.environ.get("AUTOGRADER_FUZZ")
    end = time.monotonic() + seconds
    while True:
        seed = int(given) if given else secrets.randbits(32)
        began = time.process_time()
        try:
            place(random.Random(seed))
        except Exception as error:
            raise AssertionError(f"{place.__name__} fails with AUTOGRADER_FUZZ={seed}: {error!r}") from error
        took = time.process_time() - began
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        assert took < SECONDS, f"{place.__name__} takes {took:.0f} s with AUTOGRADER_FUZZ={seed}"
        assert memory < MEMORY, f"{place.__name__} takes {memory >> 20} MiB with AUTOGRADER_FUZZ={seed}"
        if given or time.monotonic() > end:
            return


@each_place
def test_no_input_stops_what_takes_it(place):
    fuzz(place, 1.0)


@pytest.mark.slow
@pytest.mark.thorough
@each_place
def test_no_input_stops_what_takes_it_in_a_minute(place):
    fuzz(place, 60.0)
