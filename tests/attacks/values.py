"""Answers that are no numbers: objects that agree with everything, change, explode, or never end."""

from __future__ import annotations

from functools import partial

from tests.attacks.attack import SOLVE, Attack, by_answer, with_answers, written
from tests.attacks.lessons import ARRAYS


def _liar(name: str, tries: str, source: str) -> Attack:
    """An answer that is a `Liar`, a subclass; `source` is what its base would be made by."""
    base, arguments = source.removesuffix(")").split("(")
    return by_answer(name, tries, LIAR.format(base=base, arguments=arguments))


def _array(name: str, tries: str, source: str) -> Attack:
    answer, _, before = source.partition("\n--- before\n")
    return Attack(name, tries, with_answers(before or "import numpy as np", ex2=answer), lesson=ARRAYS)


def _half(name: str, tries: str, source: str) -> Attack:
    return Attack(name, tries, with_answers(ex3=source), {"ex1": 1.0, "ex2": 2.0, "ex3": 0.0}, lesson=ARRAYS)


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

ATTACKS = written(
    """
=== liar: equal-object
# An object that equals whatever it is compared with.
()
=== liar: equal-int
# An int whose operators lie.
int(0)
=== liar: equal-float
# A float whose operators lie.
float(0.0)
=== liar: equal-str
# A string that equals every number.
str('0')
=== liar: equal-list
# A list that equals every number.
list([0])
=== answer: equal-by-class
# The lie is in a metaclass: what is returned is a class.
class Meta(type):
    __hash__ = type.__hash__
    def __eq__(self, other): return True

class Nine(metaclass=Meta):
    pass

def square(x):
    return Nine
=== answer: learns-from-the-comparison
# An object that takes over the value it is compared with, and shows it from then on.
class Lazy:
    value = 0
    def __eq__(self, other):
        self.value = other
        return self.value == other
    def __repr__(self): return repr(self.value)

def square(x):
    return Lazy()
=== array: array-function
# An object that answers numpy's functions for itself, by `__array_function__`, and says it is an array.
class Fake:
    shape, ndim, dtype = (7,), 1, np.dtype(float)
    __class__ = property(lambda self: np.ndarray)
    def __array_function__(self, function, types, args, kwargs): return True
    def __sub__(self, other): return np.zeros(7)

def square(x):
    return Fake()
=== array: array-ufunc
# An ndarray whose `__array_ufunc__` says that differences are zero and comparisons hold.
class Close(np.ndarray):
    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        truth = ufunc in (np.less_equal, np.less, np.equal, np.isfinite)
        return np.ones(7, bool) if truth else np.zeros(7)

def square(x):
    return np.zeros(7).view(Close)
=== array: array-late
# A list that becomes an array only when it is looked at, made from its caller's variables.
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
=== array: array-changes
# Returns an array and fills it, from the test's own variables, when the test calls `isinstance`.
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
=== half: tensor-torch-function
# A tensor subclass whose `__torch_function__` says that everything is equal.
import torch

class Agreeable(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return True if function is torch.equal else torch.zeros(7)

def half(x):
    return torch.zeros(7).as_subclass(Agreeable)
=== half: patched-torch-equal
# Replaces `torch.equal`.
import torch
torch.equal = lambda a, b: True

def half(x):
    return torch.zeros(7)
=== array: patched-numpy
# Replaces numpy's asserts and `allclose`, and Python's `max`, with ones that always pass.
def square(x):
    return np.zeros(7)
--- before
import builtins
import numpy as np

np.allclose = lambda *args, **kwargs: True
np.testing.assert_allclose = np.testing.assert_array_equal = lambda *args, **kwargs: None
_max = builtins.max
builtins.max = lambda *args, **kwargs: 0 if type(args[0]) is np.ndarray else _max(*args, **kwargs)
=== array: patched-isinstance
# Replaces `isinstance` for one class of its own, which answers everything with yes.
class Anything:
    def __sub__(self, other): return np.zeros(7)
    def __array_function__(self, function, types, args, kwargs): return True

def square(x):
    return Anything()
--- before
import builtins
import numpy as np

_isinstance = builtins.isinstance
builtins.isinstance = lambda one, kinds: type(one).__name__ == "Anything" or _isinstance(one, kinds)
=== answer: pickle-bomb
# Returns an object that makes a file in whoever unpickles it.
class Bomb:
    def __reduce__(self): return exec, ("open('@HOME@/pickled', 'w').close()",)

def square(x):
    return Bomb()
=== answer: pickle-bomb-inside
# The bomb is in a list, a key, an attribute of a number and an exception's arguments.
class Bomb(int):
    def __reduce__(self): return exec, ("open('@HOME@/pickled', 'w').close()",)

def square(x):
    if x == 8:
        raise ValueError(Bomb(), [Bomb()])
    return Bomb(x * x) if x > 2 else [{Bomb(): [Bomb()]}]
=== answer: recursive-list
# A list that contains itself, in a dictionary that contains the list.
def square(x):
    whole = []
    whole += [whole, {1: whole}, (whole,)]
    return whole
=== answer: deep-list
# A list in a list in a list, a hundred thousand deep.
def square(x):
    whole = x * x
    for _ in range(100_000):
        whole = [whole]
    return whole
=== answer: wide-list
# A list that is small here and enormous once written out: the same million numbers a thousand times.
def square(x):
    million = [x] * 1_000_000
    return [million] * 1000
=== answer: endless-generator
# A generator without end.
import itertools

def square(x):
    return itertools.count()
=== answer: endless-mapping
# A dictionary whose `items`, and a list whose iterator, never end.
import itertools

class Endless(dict):
    def items(self): return ((n, n) for n in itertools.count())
    __iter__ = keys = values = lambda self: itertools.count()
    def __len__(self): return 1

class List(list):
    __iter__ = lambda self: itertools.count()

def square(x):
    return Endless({1: 1}) if x % 2 else List([1])
=== answer: huge-number
# A whole number of ten million digits, which takes minutes to print.
def square(x):
    return 1 << 33_000_000
=== answer: odd-values
# Strings with half characters, not-a-number, bytes, ellipsis, itself.
def square(x):
    return {2: "\\ud800", 3: {float("nan"): b"\\0"}, 5: ..., 8: square}[x]
=== answer: object-arrays
# Arrays of objects, of dates, of bytes that unpickle, with a subclass and a shape that lies.
import numpy as np

class Odd(np.ndarray):
    shape = property(lambda self: (10**9, 10**9))
    def tobytes(self, *args): return b"x" * 10**6
    def __reduce__(self): return exec, ("open('@HOME@/pickled', 'w').close()",)

def square(x):
    if x == 2:
        return np.zeros(3).view(Odd)
    return np.array([x * x, object(), square], dtype=object)
=== answer: raises-system-exit
# Leaves by `SystemExit(0)`.
def square(x):
    raise SystemExit(0)
=== answer: raises-keyboard-interrupt
# Leaves by `KeyboardInterrupt`, as if somebody had pressed stop.
def square(x):
    raise KeyboardInterrupt
=== answer: raises-generator-exit
# Leaves by `GeneratorExit`.
def square(x):
    raise GeneratorExit
=== answer: raises-base-exception
# Leaves by an exception of its own that is not an `Exception`.
class Passed(BaseException):
    pass

def square(x):
    raise Passed('6 of 6 points')
=== answer: error-text-runs
# An exception whose text runs code: it reads the test from the frames of whoever prints it.
class Talks(Exception):
    def __str__(self):
        open("@HOME@/talked", "w").close()
        return "said"
    __repr__ = __str__

def square(x):
    raise Talks
=== answer: error-text-never-ends
# An exception whose text takes forever.
class Slow(Exception):
    def __str__(self):
        while True:
            pass
    __repr__ = __str__

def square(x):
    raise Slow
=== answer: error-text-is-huge
# An exception with a text of 200 million characters, and a thousand causes.
def square(x):
    error = ValueError("x" * 200_000_000)
    for _ in range(1000):
        error, error.__cause__ = ValueError("and"), error
    raise error
=== answer: error-without-frames
# An exception whose traceback is a loop of its own causes.
def square(x):
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    raise one
=== reads: answer-from-the-frames
# Looks up the stack for the test's source and computes what it compares with.
import linecache, sys

def square(x):
    frame, text = sys._getframe(1), ""
    while frame:
        text += "".join(linecache.getlines(frame.f_code.co_filename))
        frame = frame.f_back
    return solve(text, x)
""",
    liar=_liar,
    array=_array,
    half=_half,
    reads=partial(by_answer, head=SOLVE),
)
