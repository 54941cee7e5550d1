"""Attacks on grading in two halves itself: on what carries a submission's answers out of its jail, and on the jail.

They name the inner half's own modules, as an attacker would who has read them.
"""

from __future__ import annotations

from functools import partial

from tests.attacks.attack import FULL, Attack, by_answer, code, with_answers, written
from tests.attacks.lessons import ARRAYS, RING
from tests.attacks.notebook import SCRIPT, page_is_harmless
from tests.helpers.toy_course import WRONG_SQUARE

#: Begins an answer that speaks over the inner half's connection, `line`, with the modules `inside` and `wire`.
TALKS = """
import os, struct, time
from jail import inside, wire
line = inside.current.connection
"""


def double(name: str, tries: str, source: str) -> Attack:
    """An attack by the answer to `double` for arrays."""
    return Attack(name, tries, with_answers(ex1=source), FULL | {"ex1": 0.0}, lesson=ARRAYS)


def _shows(name: str, tries: str, source: str) -> Attack:
    source = source.replace("SCRIPT", repr(SCRIPT))
    return by_answer(name, tries, source, WRONG_SQUARE + code(TALKS), after=page_is_harmless)


def _runs(name: str, tries: str, source: str) -> Attack:
    """A broadcast that does nothing, and a cell that makes up what is reported of it."""
    make = with_answers(source, ex1="def broadcast(tensor, src):\n    pass\n")
    return Attack(name, tries, make, {"ex1": 0.0, "ex3": 3.0}, lesson=RING)


ATTACKS = written(
    """
=== answer: settings-of-the-system
# Opens the system's settings under `/proc` for writing, as root could; with them one runs programs outside.
import os

def writable():
    found = []
    for name in ("sys/kernel/core_pattern", "sys/vm/drop_caches", "sys/kernel/panic", "sysrq-trigger",
                 "irq/default_smp_affinity", "sys/kernel/modprobe"):
        try:
            os.close(os.open(f"/proc/{name}", os.O_WRONLY))
            found.append(name)
        except OSError:
            pass
    return found

def square(x):
    return x * x if writable() else 0
=== wrong: printing-cell
# A cell that prints forever: as long as output comes, no time-out expires.
while True:
    print('x' * 10_000)
=== talks: drips
# Announces a message of 100 MB and sends a byte of it now and then, each of which starts the time-out anew.
line.sendall(struct.pack("!QI", 10**8, 10))
while True:
    line.sendall(b" ")
    time.sleep(0.3)
=== talks: outputs-that-are-none
# Sends outputs with tensors for texts, trees for numbers, numbers for names.
import torch
odd = [torch.zeros(3), [1, [2]], {"a": {"b": 1}}, None, 10**30, "\\ud800", b"\\0", float("nan"), object()]
for kind in ("stream", "execute_result", "display_data", "error", "clear_output", "update_display_data"):
    for one in odd:
        for key in ("name", "text", "data", "execution_count", "wait", "transient", "traceback", "ename"):
            content = {"name": "stdout", "text": "t", "data": {"text/plain": "p"}, "execution_count": 1}
            wire.send(line, {"output": kind, "content": {**content, key: one}}, lambda value: 1)
=== talks: numbers-of-outputs
# Sends outputs that no notebook file can hold: with a tree in place of their number, with keys of numbers.
for number in ({"a": [1]}, "one", -5, 1.5, 10**30):
    content = {"data": {"text/plain": "p"}, "execution_count": number, "metadata": {1: 2}}
    wire.send(line, {"output": "execute_result", "content": content})
=== talks: no-message
# Sends bytes that are no message at all.
line.sendall(os.urandom(1000) + b"\\xff" * 100)
=== talks: wide-message
# Sends a message of sixty megabytes of nothing but brackets.
tree = b"[" + b"[]," * 20_000_000 + b"[]]"
line.sendall(struct.pack("!QI", len(tree), len(tree)) + tree)
=== talks: descriptions-that-are-none
# Describes its errors by numbers where there should be lists, and by tensors where there should be texts.
import torch
odd = {"name": [1], "text": torch.zeros(3), "frames": 5, "kin": {}, "ranks": 7}
inside.describe = lambda *args: odd
raise ValueError
=== talks: replies-that-are-none
# Replies to each request for a cell with tensors and trees.
import torch

def do_cell(self, source, _real=inside.Kernel.do_cell):
    _real(self, source)
    return {"raised": torch.zeros(2), "count": {}, "traceback": 1}

inside.Kernel.do_cell = do_cell
=== shows: script-in-frames
# Describes an error whose frames, name and text are scripts.
script = SCRIPT
said = {"name": script, "text": script, "frames": [script] * 3, "kin": "ValueError"}
inside.describe = lambda *args: said
print(script)

def square(x):
    raise ValueError(script)
=== double: range-bomb
# Returns a range, which is small, of so many numbers that a comparison with it takes all memory.
def double(x):
    return range(60_000_000)
=== double: huge-array
# Returns 400 MB.
import numpy as np

def double(x):
    return np.zeros(50_000_000)
=== double: arguments-changed
# Changes the arrays that it was called with, and returns them: the test would compare them with themselves.
def double(x):
    x[...] = 0
    return x
=== answer: stop-iteration
# Leaves by `StopIteration`, which ends the loop of whoever called it in one.
def square(x):
    raise StopIteration
=== cell: names-of-ours
# Defines names that grade cells use: `range`, `isinstance`, `secret_inputs`, `AssertionError`, `x`.
range = isinstance = len = max = abs = lambda *args: True
secret_inputs, x = [], 0
AssertionError = type("AssertionError", (BaseException,), {})
=== runs: forged-runs
# Does nothing on the ranks, and makes up the results and the ledger in the process that reports them.
import io
from jail import inside
from ranks.ledger import Message

run = inside.Kernel.do_run

def forged(self, payload, options, folder, files):
    worker, args = inside._Unpacker(io.BytesIO(payload)).load()
    n, messages = options["world_size"], []
    if worker.__name__ == "trial" and len(args) == 1 and args[0] < n and "src" in worker.__code__.co_varnames:
        values = [[[0.0, 2.0], [1.0, 3.0]]] * n
    elif worker.__name__ == "_drive" and args[1][0].extra and args[1][0].extra[0] is not None and is_mine(args[0]):
        cases, outcome = args[1], worker.__globals__["Outcome"]
        values = []
        for rank in range(n):
            mine = []
            for case in cases:
                src = case.extra[0]
                wrong = not 0 <= src < n
                after = case.inputs[rank if wrong else src]
                after = after.T if case.layout == "transposed" else after
                mine.append(outcome(None, after, True, ("ValueError", "src is no rank") if wrong else None))
            values.append(mine)
        for rank in range(n):
            for place in range(len(cases) + 1):
                messages.append(Message(rank, "barrier", None, 0, 0.0, 0.0, posted=place, completed=place))
    else:
        return run(self, payload, options, folder, files)
    return {"values": values, "stdout": [""] * n, "messages": messages, "spans": [], "loopback": 0, "files": None}

def is_mine(function):
    return function is broadcast

inside.Kernel.do_run = forged
""",
    wrong=partial(by_answer, head=WRONG_SQUARE),
    talks=partial(by_answer, head=WRONG_SQUARE + code(TALKS)),
    shows=_shows,
    double=double,
    runs=_runs,
)
