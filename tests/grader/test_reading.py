"""If a person can read the answers in a file, they are read; what no one can read says what it is."""

import contextlib
import copy
import gzip
import io
import json
import sys
import time
import zipfile

import nbformat
import pytest

from autograder.desk import marks
from autograder.grade import limits, outcome
from autograder.grade.nbgrader import reading, scoring, submission_files
from autograder.grade.nbgrader.grade_submission import grade_submission
from autograder.grade.running import run_cells
from autograder.grade.running.kernels import Reply
from tests.helpers.graded_class import WRONG, fill
from tests.helpers.toy_course import LESSON, Toy, submission
from tests.helpers.toy_course import cell as cell_of

NB = json.loads(json.dumps(submission(ex1="def double(x):\n    # größer\n    return 2 * x\n")))


def changed(change):
    nb = copy.deepcopy(NB)
    change(nb)
    return json.dumps(nb).encode()


def of_cells(change):
    return changed(lambda nb: [change(cell) for cell in nb["cells"]])


def as_colab_does(cell):
    cell["metadata"] = {"id": cell.pop("id"), "colab": {"base_uri": "https://localhost:8080/"}}


def outputs(value):
    return changed(lambda nb: nb["cells"][1].update(outputs=value))


READABLE = {
    "as it is": json.dumps(NB).encode(),
    "a byte order mark": b"\xef\xbb\xbf" + json.dumps(NB, ensure_ascii=False).encode(),
    "UTF-16 with a mark": json.dumps(NB, ensure_ascii=False).encode("utf-16"),
    "UTF-16 without one": json.dumps(NB, ensure_ascii=False).encode("utf-16-le"),
    "UTF-32": json.dumps(NB, ensure_ascii=False).encode("utf-32"),
    "Latin-1": json.dumps(NB, ensure_ascii=False).encode("latin-1"),
    "lines of Windows in the file": json.dumps(NB, indent=1).replace("\n", "\r\n").encode(),
    "lines of Windows in the cells": of_cells(lambda cell: cell.update(source=cell["source"].replace("\n", "\r\n"))),
    "sources as lists": of_cells(lambda cell: cell.update(source=cell["source"].splitlines(True))),
    "Colab": of_cells(as_colab_does),
    "no metadata": changed(lambda nb: nb.pop("metadata")),
    "null for metadata": changed(lambda nb: nb.update(metadata=None)),
    "a list for metadata": changed(lambda nb: nb.update(metadata=[1])),
    "no metadata in the cells": of_cells(lambda cell: cell.pop("metadata")),
    "null for metadata in the cells": of_cells(lambda cell: cell.update(metadata=None)),
    "no outputs": of_cells(lambda cell: (cell.pop("outputs", None), cell.pop("execution_count", None))),
    "null for outputs": outputs(None),
    "a number for outputs": outputs(7),
    "outputs without a type": outputs([{"name": "stdout", "text": ["x"]}]),
    "outputs of an old type": outputs([{"output_type": "pyout", "text": ["x"], "metadata": {}}]),
    "outputs that are no objects": outputs(["x", None]),
    "a printed table of 210,000 lists": outputs(
        [{"output_type": "stream", "name": "stdout", "text": "[[1]]," * 105_000}]
    ),
    "a figure of 300,000 lists": outputs(
        [{"output_type": "display_data", "data": {"x": [[1]] * 300_000}, "metadata": {}}]
    ),
    "a number of 5,000 digits": outputs([{"output_type": "stream", "text": 1}]).replace(
        b'"text": 1', b'"text": ' + b"1" * 5000
    ),
    "outputs in each other": outputs([]).replace(b'"outputs": []', b'"outputs": ' + b"[" * 50_000 + b"]" * 50_000, 1),
    "a version that is text": changed(lambda nb: nb.update(nbformat="4")),
    "no version": changed(lambda nb: (nb.pop("nbformat"), nb.pop("nbformat_minor"))),
    "a version to come": changed(lambda nb: nb.update(nbformat=5, nbformat_minor=9)),
    "nbformat 3": json.dumps(nbformat.convert(nbformat.from_dict(NB), 3)).encode(),
    "empty bytes at the end": json.dumps(NB).encode() + b"\0" * 4096,
    "another notebook after it": json.dumps(NB).encode() + b"\n" + json.dumps(NB).encode(),
    "a comma too many": json.dumps(NB).encode()[:-1] + b",}",
    "a comma too many in a list": json.dumps(NB).encode().replace(b'}], "metadata"', b'},], "metadata"'),
    "a tab in a text": json.dumps(NB).replace("\\n    return 2", "\\n\treturn 2").encode(),
    "UTF-32 without a mark": json.dumps(NB, ensure_ascii=False).encode("utf-32-le"),
    "an old encoding of Chinese": json.dumps(NB, ensure_ascii=False).replace("größer", "誠").encode("gb18030"),
    "a byte order mark in each cell": of_cells(lambda cell: cell.update(source="\ufeff" + cell["source"])),
    "as Jupyter's server delivers it": json.dumps({"type": "notebook", "name": "07_toy.ipynb", "content": NB}).encode(),
    "the sources as inputs": of_cells(lambda cell: cell.update(input=cell.pop("source"))),
    "cells in a worksheet": changed(lambda nb: nb.update(worksheets=[{"cells": nb.pop("cells")}])),
    "cells that are none": changed(lambda nb: nb["cells"].extend([None, 7, {}, {"cell_type": "code", "source": None}])),
    "attachments": of_cells(lambda cell: cell.update(attachments={"p.png": {"image/png": "AAAA"}})),
}


@pytest.mark.parametrize("kind", READABLE)
def test_what_a_person_can_read_is_read(kind):
    nb = reading.read_submission(READABLE[kind])
    assert not outcome.of_notebook(nb).problem
    sources = [cell.source.replace("\t", "    ").replace("誠", "größer") for cell in nb.cells]
    assert sources == [cell["source"] for cell in NB["cells"]]
    assert [cell.cell_type for cell in nb.cells] == [cell["cell_type"] for cell in NB["cells"]]
    if kind != "nbformat 3":
        assert [cell.id for cell in nb.cells] == [cell["id"] for cell in NB["cells"]]
    nbformat.validate(nb)


def zipped():
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("07_toy.ipynb", json.dumps(NB))
    return content.getvalue()


def in_conflict():
    lines = json.dumps(NB, indent=1).split("\n")
    return "\n".join([*lines[:10], "<<<<<<< HEAD", *lines[10:12], "=======", ">>>>>>> main", *lines[12:]]).encode()


UNREADABLE = {
    "a zip archive": (zipped(), "is a zip archive: unpack it"),
    "a gzip archive": (gzip.compress(json.dumps(NB).encode()), "is a gzip archive: unpack it"),
    "a picture": (b"\x89PNG\r\n\x1a\n" + b"\0" * 99, "is a picture"),
    "a PDF": (b"%PDF-1.7 \xe2", "is a PDF"),
    "a pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "is a pointer of Git LFS"),
    "a web page": (b"\n<!DOCTYPE html><html><body>Log in</body></html>", "is a web page"),
    "a conflict": (in_conflict(), "holds a merge conflict of Git"),
    "a part": (json.dumps(NB).encode()[:-700], "ends in the middle of the notebook"),
    "a part that ends between two cells": (json.dumps(NB).encode().rsplit(b", {", 1)[0], "ends in the middle"),
    "a damaged one": (
        json.dumps(NB, indent=1).replace('"source":', '"source"', 1).encode(),
        "is a damaged notebook (line ",
    ),
    "nothing": (b"", "is empty"),
    "empty bytes": (b"\0" * 100, "is empty"),
    "words": (b"this is no notebook", "is not a Jupyter notebook"),
    "binary data": (b"\xff\xfe\x00\x01" * 9, "is not a Jupyter notebook"),
    "a list": (b"[1, 2]", "is not a Jupyter notebook"),
    "null for cells": (b'{"cells": null, "nbformat": 4}', "is not a Jupyter notebook"),
    "no cells": (b'{"metadata": {}, "nbformat": 4, "nbformat_minor": 5}', "is not a Jupyter notebook"),
    "brackets": (b"[" * 100_000, "is not a Jupyter notebook"),
    "too many lists": (changed(lambda nb: nb.update(metadata={"x": [[1]] * limits.PARTS})), "is too large"),
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_what_nobody_can_read_says_what_it_is(kind):
    content, why = UNREADABLE[kind]
    problem = outcome.of_notebook(reading.read_submission(content)).problem
    assert problem.startswith(f"The file {why}") and "\n" not in problem


@pytest.mark.parametrize(
    "text",
    [
        '{"cells": [{"source": "' + '\\"' * 3_000_000,
        '{"cells": ' + '"x", ' * 2_000_000,
        '{"outputs": ' * 1_000_000,
        '"' * 5_000_001,
    ],
    ids=["a text without an end", "many texts", "outputs without an end", "quotes"],
)
def test_reading_takes_time_in_proportion_to_the_file(text):
    began = time.process_time()
    assert outcome.of_notebook(reading.read_submission(text)).problem
    whole = time.process_time() - began
    began = time.process_time()
    reading.read_submission(text[: len(text) // 4])
    assert whole < 12 * (time.process_time() - began) + 1


def test_ids_that_are_not_unique_are_no_warning(recwarn):
    nb = reading.read_submission(of_cells(lambda cell: cell.update(id="same")))
    assert len({cell.id for cell in nb.cells}) == len(NB["cells"]) and nb.cells[0].id == "same" and not recwarn.list


def read(folder):
    """The notebook that stands for what was handed in here."""
    return reading.notebook_in(submission_files.read_folder(folder, []))


OTHER_NAMES = ["07_toy (1).ipynb", "07_toy.ipynb.txt", "07_toy.ipynb.json", "07_toy.ipynb~", "07_toy.ipynb (2)"]
OTHER_NAMES += ["07_TOY.IPYNB", "07_toy/07_toy.ipynb", "a/b/c/07_toy.ipynb", "07_toy.ipynb/07_toy.ipynb"]


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_the_only_notebook_in_the_folder_is_read_whatever_its_name(tmp_path, name):
    path = tmp_path / "ada" / "07_toy" / "07_toy.ipynb"
    (path.parent / name).parent.mkdir(parents=True, exist_ok=True)
    (path.parent / name).write_bytes(READABLE["as it is"])
    (path.parent / "._mine.ipynb").write_bytes(b"what macOS puts into archives")
    submission = submission_files.read_folder(path.parent, [])
    assert submission.notebook == READABLE["as it is"] and not submission.left_out
    nb = read(path.parent)
    assert nb.cells and outcome.of_notebook(nb).remarks == [f"{name} was graded, since there is no 07_toy.ipynb."]
    (path.parent / "other.ipynb").write_text("{}")
    problem = outcome.of_notebook(read(path.parent)).problem
    if name.endswith("/07_toy.ipynb"):
        assert not problem
        assert submission_files.read_folder(path.parent, []).left_out == [f"other.ipynb: only {name} is graded"]
    else:
        assert f"found {', '.join(sorted([name, 'other.ipynb']))}): hand in one under that name" in problem


@pytest.mark.parametrize("name", ["07_toy.zip", "07_toy.py", "07_toy.json", ".ipynb_checkpoints/07_toy.ipynb"])
def test_what_lies_there_instead_of_a_notebook_is_named(tmp_path, name):
    path = tmp_path / "ada" / "07_toy" / "07_toy.ipynb"
    (path.parent / name).parent.mkdir(parents=True, exist_ok=True)
    (path.parent / name).write_bytes(b"x")
    problem = outcome.of_notebook(read(path.parent)).problem
    assert problem == f"There is no 07_toy.ipynb (found {name}): hand in the notebook itself."


def test_no_link_is_followed_to_another_name(tmp_path):
    path = tmp_path / "ada" / "07_toy" / "07_toy.ipynb"
    path.parent.mkdir(parents=True)
    (tmp_path / "secret.ipynb").write_bytes(READABLE["as it is"])
    (path.parent / "mine.ipynb").symlink_to(tmp_path / "secret.ipynb")
    (path.parent / "deeper").symlink_to(tmp_path)
    assert "no other notebook" in outcome.of_notebook(read(path.parent)).problem
    # Nor one that takes a folder's place while the submission is read.
    with submission_files.opened(path.parent) as top, contextlib.ExitStack() as stack, pytest.raises(OSError):
        submission_files._folder_below(top, "deeper", stack)


#: Syntax → the version of Python that has brought it.
SYNTAX = {
    'd = {"a": 1}\nf"{d["a"]}"': (3, 12),
    "def double[T](x: T) -> T:\n    return 2 * x": (3, 12),
    "type Number = int | float": (3, 12),
    "try:\n    1 / 0\nexcept TypeError, ValueError:\n    pass": (3, 14),
    'x = 1\nt"{x}"': (3, 14),
    "double(": (4, 0),
}


def graded(source, error, message, python=""):
    """A notebook whose first answer stopped with this error."""
    failure = run_cells.failure_of(Reply("error", error=(error, message)))
    cell = reading.new_cell("code", source, {}, "07-ex1-double")
    outcome.to_metadata(cell, outcome.CellOutcome("error", failure))
    return reading.notebook_of([cell], outcome.NotebookOutcome(python=python))


@pytest.mark.parametrize("source", SYNTAX)
def test_syntax_that_is_newer_than_this_python_is_named(source):
    since = SYNTAX[source]
    if since <= sys.version_info[:2]:
        pytest.skip("this Python knows it")
    with pytest.raises(SyntaxError) as raised:
        compile(source, "", "exec")
    error = "SyntaxError", f"{raised.value.msg} (3.py, line {raised.value.lineno})"
    said = scoring.about_python(graded(source, *error))
    if since > (3, 14):
        assert not said, "an error in every version"
    else:
        assert f"exercise 1 may be written for Python {since[0]}.{since[1]}: if it works there" in said[0]
    assert "may be written for Python 3.99" in scoring.about_python(graded(source, *error, python="3.99"))[0]


def test_errors_of_a_newer_python_are_named_where_the_file_names_it(tmp_path):
    for version, python in {"3.99.1": "3.99", "3.7": "3.7", "x" * 99: "", "3.999": "", 3: ""}.items():
        file = changed(lambda nb, version=version: nb.update(metadata={"language_info": {"version": version}}))
        assert outcome.of_notebook(reading.read_submission(file)).python == python
    lacks = "AttributeError", "module 'itertools' has no attribute 'batched'"
    assert scoring.about_python(graded("", *lacks, python="3.99"))
    assert not scoring.about_python(graded("", *lacks, python="3.7")) and not scoring.about_python(graded("", *lacks))
    assert not scoring.about_python(graded("", "AttributeError", "no 'x'", python="3.99"))


def test_page_and_report_say_that_the_students_python_is_newer(tmp_path):
    toy = Toy(tmp_path)
    fill(toy, "ada", ex1=WRONG)
    nb = nbformat.read(toy.root / "autograded" / "ada" / LESSON / f"{LESSON}.ipynb", 4)
    outcome.to_metadata(nb, outcome.NotebookOutcome(python="3.99"))
    failure = run_cells.failure_of(Reply("error", error=("SyntaxError", "invalid syntax (3.py, line 1)")))
    outcome.to_metadata(cell_of(nb, "07-ex1-double"), outcome.CellOutcome("error", failure))
    config = toy.course._config(assignment_id=LESSON, student_id="ada")
    grade_submission(config, "ada", LESSON, nb, {})
    said = "exercise 1 may be written for Python 3.99"
    assert said in toy.page() and said in marks.read(toy.course).submissions[0].beside[0]
