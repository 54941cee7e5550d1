"""Attacks on grading in two halves itself: on what carries a submission's answers out of its jail, and on the jail.

Stock nbgrader has neither, so nothing comes of these there. They name the inner half's own modules, as an attacker
would who has read them.
"""

from __future__ import annotations

from nbformat.v4 import new_code_cell

from tests.attacks.attack import WITHOUT_EX2, Attack, cells, code, set_answer, square
from tests.attacks.lessons import ARRAYS, RING
from tests.attacks.notebook import SCRIPT, page_is_harmless

WRONG = "def square(x):\n    return 0\n"


def _wire(name: str, tries: str, make, worth: dict | None = None, **more) -> Attack:
    return Attack(name, tries, make, worth or WITHOUT_EX2, aims="wire", **more)


def _talks(name: str, tries: str, source: str, **more) -> Attack:
    """An answer cell that speaks over the inner half's connection, `line`, with the modules `inside` and `wire`."""
    head = """
    import os, socket, struct, time
    try:
        from jail import inside, wire
        line = inside.current.connection
    except ImportError:
        from types import SimpleNamespace
        inside, wire, line = SimpleNamespace(), SimpleNamespace(send=lambda *args: None), socket.socketpair()[0]
    """
    return _wire(name, tries, square(WRONG + code(head) + code(source)), **more)


#: Results and a ledger of `ranks.run`, made up by the process that should have measured them.
FORGED_RUNS = """
try:
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
except ImportError:
    pass
"""


def _forged_runs(nb):
    set_answer(nb, "ex1", "def broadcast(tensor, src):\n    pass\n")
    nb.cells.insert(2, new_code_cell(code(FORGED_RUNS), id="mine"))


def _double(source: str):
    def make(nb):
        set_answer(nb, "ex1", source)

    return make


ATTACKS = [
    _wire(
        "settings-of-the-system",
        "Opens the system's settings under `/proc` for writing, as root could; with them one runs programs outside.",
        square(
            """
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
            """
        ),
    ),
    _wire(
        "printing-cell",
        "A cell that prints forever: as long as output comes, no time-out expires.",
        square(WRONG + "\nwhile True:\n    print('x' * 10_000)"),
    ),
    _talks(
        "drips",
        "Announces a message of 100 MB and sends a byte of it now and then, each of which starts the time-out anew.",
        """
        line.sendall(struct.pack("!QI", 10**8, 10))
        while True:
            line.sendall(b" ")
            time.sleep(0.3)
        """,
    ),
    _talks(
        "outputs-that-are-none",
        "Sends outputs with tensors for texts, trees for numbers, numbers for names.",
        """
        import torch
        odd = [torch.zeros(3), [1, [2]], {"a": {"b": 1}}, None, 10**30, "\\ud800", b"\\0", float("nan"), object()]
        for kind in ("stream", "execute_result", "display_data", "error", "clear_output", "update_display_data"):
            for one in odd:
                for key in ("name", "text", "data", "execution_count", "wait", "transient", "traceback", "ename"):
                    content = {"name": "stdout", "text": "t", "data": {"text/plain": "p"}, "execution_count": 1}
                    wire.send(line, {"output": kind, "content": {**content, key: one}}, lambda value: 1)
        """,
    ),
    _talks(
        "numbers-of-outputs",
        "Sends outputs that no notebook file can hold: with a tree in place of their number, with keys of numbers.",
        """
        for number in ({"a": [1]}, "one", -5, 1.5, 10**30):
            content = {"data": {"text/plain": "p"}, "execution_count": number, "metadata": {1: 2}}
            wire.send(line, {"output": "execute_result", "content": content})
        """,
    ),
    _talks(
        "no-message",
        "Sends bytes that are no message at all.",
        'line.sendall(os.urandom(1000) + b"\\xff" * 100)',
    ),
    _talks(
        "wide-message",
        "Sends a message of sixty megabytes of nothing but brackets.",
        """
        tree = b"[" + b"[]," * 20_000_000 + b"[]]"
        line.sendall(struct.pack("!QI", len(tree), len(tree)) + tree)
        """,
    ),
    _talks(
        "descriptions-that-are-none",
        "Describes its errors by numbers where there should be lists, and by tensors where there should be texts.",
        """
        import torch
        odd = {"name": [1], "text": torch.zeros(3), "frames": 5, "kin": {}, "ranks": 7}
        inside.describe = lambda *args: odd
        raise ValueError
        """,
    ),
    _talks(
        "replies-that-are-none",
        "Replies to each request for a cell with tensors and trees.",
        """
        import torch

        def do_cell(self, source, _real=getattr(getattr(inside, "Kernel", None), "do_cell", None)):
            _real(self, source)
            return {"raised": torch.zeros(2), "count": {}, "traceback": 1}

        getattr(inside, "Kernel", inside).do_cell = do_cell
        """,
    ),
    _talks(
        "script-in-frames",
        "Describes an error whose frames, name and text are scripts.",
        f"""
        script = {SCRIPT!r}
        said = {{"name": script, "text": script, "frames": [script] * 3, "kin": "ValueError"}}
        inside.describe = lambda *args: said
        print(script)

        def square(x):
            raise ValueError(script)
        """,
        after=page_is_harmless,
    ),
    _wire(
        "range-bomb",
        "Returns a range, which is small, of so many numbers that a comparison with it takes all memory.",
        _double("def double(x):\n    return range(60_000_000)"),
        {"ex1": 0.0, "ex2": 2.0, "ex3": 3.0},
        lesson=ARRAYS,
    ),
    _wire(
        "huge-array",
        "Returns 400 MB.",
        _double("import numpy as np\n\ndef double(x):\n    return np.zeros(50_000_000)"),
        {"ex1": 0.0, "ex2": 2.0, "ex3": 3.0},
        lesson=ARRAYS,
    ),
    _wire(
        "arguments-changed",
        "Changes the arrays that it was called with, and returns them: the test would compare them with themselves.",
        _double("def double(x):\n    x[...] = 0\n    return x"),
        {"ex1": 0.0, "ex2": 2.0, "ex3": 3.0},
        lesson=ARRAYS,
    ),
    _wire(
        "stop-iteration",
        "Leaves by `StopIteration`, which ends the loop of whoever called it in one.",
        square("def square(x):\n    raise StopIteration"),
    ),
    _wire(
        "names-of-ours",
        "Defines names that grade cells use: `range`, `isinstance`, `secret_inputs`, `AssertionError`, `x`.",
        cells(
            """
            range = isinstance = len = max = abs = lambda *args: True
            secret_inputs, x = [], 0
            AssertionError = type("AssertionError", (BaseException,), {})
            """
        ),
    ),
    _wire(
        "forged-runs",
        "Does nothing on the ranks, and makes up the results and the ledger in the process that reports them.",
        _forged_runs,
        {"ex1": 0.0, "ex3": 3.0},
        lesson=RING,
    ),
]
