"""The `py-exercise` directive: an exercise of an assignment, solved and checked on the page.

    ```{py-exercise} 03_step/03-ex3-adam-update
    ```

The argument names a lesson and the cell of an answer. Everything comes from the *released* notebook, which holds
neither answers nor hidden tests: the exercise's title, the starting code, the cell `03-ex3-try-it` if there is one,
the visible tests, and the lines of the setup cells that these need. The tests may need no package but numpy, and no
other answer; otherwise, or if a cell is missing, there is a warning, which stops the build.

The page shows the starting code as a block, the tests folded, and links to the notebook. Where scripts run,
`book/exercise/exercise.js` makes an editor of the block. Python is Pyodide. It is loaded when the reader first runs
something, from where the setting `pyodide_url` in `_config.yml` says, or from next to the pages if the book was made
with `make book PYODIDE=FOLDER`. `pyodide_seconds` is the time that a run may take.
"""

from __future__ import annotations

import ast
import html
import json
import os
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
from docutils import nodes
from sphinx import addnodes
from sphinx.errors import ConfigError
from sphinx.util.docutils import SphinxDirective
from sphinx.util.fileutil import copy_asset
from sphinx.util.osutil import relative_uri

EXERCISE = Path(__file__).resolve().parent.parent / "exercise"
NOTEBOOKS = EXERCISE.parents[1] / "notebooks"
#: What a page holds as text: a page opened from disk may read no file next to it.
PROGRAMS = {"worker": EXERCISE / "worker.js", "program": EXERCISE / "run.py"}

#: What Pyodide brings beyond the standard library, as far as exercises may use it.
PACKAGES = {"numpy"}
#: The files of a Pyodide distribution that a page needs, whatever its version.
NEEDED = ("pyodide*.*js", "pyodide.asm.*", "pyodide-lock.json", "python_stdlib.zip", "packages.json", "numpy*")
LOCAL = "_static/pyodide/"

FOLD = '<details class="py-tests"><summary>The visible tests, which Check runs</summary>'


class Material(NamedTuple):
    """What a page gets of an exercise."""

    title: str
    start: str
    setup: str
    tests: str
    packages: list[str]


def material(path: Path, answer: str) -> Material:
    """An exercise of a released notebook; a ValueError says what is missing or cannot run in a browser."""
    cells = {cell.id: cell for cell in nbformat.read(path, as_version=4).cells}
    exercise = "-".join(answer.split("-")[:2])
    for name in (exercise, answer, f"{answer}-test"):
        if name not in cells:
            raise ValueError(f"{path.name} has no cell {name}")
    start = "\n\n\n".join(cells[name].source for name in (answer, f"{exercise}-try-it") if name in cells)
    tests = cells[f"{answer}-test"].source
    used = _used(ast.parse(start)) | _used(ast.parse(tests))
    others = [cell.source for name, cell in cells.items() if name != answer and _is_answer(cell)]
    if missing := used & set(_makers(ast.parse("\n".join(others)))):
        raise ValueError(f"{answer} needs {', '.join(sorted(missing))}, which another exercise has the reader write")
    given = [cell.source for cell in cells.values() if {"setup", "parameters"} & set(cell.metadata.get("tags", ()))]
    setup = _needed(ast.parse("\n".join(given)), used)
    packages = _packages("\n".join((setup, start, tests)))
    if strange := packages - PACKAGES:
        raise ValueError(f"{answer} needs {', '.join(sorted(strange))}: the page loads only numpy")
    heading = re.search(r"^#+ (.+)$", cells[exercise].source, re.MULTILINE)
    title = re.sub(r" \([\d.]+ points?\)|`", "", heading[1] if heading else exercise)
    return Material(title, start, setup, tests, sorted(packages))


def _is_answer(cell: Any) -> bool:
    return bool(cell.metadata.get("nbgrader", {}).get("solution"))


def _used(tree: ast.AST) -> set[str]:
    """The names that code reads."""
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def _makers(module: ast.Module) -> dict[str, ast.stmt]:
    """The names that a module makes → the statement that makes each."""
    makers: dict[str, ast.stmt] = {}
    for statement in module.body:
        match statement:
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                made = [alias.asname or alias.name.partition(".")[0] for alias in names]
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                made = [name]
            case _:
                nodes = (node for node in ast.walk(statement) if isinstance(node, ast.Name))
                made = [node.id for node in nodes if isinstance(node.ctx, ast.Store)]
        makers |= dict.fromkeys(made, statement)
    return makers


def _needed(given: ast.Module, used: set[str]) -> str:
    """The statements of `given` that make the names `used`, and those that these need, in their order."""
    makers, kept, todo = _makers(given), [], list(used)
    while todo:
        statement = makers.get(todo.pop())
        if statement is not None and statement not in kept:
            kept.append(statement)
            todo += _used(statement)
    return "\n".join(ast.unparse(statement) for statement in given.body if statement in kept)


def _packages(source: str) -> set[str]:
    """The packages that code imports, without the standard library's."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found - sys.stdlib_module_names


class py_exercise(nodes.General, nodes.Element):  # noqa: N801 (docutils names its nodes so)
    """An exercise. Attributes: name, the answer's cell; title."""


class PyExercise(SphinxDirective):
    """See the module's docstring."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """The links to the notebook, the starting code, the tests and the data, in one node."""
        lesson, _, answer = self.arguments[0].partition("/")
        path = NOTEBOOKS / lesson / f"{lesson}.ipynb"
        try:
            found = material(path, answer)
        except (OSError, SyntaxError, ValueError) as error:
            return [self.state_machine.reporter.warning(f"py-exercise {self.arguments[0]}: {error}", line=self.lineno)]
        self.env.note_dependency(str(path))
        for file in PROGRAMS.values():
            self.env.note_dependency(str(file))
        node = py_exercise(name=answer, title=found.title)
        node += [
            self._links(lesson, found.title),
            nodes.container("", _code(found.start), classes=["py-start"]),
            nodes.raw("", FOLD, format="html"),
            _code(found.tests),
            nodes.raw("", f"</details>\n{_data(answer, found)}", format="html"),
        ]
        return [node]

    def _links(self, lesson: str, title: str) -> nodes.paragraph:
        """Where the exercise is from: its page and its file."""
        target = f"/notebooks/{lesson}/{lesson}"
        common = {"refdoc": self.env.docname, "refwarn": True}
        page = addnodes.pending_xref(
            "",
            nodes.inline("", "the assignment"),
            reftarget=target,
            refdomain="std",
            reftype="doc",
            refexplicit=True,
            **common,
        )
        file = addnodes.download_reference(
            "",
            "",
            nodes.inline("", "download the notebook"),
            reftarget=f"{target}.ipynb",
            refdomain="",
            reftype="download",
            refexplicit=False,
            **common,
        )
        texts = [nodes.strong("", title), nodes.Text(" (from "), page, nodes.Text("; "), file, nodes.Text(")")]
        return nodes.paragraph("", "", *texts, classes=["py-from"])


def _code(text: str) -> nodes.literal_block:
    return nodes.literal_block(text, text, language="python")


def _data(name: str, found: Material) -> str:
    """What `exercise.js` reads, as a script element that is not run."""
    programs = {key: path.read_text(encoding="utf-8") for key, path in PROGRAMS.items()}
    text = json.dumps({"name": name, **found._asdict(), **programs}, ensure_ascii=False).replace("<", "\\u003c")
    return f'<script type="application/json" class="py-data">{text}</script>'


def _visit(self: Any, node: py_exercise) -> None:
    config = self.builder.config
    url = config.pyodide_url.rstrip("/") + "/"
    if "://" not in url:
        url = relative_uri(self.builder.get_target_uri(self.builder.current_docname), url)
    attributes = {
        "class": "py-exercise",
        "role": "group",
        "aria-label": node["title"],
        "data-pyodide": url,
        "data-seconds": str(config.pyodide_seconds),
    }
    written = " ".join(f'{key}="{html.escape(value)}"' for key, value in attributes.items())
    self.body.append(f"<div {written}>\n")


def _depart(self: Any, node: py_exercise) -> None:
    self.body.append("</div>\n")


def _choose(app: Any, config: Any) -> None:
    """`make book PYODIDE=FOLDER` puts a Pyodide next to the pages."""
    folder = os.environ.get("PYODIDE")
    if folder:
        check_pyodide(Path(folder))
        config.pyodide_url = LOCAL


def check_pyodide(folder: Path) -> None:
    """A ConfigError unless a folder holds a Pyodide with numpy."""
    for pattern in ("pyodide.js", "numpy*"):
        if not list(folder.glob(pattern)):
            problem = f"PYODIDE={folder}: there is no {pattern} in it; name the folder of a full Pyodide distribution"
            raise ConfigError(problem)


def _copy(app: Any) -> None:
    """The scripts go next to the pages, and so does the chosen Pyodide: those of its files that a page needs."""
    if app.builder.format != "html":
        return
    static = Path(app.outdir, "_static")
    wanted = ("exercise.css", "exercise.js", "vendor", "codemirror.js", "LICENSE*")
    copy_asset(EXERCISE, static / "exercise", excluded=lambda path: not _named(path, wanted))
    if app.config.pyodide_url == LOCAL:
        copy_asset(os.environ["PYODIDE"], Path(app.outdir, LOCAL), excluded=lambda path: not _named(path, NEEDED))


def _named(path: str, patterns: tuple[str, ...]) -> bool:
    return any(Path(path).match(pattern) for pattern in patterns)


def _load(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Give a page with an exercise the scripts for it."""
    if '<div class="py-exercise"' in (context.get("body") or ""):
        app.add_css_file("exercise/exercise.css")
        for script in ("vendor/codemirror.js", "exercise.js"):
            app.add_js_file(f"exercise/{script}", loading_method="defer")


def setup(app: Any) -> dict[str, Any]:
    """Register the directive, its settings, and what puts its scripts into pages."""
    app.add_config_value("pyodide_url", "", "html", str)
    app.add_config_value("pyodide_seconds", 5, "html", int)
    app.add_node(py_exercise, html=(_visit, _depart))
    app.add_directive("py-exercise", PyExercise)
    app.connect("config-inited", _choose)
    app.connect("builder-inited", _copy)
    app.connect("html-page-context", _load)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
