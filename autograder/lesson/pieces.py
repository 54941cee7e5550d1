"""The capstone's module of parts, `pieces.py`, which is made from the solutions of the lessons before it.

It holds functions and classes that students write in earlier lessons, and whatever these need, as ordinary code, and is
made wherever the capstone's files are asked for (`companions`); `notebooks/` has a copy. The functions below
that read a notebook are copied into it, so that a student's own finished notebooks can be read in the same way.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import symtable
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

from autograder.lesson import notebook
from autograder.lesson.names import names_defined_by, names_read_by

#: Lesson → what the capstone takes from it.
PIECES = {
    "05_ddp": ("broadcast_parameters",),
    "08_zero1": ("ZeroOptimizer",),
    "12_tensor": ("ColumnParallelLinear", "RowParallelLinear"),
    "16_checkpoints": ("CheckpointError", "save_sharded", "load_sharded"),
}
LESSON = "17_capstone"
FILE = "pieces.py"
_IMPORTS = (ast.Import, ast.ImportFrom)


def companions(folder: Path) -> dict[str, bytes]:
    """As `notebook.companions`, and for the capstone its pieces, if the lessons that they are made of are beside it."""
    found = notebook.companions(folder)
    made = folder.name == LESSON and all((folder.parent / lesson).is_dir() for lesson in PIECES)
    return found | {FILE: source(folder.parent).encode()} if made else found


def copy_companions(folder: Path, target: str | Path) -> None:
    """Copy what the notebook of a lesson's `folder` finds beside itself to `target`, where it is released or run."""
    for name, content in companions(folder).items():
        Path(target, name).parent.mkdir(parents=True, exist_ok=True)
        Path(target, name).write_bytes(content)


def source(solutions: Path | None = None) -> str:
    """The module's text. ValueError when a solution lacks a piece, or two lessons define the same name.

    solutions: the folder with the lessons, if it is not the repository's.
    """
    notebooks = {lesson: (solutions or notebook.SOLUTIONS) / lesson / f"{lesson}.ipynb" for lesson in PIECES}
    tools_need = "import ast", "import json", "import symtable", "from collections.abc import Callable"
    imports, bodies, owner = {*tools_need, "from pathlib import Path"}, [], dict[str, str]()
    for lesson, names in PIECES.items():
        parts = statements_for(notebooks[lesson], names)
        trees = [ast.parse(part).body[0] for part in parts]
        imports |= {part for part, tree in zip(parts, trees, strict=True) if isinstance(tree, _IMPORTS)}
        body = [part for part, tree in zip(parts, trees, strict=True) if not isinstance(tree, _IMPORTS)]
        for part in body:
            for name in names_defined_by(symtable.symtable(part, lesson, "exec")):
                if owner.setdefault(name, lesson) != lesson:
                    raise ValueError(f"{name} is defined in {owner[name]} and in {lesson}: the capstone needs both")
        bodies.append(f"# ---- lesson {lesson}: {', '.join(names)}, and what they need ----\n\n\n{_joined(body)}")
    readers = (names_defined_by, names_read_by, statements_for, own_pieces, with_reference)
    tools = "\n\n\n".join(inspect.getsource(function).rstrip() for function in readers)
    rows = [f"    {json.dumps(lesson)}: {str(names).replace(chr(39), chr(34))}," for lesson, names in PIECES.items()]
    table = "\n".join(["#: Lesson → what the capstone takes from it.", "PIECES = {", *rows, "}"])
    bodies.append(f"# ---- the same from your own notebooks ----\n\n\n{table}\n\n\n{tools}")
    return f"{_head()}\n\n{_sorted(imports)}\n\n" + "\n\n\n".join(bodies) + "\n"


def _head() -> str:
    origin = "\n".join(f"    {lesson + ',':<16} {', '.join(names)}" for lesson, names in PIECES.items())
    text = """
        What the capstone takes from the lessons before it, with whatever that needs.

        Made from the solutions by `make notebooks`; not to be edited. Where each part comes from:

        """
    text = textwrap.dedent(text).strip()
    own = "`own_pieces` reads the same parts from your own finished notebooks instead."
    return f'"""{text}\n\n{origin}\n\n{own}\n"""\n\n# ruff: noqa: B905'


def _joined(parts: list[str]) -> str:
    """Statements with two blank lines around functions and classes, none between assignments."""
    text = parts[0]
    for before, part in itertools.pairwise(parts):
        plain = all(isinstance(ast.parse(one).body[0], (ast.Assign, ast.AnnAssign)) for one in (before, part))
        text += ("\n" if plain else "\n\n\n") + part
    return text


def _sorted(imports: set[str]) -> str:
    """Python's own first, then the others; `import` before `from`."""

    def key(line: str) -> tuple:
        return (line.startswith("from"), line.lower())

    standard = {line for line in imports if line.split()[1].split(".")[0] in sys.stdlib_module_names}
    return "\n\n".join("\n".join(sorted(lines, key=key)) for lines in (standard, imports - standard))


# ---- copied into the module ----


def statements_for(path: Path, names: tuple[str, ...]) -> list[str]:
    """The statements of a notebook that define `names`, and those that these need in turn, in their order.

    Tests are left out. Where a name is defined twice, an answer or a setup cell counts before any other.
    Raises OSError if there is no notebook, ValueError if it lacks a name or its answer is not written.
    """
    wanted, found = ("setup", "parameters"), dict[str, tuple[int, int, str]]()
    cells = [
        cell for cell in json.loads(Path(path).read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"
    ]
    for first in (False, True):  # what is found later counts
        for place, cell in enumerate(cells):
            role, tags = cell["metadata"].get("nbgrader", {}), cell["metadata"].get("tags", [])
            if role.get("grade") or first != bool(role.get("solution") or set(tags) & set(wanted)):
                continue
            lines = "".join(cell["source"]).split("\n")
            try:
                statements = ast.parse("\n".join(lines)).body
            except SyntaxError:  # unfinished, or for IPython only
                continue
            for s in statements:
                start = min([s.lineno, *(d.lineno for d in getattr(s, "decorator_list", []))]) - 1
                text = "\n".join(one for one in lines[start : s.end_lineno] if not one.strip().startswith("### "))
                for name in names_defined_by(symtable.symtable(text, str(path), "exec")):
                    found[name] = (place, start, text)
    needed, todo = set(), list(names)
    while todo:
        name = todo.pop()
        if name in found and found[name] not in needed:
            needed.add(found[name])
            todo += names_read_by(symtable.symtable(found[name][2], name, "exec"))
        elif name in names and name not in found:
            raise ValueError(f"{name} is missing in {path}")
        if name in found and "NotImplementedError" in found[name][2]:
            raise ValueError(f"{name} in {path} is not written yet")
    return [text for _, _, text in sorted(needed)]


def own_pieces(folder: str | Path = "..") -> dict[str, object]:
    """The pieces from your own notebooks in `folder`, by name; says for each lesson whose pieces are used."""
    found: dict[str, object] = {}
    for lesson, names in PIECES.items():
        path = Path(folder, lesson, f"{lesson}.ipynb")
        space: dict[str, object] = {"__name__": "__main__"}  # as in a notebook: functions travel to ranks by value
        try:
            exec(compile("\n\n\n".join(statements_for(path, names)), str(path), "exec"), space)
        except FileNotFoundError:
            print(f"{lesson}: the reference solution's pieces, since there is no {path}")
        except Exception as problem:
            print(f"{lesson}: the reference solution's pieces, since {problem}")
        else:
            found |= {name: space[name] for name in names}
            print(f"{lesson}: your own pieces")
    return found


def with_reference(worker: Callable) -> Callable:
    """The worker with the reference pieces in its ranks, whatever its notebook defines under their names."""

    def run(rank: int, world_size: int, *args: object) -> object:
        import pieces

        for names in pieces.PIECES.values():
            worker.__globals__.update({name: getattr(pieces, name) for name in names})
        return worker(rank, world_size, *args)

    return run
