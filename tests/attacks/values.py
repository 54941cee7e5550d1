"""Answers that are no numbers: objects that agree with everything, change, explode, or never end."""

from __future__ import annotations

from tests.attacks.attack import SOLVE, WITHOUT_EX2, Attack, cells, code, square
from tests.attacks.lessons import ARRAYS


def _value(name: str, tries: str, source: str, **more) -> Attack:
    return Attack(name, tries, square(source), WITHOUT_EX2, **more)


def _array(name: str, tries: str, source: str, before: str = "import numpy as np") -> Attack:
    return Attack(name, tries, cells(before, code(source)), WITHOUT_EX2, lesson=ARRAYS)


LIAR = """
class Liar({base}):
    __hash__ = None
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __lt__(self, other): return True
    __le__ = __gt__ = __ge__ = __lt__
    def __sub__(self, other): return 0
    __rsub__ = __sub__
    def __bool__(self): return True
    def __index__(self): return 9
    def __int__(self): return 9
    def __float__(self): return 9.0

def square(x):
    return Liar({arguments})
"""

VALUES = [
    _value("equal-object", "An object that equals whatever it is compared with.", LIAR.format(base="", arguments="")),
    _value("equal-int", "An int whose operators lie.", LIAR.format(base="int", arguments="0")),
    _value("equal-float", "A float whose operators lie.", LIAR.format(base="float", arguments="0.0")),
    _value("equal-str", "A string that equals every number.", LIAR.format(base="str", arguments="'0'")),
    _value("equal-list", "A list that equals every number.", LIAR.format(base="list", arguments="[0]")),
    _value(
        "equal-by-class",
        "The lie is in a metaclass: what is returned is a class.",
        """
        class Meta(type):
            __hash__ = type.__hash__
            def __eq__(self, other): return True

        class Nine(metaclass=Meta):
            pass

        def square(x):
            return Nine
        """,
    ),
    _value(
        "learns-from-the-comparison",
        "An object that takes over the value it is compared with, and shows it from then on.",
        """
        class Lazy:
            value = 0
            def __eq__(self, other):
                self.value = other
                return self.value == other
            def __repr__(self): return repr(self.value)

        def square(x):
            return Lazy()
        """,
    ),
]

ARRAY_VALUES = [
    _array(
        "array-function",
        "An object that answers numpy's functions for itself, by `__array_function__`, and says it is an array.",
        """
        class Fake:
            shape, ndim, dtype = (7,), 1, np.dtype(float)
            __class__ = property(lambda self: np.ndarray)
            def __array_function__(self, function, types, args, kwargs): return True
            def __sub__(self, other): return np.zeros(7)

        def square(x):
            return Fake()
        """,
    ),
    _array(
        "array-ufunc",
        "An ndarray whose `__array_ufunc__` says that differences are zero and comparisons hold.",
        """
        class Close(np.ndarray):
            def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
                truth = ufunc in (np.less_equal, np.less, np.equal, np.isfinite)
                return np.ones(7, bool) if truth else np.zeros(7)

        def square(x):
            return np.zeros(7).view(Close)
        """,
    ),
    _array(
        "array-late",
        "A list that becomes an array only when it is looked at, made from its caller's variables.",
        """
        import sys

        class Late:
            __class__ = property(lambda self: np.ndarray)
            def __array__(self, dtype=None, copy=None):
                frame = sys._getframe(1)
                while frame and not isinstance(frame.f_locals.get("b"), np.ndarray):
                    frame = frame.f_back
                return frame.f_locals["b"].copy() if frame else np.zeros(7)
            def __sub__(self, other): return other - other

        def square(x):
            return Late()
        """,
    ),
    _array(
        "array-changes",
        "Returns an array and fills it, from the test's own variables, when the test calls `isinstance`.",
        """
        import builtins, sys
        real = builtins.isinstance

        def late(one, kinds):
            frame = sys._getframe(1)
            if frame.f_globals.get("got") is one and real(one, np.ndarray):
                one[...] = frame.f_globals["x"] ** 2
            return real(one, kinds)

        def square(x):
            builtins.isinstance = late
            return np.zeros(7)
        """,
    ),
    Attack(
        "tensor-torch-function",
        "A tensor subclass whose `__torch_function__` says that everything is equal.",
        lambda nb: _wrong_half(
            nb,
            """
            import torch

            class Agreeable(torch.Tensor):
                @classmethod
                def __torch_function__(cls, function, types, args=(), kwargs=None):
                    return True if function is torch.equal else torch.zeros(7)

            def half(x):
                return torch.zeros(7).as_subclass(Agreeable)
            """,
        ),
        {"ex1": 1.0, "ex2": 2.0, "ex3": 0.0},
        lesson=ARRAYS,
    ),
    Attack(
        "patched-torch-equal",
        "Replaces `torch.equal`.",
        lambda nb: _wrong_half(
            nb, "import torch\ntorch.equal = lambda a, b: True\n\ndef half(x):\n    return torch.zeros(7)"
        ),
        {"ex1": 1.0, "ex2": 2.0, "ex3": 0.0},
        lesson=ARRAYS,
    ),
    _array(
        "patched-numpy",
        "Replaces numpy's asserts and `allclose`, and Python's `max`, with ones that always pass.",
        "def square(x):\n    return np.zeros(7)",
        """
        import builtins
        import numpy as np

        np.allclose = lambda *args, **kwargs: True
        np.testing.assert_allclose = np.testing.assert_array_equal = lambda *args, **kwargs: None
        _max = builtins.max
        builtins.max = lambda *args, **kwargs: 0 if type(args[0]) is np.ndarray else _max(*args, **kwargs)
        """,
    ),
    _array(
        "patched-isinstance",
        "Replaces `isinstance` for one class of its own, which answers everything with yes.",
        """
        class Anything:
            def __sub__(self, other): return np.zeros(7)
            def __array_function__(self, function, types, args, kwargs): return True

        def square(x):
            return Anything()
        """,
        """
        import builtins
        import numpy as np

        _isinstance = builtins.isinstance
        builtins.isinstance = lambda one, kinds: type(one).__name__ == "Anything" or _isinstance(one, kinds)
        """,
    ),
]


def _wrong_half(nb, source: str) -> None:
    next(cell for cell in nb.cells if cell.id == "08-ex3-half").source = code(source)


WIRE = [
    _value(
        "pickle-bomb",
        "Returns an object that makes a file in whoever unpickles it.",
        """
        class Bomb:
            def __reduce__(self): return exec, ("open('@HOME@/pickled', 'w').close()",)

        def square(x):
            return Bomb()
        """,
        aims="wire",
    ),
    _value(
        "pickle-bomb-inside",
        "The bomb is in a list, a key, an attribute of a number and an exception's arguments.",
        """
        class Bomb(int):
            def __reduce__(self): return exec, ("open('@HOME@/pickled', 'w').close()",)

        def square(x):
            if x == 8:
                raise ValueError(Bomb(), [Bomb()])
            return Bomb(x * x) if x > 2 else [{Bomb(): [Bomb()]}]
        """,
        aims="wire",
    ),
    _value(
        "recursive-list",
        "A list that contains itself, in a dictionary that contains the list.",
        """
        def square(x):
            whole = []
            whole += [whole, {1: whole}, (whole,)]
            return whole
        """,
        aims="wire",
    ),
    _value(
        "deep-list",
        "A list in a list in a list, a hundred thousand deep.",
        """
        def square(x):
            whole = x * x
            for _ in range(100_000):
                whole = [whole]
            return whole
        """,
        aims="wire",
    ),
    _value(
        "wide-list",
        "A list that is small here and enormous once written out: the same million numbers a thousand times.",
        """
        def square(x):
            million = [x] * 1_000_000
            return [million] * 1000
        """,
        aims="wire",
    ),
    _value(
        "endless-generator",
        "A generator without end.",
        """
        import itertools

        def square(x):
            return itertools.count()
        """,
        aims="wire",
    ),
    _value(
        "endless-mapping",
        "A dictionary whose `items`, and a list whose iterator, never end.",
        """
        import itertools

        class Endless(dict):
            def items(self): return ((n, n) for n in itertools.count())
            __iter__ = keys = values = lambda self: itertools.count()
            def __len__(self): return 1

        class List(list):
            __iter__ = lambda self: itertools.count()

        def square(x):
            return Endless({1: 1}) if x % 2 else List([1])
        """,
        aims="wire",
    ),
    _value(
        "huge-number",
        "A whole number of ten million digits, which takes minutes to print.",
        """
        def square(x):
            return 1 << 33_000_000
        """,
        aims="wire",
    ),
    _value(
        "odd-values",
        "Strings with half characters, not-a-number, bytes, ellipsis, itself.",
        """
        def square(x):
            return {2: "\\ud800", 3: {float("nan"): b"\\0"}, 5: ..., 8: square}[x]
        """,
        aims="wire",
    ),
    _value(
        "object-arrays",
        "Arrays of objects, of dates, of bytes that unpickle, with a subclass and a shape that lies.",
        """
        import numpy as np

        class Odd(np.ndarray):
            shape = property(lambda self: (10**9, 10**9))
            def tobytes(self, *args): return b"x" * 10**6
            def __reduce__(self): return exec, ("open('@HOME@/pickled', 'w').close()",)

        def square(x):
            if x == 2:
                return np.zeros(3).view(Odd)
            return np.array([x * x, object(), square], dtype=object)
        """,
        aims="wire",
    ),
]

EXCEPTIONS = [
    _value("raises-system-exit", "Leaves by `SystemExit(0)`.", "def square(x):\n    raise SystemExit(0)"),
    _value(
        "raises-keyboard-interrupt",
        "Leaves by `KeyboardInterrupt`, as if somebody had pressed stop.",
        "def square(x):\n    raise KeyboardInterrupt",
    ),
    _value("raises-generator-exit", "Leaves by `GeneratorExit`.", "def square(x):\n    raise GeneratorExit"),
    _value(
        "raises-base-exception",
        "Leaves by an exception of its own that is not an `Exception`.",
        "class Passed(BaseException):\n    pass\n\ndef square(x):\n    raise Passed('6 of 6 points')",
    ),
    _value(
        "error-text-runs",
        "An exception whose text runs code: it reads the test from the frames of whoever prints it.",
        """
        class Talks(Exception):
            def __str__(self):
                open("@HOME@/talked", "w").close()
                return "said"
            __repr__ = __str__

        def square(x):
            raise Talks
        """,
        aims="harm",
    ),
    _value(
        "error-text-never-ends",
        "An exception whose text takes forever.",
        """
        class Slow(Exception):
            def __str__(self):
                while True:
                    pass
            __repr__ = __str__

        def square(x):
            raise Slow
        """,
        aims="harm",
    ),
    _value(
        "error-text-is-huge",
        "An exception with a text of 200 million characters, and a thousand causes.",
        """
        def square(x):
            error = ValueError("x" * 200_000_000)
            for _ in range(1000):
                error, error.__cause__ = ValueError("and"), error
            raise error
        """,
        aims="harm",
    ),
    _value(
        "error-without-frames",
        "An exception whose traceback is a loop of its own causes.",
        """
        def square(x):
            one, two = ValueError("one"), ValueError("two")
            one.__cause__, two.__cause__ = two, one
            raise one
        """,
        aims="harm",
    ),
    Attack(
        "answer-from-the-frames",
        "Looks up the stack for the test's source and computes what it compares with.",
        square(
            SOLVE
            + code(
                """
                import linecache, sys

                def square(x):
                    frame, text = sys._getframe(1), ""
                    while frame:
                        text += "".join(linecache.getlines(frame.f_code.co_filename))
                        frame = frame.f_back
                    return solve(text, x)
                """
            )
        ),
        WITHOUT_EX2,
    ),
]

ATTACKS = [*VALUES, *ARRAY_VALUES, *WIRE, *EXCEPTIONS]
