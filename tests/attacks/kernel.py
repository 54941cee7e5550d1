"""What code can do to the kernel that runs it: its transformers, hooks, messages, memory, frames and end."""

from __future__ import annotations

from functools import partial

from tests.attacks.attack import SOLVE, by_answer, written

#: Replies to the request that the kernel is working on, as the kernel itself would.
FORGE = """
import os, sys, time

def forge():
    frame = sys._getframe()
    while frame.f_code.co_name != "execute_request":
        frame = frame.f_back
    kernel, stream, ident, parent = (frame.f_locals[name] for name in ("self", "stream", "ident", "parent"))
    content = {"status": "ok", "execution_count": 1, "user_expressions": {}, "payload": []}
    kernel.session.send(stream, "execute_reply", content, parent, ident=ident)
    kernel.session.send(kernel.iopub_socket, "status", {"execution_state": "idle"}, parent=parent)
"""

ATTACKS = written(
    """
=== cell: ast-transformer
# Has IPython leave out every `assert`.
import ast

class NoAsserts(ast.NodeTransformer):
    def visit_Assert(self, node): return ast.copy_location(ast.Pass(), node)

get_ipython().ast_transformers.append(NoAsserts())
=== cell: input-transformer
# Has IPython rewrite every line that begins with `assert`.
def no_asserts(lines):
    return [line.replace("assert ", "0 and ") for line in lines]

get_ipython().input_transformers_post.append(no_asserts)
=== cell: compiler
# Replaces the compiler of cells by one that compiles nothing.
_parse = get_ipython().compile.ast_parse
get_ipython().compile.ast_parse = lambda text, *a, **k: _parse("" if "assert" in text else text, *a, **k)
=== cell: run-cell
# Replaces `run_cell` by one that runs no test and reports success.
shell = get_ipython()
_async = shell.run_cell_async

async def run_cell_async(source, *args, **kwargs):
    return await _async("" if "assert" in source else source, *args, **kwargs)

def run_cell(source, *args, **kwargs):
    return type(shell).run_cell(shell, "" if "assert" in source else source, *args, **kwargs)

shell.run_cell_async, shell.run_cell = run_cell_async, run_cell
=== cell: do-execute
# Replaces the kernel's `do_execute` by one that answers ok.
kernel = get_ipython().kernel
_do = kernel.do_execute

async def do_execute(code, *args, **kwargs):
    return await _do("pass" if "assert" in code else code, *args, **kwargs)

kernel.do_execute = do_execute
=== cell: silent-errors
# Has the kernel show no error and forget that there was one.
shell = get_ipython()
shell.showtraceback = lambda *args, **kwargs: None
shell.events.register("post_run_cell", lambda result: setattr(result, "error_in_exec", None))
shell.events.register("post_run_cell", lambda result: setattr(result, "error_before_exec", None))
=== cell: custom-exception-handler
# Handles every AssertionError itself, with `set_custom_exc`, and clears what was shown.
from IPython.display import clear_output
get_ipython().set_custom_exc((BaseException,), lambda *args, **kwargs: clear_output())
get_ipython().events.register("post_run_cell", lambda result: setattr(result, "error_in_exec", None))
=== cell: clears-the-error
# Lets the test fail and then has the error taken back, by a `clear_output` message after the cell.
from IPython.display import clear_output

def tidy(result):
    result.error_in_exec = None
    clear_output()

get_ipython().events.register("post_run_cell", tidy)
=== cell: excepthook
# Replaces `sys.excepthook`, the shell's error display and the traceback printer.
import sys, traceback
sys.excepthook = lambda *args: None
traceback.print_exception = traceback.format_exception = lambda *args, **kwargs: []
shell = get_ipython()
shell._showtraceback = shell.showsyntaxerror = shell.showtraceback = lambda *args, **kwargs: None
=== answer: display-hook
# Displays the number of points before the test fails: nbgrader takes a number for a partial grade.
import sys

def square(x):
    sys.displayhook(2)
    return 0
=== cell: display-at-each-cell
# Has the kernel display the full points at the beginning of each cell.
get_ipython().events.register("pre_run_cell", lambda info: get_ipython().displayhook(2))
=== forges: forged-reply
# Sends the client a reply of its own, over the kernel's sockets: ok, idle; then fails.
def square(x):
    forge()
    return 0
=== forges: forged-reply-then-ends
# Sends the reply of a cell that passed, waits until it has arrived, and ends the kernel.
def square(x):
    forge()
    time.sleep(1)
    os._exit(0)
=== answer: messages-that-are-none
# Sends the client messages that are broken: no content, wrong types, a wrong signature, a million of them.
def square(x):
    kernel = get_ipython().kernel
    parent = kernel.get_parent("shell")
    for content in ({}, {"name": 1, "text": None}, {"data": []}, {"execution_state": {}}, {"data": {"a": 1}}):
        for kind in ("stream", "status", "display_data", "error", "execute_input", "update_display_data", "?"):
            kernel.session.send(kernel.iopub_socket, kind, content, parent=parent)
    kernel.session.key = b"another"
    kernel.session.send(kernel.iopub_socket, "status", {"execution_state": "idle"}, parent=parent)
    return 0
=== reads: answer-from-the-history
# Reads the test's source from IPython's history.
def square(x):
    return solve(get_ipython().user_ns["_ih"][-1], x)
=== reads: answer-from-the-garbage-collector
# Looks through all objects in memory for the test's source.
import gc

def square(x):
    text = ""
    for one in gc.get_objects():
        held = list(one.values()) if type(one) is dict else one if type(one) in (list, tuple) else ()
        text += "".join(s for s in held if type(s) is str and "secret_inputs" in s)
    return solve(text, x)
=== reads: answer-from-the-message
# Reads the test's source from the request that the kernel is answering.
def square(x):
    return solve(get_ipython().kernel.get_parent("shell")["content"]["code"], x)
=== answer: moves-the-goal
# Changes the variable that the test computes its expectation from.
import sys

def square(x):
    sys._getframe(1).f_globals["x"] = 0
    return 0
=== cell: settrace
# Traces the test and changes its inputs line by line.
import sys

def trace(frame, event, argument):
    if "secret_inputs" in frame.f_code.co_names and "x" in frame.f_globals:
        frame.f_globals["x"] = 0
    return trace

sys.settrace(trace)
=== cell: setprofile
# Profiles all threads and changes the test's input when it calls.
import sys, threading

def profile(frame, event, argument):
    if event == "call" and frame.f_code.co_name == "square":
        frame.f_back.f_globals["x"] = 0

threading.setprofile(profile)
sys.setprofile(profile)
=== answer: wakes-under-the-grader
# Is a good answer at home; where `NBGRADER_EXECUTION` or a grader's module is found, it changes the test.
import os, sys

def square(x):
    if "NBGRADER_EXECUTION" in os.environ or any("grad" in name for name in sys.modules):
        sys._getframe(1).f_globals["x"] = 0
    return 0
=== answer: exit-in-the-function
# `os._exit(0)` in the function.
import os

def square(x):
    os._exit(0)
=== honest: exit-in-a-cell
# `os._exit(0)` in a cell of its own, between two exercises.
import os
os._exit(0)
=== cell: exit-at-exit
# Has the kernel, when it ends, wait forever, with `atexit`, and every signal ignored.
import atexit, signal, time

@atexit.register
def stay():
    for one in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(one, signal.SIG_IGN)
    while True:
        time.sleep(1)
=== answer: crash
# Reads address 0.
import ctypes

def square(x):
    ctypes.string_at(0)
=== answer: loop-in-the-function
# An endless loop that catches every exception and ignores every signal.
import signal

def square(x):
    for one in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(one, signal.SIG_IGN)
    while True:
        try:
            while True:
                pass
        except BaseException:
            pass
=== answer: loop-in-the-answer-cell
# The answer is wrong and the cell never ends: nbgrader interrupts it and goes on, as if nothing had been.
def square(x):
    return 0

while True:
    pass
=== answer: stops-itself
# Stops its own process with SIGSTOP, which no time-out inside it outlives.
import os, signal

def square(x):
    os.kill(os.getpid(), signal.SIGSTOP)
    return 0
=== answer: closes-everything
# Closes the file descriptors above 2: the kernel's own sockets.
import os

def square(x):
    os.closerange(3, 100_000)
    return 0
=== answer: writes-everywhere
# Writes garbage into every open file descriptor.
import os

def square(x):
    for fd in range(1000):
        try:
            os.set_blocking(fd, False)
            os.write(fd, b'{"status": "ok"}\\n\\x80\\x04N.' * 100)
        except OSError:
            pass
    return 0
=== answer: limits-itself
# Sets its own limits so low that nothing works any more.
import resource

def square(x):
    for kind in ("NOFILE", "FSIZE", "AS", "NPROC", "STACK", "CPU"):
        resource.setrlimit(getattr(resource, f"RLIMIT_{kind}"), (1, 1))
    return [bytearray(10**8) for _ in range(9)]
=== answer: leaves-the-room
# Changes folder, umask, search paths and environment for whatever is started next.
import os, sys

def square(x):
    os.chdir("/")
    os.umask(0o777)
    os.environ.clear()
    os.environ.update(PATH="", LD_PRELOAD="/nowhere.so", PYTHONSTARTUP="/nowhere.py", PYTHONHOME="/nowhere")
    sys.path.clear()
    sys.modules["json"] = sys.modules["pickle"] = sys.modules["struct"] = None
    return 0
""",
    forges=partial(by_answer, head=FORGE),
    reads=partial(by_answer, head=SOLVE),
)
