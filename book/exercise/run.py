"""Runs a reader's code and the visible tests; the page's worker runs this file first, in Python 3.8 or newer."""

import __future__

import contextlib
import io
import json
import traceback

CODE, TESTS = "your code", "the tests"
#: Characters that the page shows, and frames of an error.
SHOWN, FRAMES = 20_000, 8


class Screen(io.TextIOBase):
    """A stream that hands its text to the page at once, so that an endless loop's prints are seen."""

    def __init__(self, write):
        super().__init__()
        self.write_to_page, self.left = write, SHOWN

    def write(self, text):
        if self.left >= 0:
            self.write_to_page(text if len(text) <= self.left else text[: self.left] + "\n… and more\n")
            self.left -= len(text)
        return len(text)


def run(setup, code, tests, write):
    """Run three sources one after the other; as JSON, nothing if all went well, otherwise what an error says.

    headline: one line, for a test that failed its message alone. where: the lines of the reader and of the tests
    that led to the error, the innermost last.
    """
    names = {"__name__": "__main__"}
    sources = {"setup": setup, CODE: code, TESTS: tests}
    screen = Screen(write)
    with contextlib.redirect_stdout(screen), contextlib.redirect_stderr(screen):
        try:
            for name, source in sources.items():
                # Annotations are not evaluated: older Pythons do not know all that the cells have.
                flags = __future__.annotations.compiler_flag
                exec(compile(source, name, "exec", flags=flags, dont_inherit=True), names)
        except BaseException as error:  # SystemExit, too, must not end the worker
            return json.dumps({"headline": headline(error), "where": where(error, sources)})
    return json.dumps({})


def headline(error):
    """The last line of the notebook's traceback; of a failed test, its message without the word before it."""
    at = traceback.extract_tb(error.__traceback__)[-1:]
    if isinstance(error, AssertionError) and str(error) and at and at[0].filename == TESTS:
        return str(error)
    return traceback.format_exception_only(type(error), error)[-1].strip()


def where(error, sources):
    """One entry for each frame that lies in the reader's code or in the tests: the line's number and its text."""
    frames = [(f.filename, f.lineno, f.name) for f in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError):
        frames.append((error.filename, error.lineno, "<module>"))
    told = []
    for file, line, function in frames:
        if file in (CODE, TESTS) and line:
            inside = "" if function == "<module>" else f", in {function}"
            texts = sources[file].splitlines()
            text = texts[line - 1].strip() if line <= len(texts) else ""
            told.append(f"{file}, line {line}{inside}\n    {text}")
    if len(told) > FRAMES:
        told[FRAMES // 2 : -FRAMES // 2] = ["…"]
    return "\n".join(told)
