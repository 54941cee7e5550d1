"""Reads what was handed in, whatever is in the file: if a person can read the answers in it, they are graded.

Of a cell only its type, source, id, nbgrader's metadata and the pictures that its text shows are kept, so nothing else
in a file can keep it from being read: no output, no other metadata, no missing field. What cannot be read becomes a
notebook that says why.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import nbformat
from nbformat.v4 import new_notebook
from nbformat.v4.nbbase import random_cell_id

from autograder.grade import limits, outcome
from autograder.grade.nbgrader import submission_files
from autograder.grade.outcome import NotebookOutcome
from autograder.lesson.notebook import address_of, answer_cells, is_task, nbgrader_role

#: What a cell of each kind has besides its text and metadata.
PARTS: dict[str, dict] = {"code": {"execution_count": None, "outputs": []}, "markdown": {}, "raw": {}}

#: How files begin that are no text of a notebook, and what they are.
KINDS = (
    (b"PK\x03\x04", "a zip archive: unpack it, and hand in the notebook in it"),
    (b"\x1f\x8b", "a gzip archive: unpack it, and hand in the notebook in it"),
    (b"Rar!", "a RAR archive: unpack it, and hand in the notebook in it"),
    (b"7z\xbc\xaf", "a 7z archive: unpack it, and hand in the notebook in it"),
    (b"%PDF", "a PDF: hand in the notebook itself"),
    (b"\x89PNG", "a picture: hand in the notebook itself"),
    (b"\xff\xd8\xff", "a picture: hand in the notebook itself"),
    (b"{\\rtf", "a text of a word processor: hand in the notebook itself"),
    (
        b"version https://git-lfs",
        "a pointer of Git LFS, not the notebook: run `git lfs pull`, and hand in the notebook",
    ),
    (b"<!doctype html", "a web page, perhaps one that asks to log in: hand in the notebook itself"),
    (b"<html", "a web page, perhaps one that asks to log in: hand in the notebook itself"),
)
AGAIN = "save the notebook in JupyterLab and hand it in again"


class UnreadableError(Exception):
    """Why a file is no notebook: the rest of a sentence that begins with "The file "."""


def notebook_in(submission: submission_files.Submission) -> nbformat.NotebookNode:
    """The notebook of a submission; one that says why there is none."""
    content = submission.notebook
    nb = unreadable(submission.problem) if content is None else read_submission(content, submission.remarks)
    outcome.to_metadata(nb, replace(outcome.of_notebook(nb), left_out=submission.left_out))
    return nb


def read_submission(content: bytes | str, remarks: Iterable[str] = ()) -> nbformat.NotebookNode:
    """A notebook of well-formed cells without outputs; its `NotebookOutcome` has a problem if it cannot be read.

    remarks: what there is to say about how it was found; what was repaired is added.
    """
    remarks = list(remarks)
    try:
        text = content if isinstance(content, str) else _decoded(content, remarks)
        if len(text) > limits.FILE:
            raise UnreadableError("is too large: clear the outputs, save, and hand it in again")
        nb = _parsed(text, remarks)
        cells = _cells(nb)
        if len(cells) > limits.CELLS:
            most = f"at most {limits.CELLS:,} are graded"
            raise UnreadableError(f"has {len(cells):,} cells ({most}): remove some, and hand it in again")
        kept = _with_own_ids(within_all_source([fresh_cell(cell) for cell in cells]))
        remarks += _keep_pictures(kept)
        return notebook_of(kept, NotebookOutcome(remarks=remarks, python=_python(nb)))
    except UnreadableError as error:
        return unreadable(f"The file {error}.")
    except Exception:  # such as a RecursionError of the parser
        return unreadable(f"The file is not a Jupyter notebook: {AGAIN}.")


def _decoded(content: bytes, remarks: list[str]) -> str:
    """The text of a file, whatever its encoding. UnreadableError for what is no text."""
    start = content[:200].lstrip(codecs.BOM_UTF8 + b" \r\n\t").lower()
    for beginning, kind in KINDS:
        if start.startswith(beginning.lower()):
            raise UnreadableError(f"is {kind}")
    if not content.strip(b"\0 \r\n\t"):
        raise UnreadableError("is empty: save the notebook in JupyterLab and hand it in again")
    marks = {codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32", codecs.BOM_UTF16_LE: "utf-16"}
    marks |= {codecs.BOM_UTF16_BE: "utf-16", codecs.BOM_UTF8: "utf-8-sig"}
    marked = next((encoding for mark, encoding in marks.items() if content.startswith(mark)), "")
    # A notebook begins with a brace: so one with empty bytes beside it has two or four bytes for each sign.
    wide = {b"{\0\0\0": "utf-32-le", b"\0\0\0{": "utf-32-be"}.get(content[:4], "")
    wide = wide or {b"{\0": "utf-16-le", b"\0{": "utf-16-be"}.get(content[:2], "")
    # In the old encodings of East Asia a sign may end with a backslash, which is none.
    eastern = ("gb18030", "shift_jis", "big5") if re.search(rb"[\x80-\xff]\\", content) else ()
    for encoding in filter(None, (marked, wide, "utf-8", *eastern, "cp1252", "latin-1")):
        try:
            text = content.decode(encoding)
        except UnicodeDecodeError:
            continue
        if encoding in (*eastern, "cp1252", "latin-1"):
            remarks.append("The file is not UTF-8, so signs beyond ASCII may have become others.")
        return text.lstrip("\ufeff")
    raise AssertionError("latin-1 decodes everything")


def _parsed(text: str, remarks: list[str]) -> dict[str, Any]:
    """The object in a file's text. UnreadableError says what the file is instead."""
    text = text.strip("\0 \r\n\t")
    if _parts(text) > limits.PARTS:
        text = "".join(_without_outputs(text))
        if _parts(text) > limits.PARTS:
            raise UnreadableError("is too large: clear the outputs, save, and hand it in again")
    broken = 0
    for repair in (str, lambda text: "".join(_without_outputs(text)), lambda text: _TRAILING_COMMA.sub(r"\1", text)):
        attempt = repair(text)
        try:
            nb, end = json.JSONDecoder(strict=False).raw_decode(attempt)
        except json.JSONDecodeError as error:
            broken = max(broken, error.pos)
        except (ValueError, RecursionError):  # a number of thousands of digits, or lists in lists in lists
            continue
        else:
            if isinstance(nb, dict):
                if attempt[end:].strip("\0 \r\n\t"):
                    remarks.append("The file goes on after the notebook; what follows was not read.")
                return nb
            break
    if re.search(r"^(<<<<<<<|>>>>>>>) ", text, re.MULTILINE):
        raise UnreadableError("holds a merge conflict of Git: resolve it, and hand the notebook in again")
    if not text.startswith("{") or '"cells"' not in text:
        raise UnreadableError(f"is not a Jupyter notebook: {AGAIN}")
    if broken >= len(text) - 1 or text.count('"') % 2:
        raise UnreadableError("ends in the middle of the notebook: hand in the whole file")
    raise UnreadableError(f"is a damaged notebook (line {text.count(chr(10), 0, broken) + 1}): {AGAIN}")


#: A string of JSON; one without an end goes on to the end of the text, so that no sign is looked at twice.
_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)'
_TRAILING_COMMA = re.compile(rf"({_STRING})|,(?=\s*[}}\]])", re.DOTALL)
_TOKEN = re.compile(rf"{_STRING}|[\[\]{{}}]", re.DOTALL)
_OPENS = re.compile(r"\s*:\s*(?=\[)")


def _parts(text: str) -> int:
    """How many objects and lists a JSON text has; brackets in its strings do not count."""
    if text.count("{") + text.count("[") <= limits.PARTS:
        return 0  # few enough in any case
    return sum(token[0] in "{[" for token in map(re.Match.group, _TOKEN.finditer(text)))


def _without_outputs(text: str) -> Iterator[str]:
    """The parts of a notebook's text that are not outputs: they can be larger than all that is read."""
    begins, depth, at = 0, 0, -1
    for token in _TOKEN.finditer(text):
        sign = token[0]
        if at < 0:
            if sign == '"outputs"' and (opens := _OPENS.match(text, token.end())):
                at, depth = opens.end(), 0
        elif sign in "[{":
            depth += 1
        elif sign in "]}":
            depth -= 1
            if depth == 0:
                yield f"{text[begins:at]}[]"
                begins, at = token.end(), -1
    yield text[begins:]


def _cells(nb: dict[str, Any]) -> list[Any]:
    """The cells of a notebook of any version. UnreadableError if it has no place for cells."""
    inner = nb.get("content")
    if "cells" not in nb and isinstance(inner, dict):  # as Jupyter's server delivers a file
        nb = inner
    if isinstance(nb.get("cells"), list):
        return [_of_version_3(cell) if isinstance(cell, dict) and "input" in cell else cell for cell in nb["cells"]]
    sheets = nb.get("worksheets")
    if not isinstance(sheets, list):
        raise UnreadableError(f"is not a Jupyter notebook: {AGAIN}")
    inner = [sheet["cells"] for sheet in sheets if isinstance(sheet, dict) and isinstance(sheet.get("cells"), list)]
    return [_of_version_3(cell) for cells in inner for cell in cells if isinstance(cell, dict)]


def _of_version_3(cell: dict[str, Any]) -> dict[str, Any]:
    """A cell of nbformat 3 as one of version 4: code was `input`, and headings were cells of their own."""
    source = cell.get("source", cell.get("input"))
    if cell.get("cell_type") == "heading":
        level = cell.get("level")
        lines = source if isinstance(source, list) else [source]
        source = ["#" * (level if isinstance(level, int) and 1 <= level <= 6 else 1) + " ", *lines]
    return {**cell, "source": source}


def _python(nb: dict[str, Any]) -> str:
    """The version of Python with which a notebook was saved, such as 3.13; '' if it does not say."""
    found: Any = nb.get("metadata")
    for key in ("language_info", "version"):
        found = found.get(key) if isinstance(found, dict) else None
    match = re.match(r"3\.\d{1,2}(?!\d)", found) if isinstance(found, str) else None
    return match[0] if match else ""


def unreadable(problem: str) -> nbformat.NotebookNode:
    """A notebook without cells that carries the reason."""
    return notebook_of([], NotebookOutcome(problem))


def notebook_of(cells: list[nbformat.NotebookNode], whole: NotebookOutcome) -> nbformat.NotebookNode:
    """A notebook for this Python, whatever kernel the submission asks for. whole: what there is to say of it."""
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nb = new_notebook(cells=cells, metadata={"kernelspec": kernel, "language_info": {"name": "python"}})
    outcome.to_metadata(nb, whole)
    return nb


def fresh_cell(cell: Any) -> nbformat.NotebookNode | None:
    """A valid cell with the same type, source and nbgrader metadata; None when there is nothing to keep."""
    if not isinstance(cell, dict):
        return None
    source, metadata = cell.get("source"), cell.get("metadata")
    if isinstance(source, list):
        source = "".join(line for line in source if isinstance(line, str))
    if not isinstance(source, str):
        return None
    kind = cell.get("cell_type")
    if kind not in PARTS:
        kind = "code" if kind is None and ("outputs" in cell or "execution_count" in cell) else "markdown"
    metadata = metadata if isinstance(metadata, dict) else {}
    kept = {"nbgrader": role} if isinstance(role := metadata.get("nbgrader"), dict) else {}
    source = source.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    fresh = new_cell(kind, limits.source(limits.well_formed(source), kind), kept)
    if kind == "markdown" and isinstance(cell.get("attachments"), dict):
        fresh.attachments = cell["attachments"]  # until `_keep_pictures` has looked at them
    # Colab keeps an id that came with the file in the metadata.
    for name in (cell.get("id"), metadata.get("id")):
        if isinstance(name, str) and re.fullmatch(r"[a-zA-Z0-9-_]{1,64}", name):
            fresh.id = name
            break
    return fresh


def within_all_source(cells: list[nbformat.NotebookNode | None]) -> list[nbformat.NotebookNode]:
    """The cells that there are. Those that make the notebook's text too long only say so."""
    kept, size = [], 0
    for cell in cells:
        if cell is not None:
            size += len(cell.source)
            if size > limits.ALL_SOURCE:
                why = f"with it, the notebook has more than {limits.ALL_SOURCE:,} characters"
                cell.source = limits.left_out(why, cell.cell_type)
            kept.append(cell)
    return kept


#: How pictures of the kinds that are kept begin, in base64.
PICTURES = {"image/png": "iVBORw0KGgo", "image/jpeg": "/9j/"}


def _keep_pictures(cells: list[nbformat.NotebookNode]) -> list[str]:
    """Keep of the attachments of cells the pictures that the text shows; a remark on those that are left out."""
    left_out, room = list[str](), limits.ALL_PICTURES
    for cell in cells:
        shown = {
            name: data for name, data in cell.pop("attachments", {}).items() if address_of(name).search(cell.source)
        }
        for name, bundle in shown.items():
            kind, data = _picture(bundle)
            if kind and len(data) <= min(limits.PICTURE, room):
                room -= len(data)
                cell.setdefault("attachments", nbformat.NotebookNode())[name] = nbformat.from_dict({kind: data})
            else:
                left_out.append(limits.printable(name))
    if not left_out:
        return []
    sizes = f"{limits.PICTURE * 3 // 4_000_000} MB each and {limits.ALL_PICTURES * 3 // 4_000_000} MB together"
    kinds = f"only PNG and JPEG pictures are shown, of at most {sizes}"
    return [f"Left out of the text: {limits.listed(left_out)}; {kinds}."]


def _picture(bundle: Any) -> tuple[str, str]:
    """The kind and the data, in base64, of an attachment that is a picture as those in PICTURES; '' if it is none."""
    for kind, start in PICTURES.items():
        data = bundle.get(kind) if isinstance(bundle, dict) else None
        data = "".join(map(str, data)) if isinstance(data, list) else data
        data = "".join(data.split()) if isinstance(data, str) else ""
        if data.startswith(start) and re.fullmatch(r"[A-Za-z0-9+/]*={0,2}", data):
            return kind, data
    return "", ""


def _with_own_ids(cells: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """These cells, each with an id of its own: the first of several keeps the one that they share."""
    known: set[str] = set()
    for cell in cells:
        if cell.id in known:
            cell.id = random_cell_id()
        known.add(cell.id)
    return cells


def new_cell(
    kind: str, source: str, metadata: dict | None = None, cell_id: str = "", pictures: dict | None = None
) -> nbformat.NotebookNode:
    """A cell as nbformat makes it. Not validated by itself, which takes long: the notebook is, when it is written.

    pictures: the attachments of a cell of text.
    """
    common = {"id": cell_id or random_cell_id(), "cell_type": kind, "metadata": metadata or {}, "source": source}
    attached = {"attachments": pictures} if pictures and kind == "markdown" else {}
    return nbformat.from_dict({**common, **PARTS[kind], **attached})


def changed_answers(before: nbformat.NotebookNode | None, now: nbformat.NotebookNode) -> list[str]:
    """What gives points for answers that are not what they were when the submission was graded before."""
    old = _written(before) if before is not None else {}
    return [name for name, texts in _written(now).items() if old.get(name) != texts]


def _written(nb: nbformat.NotebookNode) -> dict[str, list[str]]:
    """What gives points → what the student wrote for it: one cell, or for a task all cells that are nobody else's."""
    own = [_with_pictures(cell) for cell in nb.cells
           if not nbgrader_role(cell) and not outcome.of_metadata(cell).setup]  # fmt: skip
    found = {cell.id: own for cell in nb.cells if is_task(cell)}
    for cell in answer_cells(nb):
        tested = nbgrader_role(cell) == "solution"
        found[f"{cell.id}-test" if tested else cell.id] = [_with_pictures(cell)]
    return found


def _with_pictures(cell: nbformat.NotebookNode) -> str:
    return f"{cell.source}{cell.get('attachments', '')}"
