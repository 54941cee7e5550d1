"""A made-up lesson of one exercise, for tests of the machinery."""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

ANSWER = "doubled_value_of_the_input = 2 * x"
HIDDEN = 'assert twice(21) == 42, "hidden from students"'


def lesson(folder: Path, name: str = "98_tiny", *, answer: str = ANSWER, hidden: str = HIDDEN) -> Path:
    """Write the solution notebook of a lesson into `folder`; its path."""
    number = name.split("_")[0]
    body = f"    ### BEGIN SOLUTION\n    {answer}\n    return doubled_value_of_the_input\n    ### END SOLUTION"
    stub = f'def twice(x):\n    """Two times x."""\n{body}'
    test = f'"""Twice is two times."""\nassert twice(2) == 4\n### BEGIN HIDDEN TESTS\n{hidden}\n### END HIDDEN TESTS'
    common = {"schema_version": 3, "task": False}
    solution = {"grade": False, "grade_id": f"{number}-ex1-twice", "locked": False, "solution": True, **common}
    graded = {"grade": True, "grade_id": f"{number}-ex1-twice-test", "locked": True, "points": 3, "solution": False}
    cells = [
        new_markdown_cell(f"# {number} · Tiny", id=f"{number}-title"),
        new_code_cell("import os", id=f"{number}-imports", metadata={"tags": ["setup"]}),
        new_code_cell("WORLD_SIZE = 4\nSEED = 0", id=f"{number}-parameters", metadata={"tags": ["parameters"]}),
        new_code_cell(stub, id=solution["grade_id"], metadata={"nbgrader": solution}),
        new_code_cell("print(WORLD_SIZE)", id=f"{number}-show"),
        new_code_cell(test, id=graded["grade_id"], metadata={"nbgrader": graded | common}),
    ]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    nb = new_notebook(cells=cells, metadata={"kernelspec": kernel, "language_info": {"name": "python"}})
    path = folder / name / f"{name}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(nb, path)
    return path
