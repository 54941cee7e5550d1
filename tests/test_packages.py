"""Who may import whom, beyond what import-linter says (`make check`); lazy imports included."""

from __future__ import annotations

import ast
import graphlib
import re
from collections.abc import Collection
from pathlib import Path

import pytest

from autograder.grade import jail
from autograder.lesson import notebook

ROOT = Path(__file__).resolve().parent.parent


def imported_by(source: str) -> set[str]:
    """All modules that a source imports, lazily or not, and the names that it takes from packages.

    A relative import stays in its package, which a dot stands for here.
    """
    nodes = list(ast.walk(ast.parse(source)))
    found = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    taken = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    assert all(node.level < 2 for node in taken), "two dots may lead anywhere"
    parts = [(".", node) if node.level else (f"{node.module}.", node) for node in taken]
    return found | {f"{start}{alias.name}" for start, node in parts for alias in node.names}


def strange_imports(source: str) -> list[str]:
    """What a lesson's code may not import: another lesson's checks, and what grades."""
    own = r"autograder\.(checks\.(?!find|module|try_exercise)\w+|answers|lesson)(\.|$)"
    return sorted(one for one in imported_by(source) if one.startswith("autograder") and not re.match(own, one))


@pytest.mark.parametrize("lesson", notebook.lessons())
def test_no_lesson_imports_another_or_what_grades(lesson):
    for path in (notebook.SOLUTIONS / lesson).rglob("*.py"):
        assert not strange_imports(path.read_text()), path


@pytest.mark.parametrize(
    "line",
    [
        "from autograder.checks import module",
        "import autograder.checks",
        "from autograder.grade import course",
        "from autograder import audit",
    ],
)
def test_such_an_import_is_found(line):
    good = "from . import flat\nfrom .gradient import mean\nfrom autograder.checks.check import check\n"
    assert strange_imports(good) == []
    assert len(strange_imports(f"{good}\ndef lazy():\n    {line}\n")) == 1


#: What the book may import of this repository: its extensions only what reads lessons; its pages and figures also the
#: known answers, as texts, and what a lesson's checks watch and write with. Never what grades.
READS, SHOWS = ("ranks", "autograder.lesson"), ("autograder.answers", "autograder.checks")


def sources_of_the_book(book: Path) -> dict[Path, str]:
    """Each page, figure and extension of the book → its Python."""
    options = r"(?:---\n.*?^---\n|(?::[^\n]*\n)*)"
    cells = re.compile(rf"^```\{{code-cell\}}[^\n]*\n{options}(.*?)^```", re.MULTILINE | re.DOTALL)
    pages = {path: "\n".join(cells.findall(path.read_text(encoding="utf-8"))) for path in book.rglob("*.md")}
    return {**pages, **{path: path.read_text(encoding="utf-8") for path in book.rglob("*.py")}}


def beyond(sources: dict[Path, str], extensions: Path) -> list[str]:
    """What these import of this repository beyond what they may."""
    found = []
    for path, source in sources.items():
        allowed = READS if path.parent == extensions else (*READS, *SHOWS)
        names = {name for name in imported_by(source) if name.split(".")[0] in ("ranks", "autograder")}
        strange = sorted(name for name in names if not name.startswith(allowed))
        found += [f"{path.name} imports {name}" for name in strange]
    return found


def test_the_book_does_not_import_the_grader():
    sources = sources_of_the_book(ROOT / "book")
    assert sum("autograder.lesson" in source for source in sources.values()) > 25
    assert not beyond(sources, ROOT / "book" / "_ext")


def test_a_page_that_imports_the_grader_is_found(tmp_path):
    (tmp_path / "page.md").write_text("```{code-cell} python\n:tags: [x]\nfrom autograder.grade import course\n```\n")
    (tmp_path / "extension.py").write_text("def run():\n    from autograder.checks import costs\n")
    assert beyond(sources_of_the_book(tmp_path), tmp_path / "_ext") == ["page.md imports autograder.grade.course"]
    assert len(beyond(sources_of_the_book(tmp_path), tmp_path)) == 2


def modules_in(folder: Path, root: Path) -> dict[str, Path]:
    """The modules of a folder by their names, seen from `root`."""
    parts = {path: path.relative_to(root).with_suffix("").parts for path in folder.rglob("*.py")}
    return {".".join(names[:-1] if names[-1] == "__init__" else names): path for path, names in parts.items()}


def module_of(name: str, modules: Collection[str]) -> str:
    """The module that is imported, or that a name is taken from."""
    return name if name in modules else name.rpartition(".")[0]


def circle(files: dict[str, Path]) -> list[str]:
    """Modules that import each other in a circle, if there are any."""
    imported = {module: imported_by(path.read_text(encoding="utf-8")) for module, path in files.items()}
    graph = {module: {module_of(name, files) for name in names} & files.keys() for module, names in imported.items()}
    try:
        tuple(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as error:
        return error.args[1]
    return []


@pytest.mark.parametrize("folder", ["ranks", "autograder", "book/_ext"])
def test_no_modules_import_each_other_in_a_circle(folder):
    files = modules_in(ROOT / folder, (ROOT / folder).parent if "/" not in folder else ROOT / folder)
    assert len(files) > 10
    found = circle(files)
    assert not found, f"these import each other: {' → '.join(found)}"


def test_a_circle_is_found(tmp_path):
    for name, text in {"a": "def f():\n    from p import b", "b": "from p import c", "c": "import p.a"}.items():
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "__init__.py").write_text("")
    files = {f"p.{path.stem}".removesuffix(".__init__"): path for path in tmp_path.glob("*.py")}
    assert set(circle(files)) == {"p.a", "p.b", "p.c"}


@pytest.mark.parametrize("name", jail.FILES_INSIDE)
def test_the_half_in_the_jail_needs_nothing_of_this_package(name):
    """There it is the package `jail`, which has these files and no others."""
    imported = imported_by((ROOT / "autograder" / "grade" / "jail" / name).read_text())
    there = {f"jail.{file.removesuffix('.py')}" for file in jail.FILES_INSIDE}
    ours = {module for module in imported if module.split(".")[0] in ("autograder", "jail")}
    assert imported and {module_of(module, there) for module in ours} <= there
