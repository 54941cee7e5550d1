"""One page of the book in seconds: `make page LESSON=08_zero1` builds a chapter, `make figure NAME=race` one figure.

A page stands alone, with the bibliography: links to other pages lead nowhere, and what is numbered begins with 1. The
cells of a chapter run only if they or what they import have changed. A figure's page has the figure as its chapter
shows it, and none of the chapter's cells; then its tests in `tests/book/test_figures.py` drive it there.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "_build" / "page"
sys.path.insert(0, str(ROOT))

from autograder.lesson import notebook  # noqa: E402
from autograder.lesson.files import write_whole  # noqa: E402

#: What a figure's page is made of, besides the page itself.
SOURCES = ("book/_ext", "book/_static", "book/_vendor", "book/exercise", "book/figures", "book/references.bib")
SOURCES += ("book/bibliography.md", "notebooks", "solutions")
#: What Sphinx warns of when it builds one page: it has not read the others.
OF_OTHER_PAGES = r"unknown (source )?document|undefined label|not in glossary|xref_missing|\[ref\.|prf:|toctree"

#: How a test names a figure.
_USES = r"figures\.{0}\b|'{0}'|figure-{0}\b"
_WARNING = re.compile(r"(?:WARNING|ERROR|CRITICAL): (.*)")
_COLOR = re.compile(r"\x1b\[[\d;]*m")


def build(source: Path, name: str, pages: list[str]) -> Path:
    """Build these pages of the book in `source`; the folder of the HTML. RuntimeError with the log's end."""
    folder = BUILD / name
    toc = ["format: jb-book", f"root: {pages[0]}", "chapters:", *(f"  - file: {page}" for page in pages[1:]), ""]
    write_whole(folder / "_toc.yml", "\n".join(toc))
    command = [Path(sys.executable).with_name("jupyter-book"), "build", source, "--toc", folder / "_toc.yml"]
    command += ["--config", source / "_config.yml", "--path-output", folder]
    environment = os.environ | {"JUPYTER_PREFER_ENV_PATH": "1"}
    done = subprocess.run(list(map(str, command)), cwd=source, env=environment, capture_output=True, text=True)
    log = _COLOR.sub("", done.stdout + done.stderr)
    if done.returncode:
        raise RuntimeError(f"the page does not build:\n{log[-3000:]}")
    for line in log.splitlines():
        if _WARNING.search(line) and not re.search(OF_OTHER_PAGES, line):
            print(line.replace(f"{source}/", "").replace(f"{ROOT}/", ""))
    return folder / "_build" / "html"


def chapter(lesson: str) -> Path:
    """The page of a lesson's chapter, or another page of the folder `book`, such as `plan`."""
    if not lesson[:2].isdigit() and (ROOT / "book" / f"{lesson}.md").is_file():
        return build(ROOT, lesson, [f"book/{lesson}", "book/bibliography"]) / "book" / f"{lesson}.html"
    (lesson,) = notebook.pick([lesson])
    if not (ROOT / "book" / f"{lesson}.md").is_file():
        raise ValueError(f"{lesson} has no chapter book/{lesson}.md")
    run = [sys.executable, "-m", "autograder", "chapters", lesson]
    if subprocess.run(run, cwd=ROOT).returncode:
        raise RuntimeError(f"the cells of book/{lesson}.md do not run")
    return build(ROOT, lesson, [f"book/{lesson}", "book/bibliography"]) / "book" / f"{lesson}.html"


def shown(name: str) -> tuple[str, str]:
    """The lesson whose chapter shows a figure, and the directive there. ValueError if there is none."""
    for lesson in notebook.lessons():
        text = (ROOT / "book" / f"{lesson}.md").read_text(encoding="utf-8")
        if found := re.search(rf"^(:::+){{live-figure}} {re.escape(name)}\n.*?^\1$", text, re.MULTILINE | re.DOTALL):
            return lesson, found[0]
    names = ", ".join(
        sorted(path.stem for path in (ROOT / "book" / "figures").glob("*.py") if path.with_suffix(".js").is_file())
    )
    raise ValueError(f"no chapter shows a figure {name!r}: there are {names}")


def figure(name: str) -> tuple[Path, str]:
    """The page with a figure alone, and which tests drive it, for pytest's `-k`.

    The page has its chapter's name, under which the tests open it.
    """
    lesson, directive = shown(name)
    source = BUILD / f"figure-{name}" / "source"
    (source / "book").mkdir(parents=True, exist_ok=True)
    for place in SOURCES:
        if not (source / place).is_symlink():
            (source / place).symlink_to(ROOT / place)
    config = (ROOT / "_config.yml").read_text(encoding="utf-8")
    write_whole(source / "_config.yml", config.replace("cache: _build", f"cache: {ROOT}/_build"))
    write_whole(source / "book" / f"{lesson}.md", f"# {name}\n\n{directive}\n")
    page = build(source, f"figure-{name}", [f"book/{lesson}", "book/bibliography"]) / "book" / f"{lesson}.html"
    return page, " or ".join(tests_of(name, f"chapter_{lesson[:2]}"))


def tests_of(name: str, fixture: str) -> list[str]:
    """The tests that drive a figure on its chapter's page alone. ValueError if there is none."""
    tree = ast.parse((ROOT / "tests" / "book" / "test_figures.py").read_text(encoding="utf-8"))
    found = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            takes = [argument.arg for argument in node.args.args]
            if fixture in takes and "book" not in takes and re.search(_USES.format(re.escape(name)), ast.unparse(node)):
                found.append(node.name)
    if not found:
        raise ValueError(f"no test drives {name}: add one to tests/book/test_figures.py that takes {fixture}")
    return found


def test(page: Path, select: str) -> int:
    """Run the tests of a figure on its page; their exit status."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "thorough", "-k", select]
    environment = os.environ | {"BOOK": str(page.parents[1])}
    return subprocess.run([*command, "tests/book/test_figures.py"], cwd=ROOT, env=environment).returncode


def main(kind: str, name: str = "") -> int:
    """Build a page, print its path, test a figure; the exit status. An error that a person can repair is one line."""
    try:
        if not name:
            raise ValueError("name one: make page LESSON=08_zero1, or make figure NAME=race")
        page, select = figure(name) if kind == "figure" else (chapter(name), "")
        print(f"The page: {page}", flush=True)
        return test(page, select) if select else 0
    except (ValueError, RuntimeError) as error:
        print(f"{kind}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
