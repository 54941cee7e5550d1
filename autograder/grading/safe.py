"""What a submission may show in a browser: text, pictures, tables. Nothing that runs, nothing that is fetched.

Used for the feedback that students read and for nbgrader's formgrader page, where a script would run with the
instructor's rights.
"""

from __future__ import annotations

import base64
import functools
import html
import re
from collections.abc import Callable

import bleach
import nbformat
from bleach.css_sanitizer import CSSSanitizer
from nbconvert.filters import markdown2html
from nbconvert.preprocessors import Preprocessor
from traitlets import Bool

TAGS = frozenset(
    (
        "a",
        "abbr",
        "b",
        "blockquote",
        "br",
        "caption",
        "code",
        "dd",
        "del",
        "details",
        "div",
        "dl",
        "dt",
        "em",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "hr",
        "i",
        "img",
        "kbd",
        "li",
        "ol",
        "p",
        "pre",
        "s",
        "small",
        "span",
        "strong",
        "sub",
        "summary",
        "sup",
        "table",
        "tbody",
        "td",
        "tfoot",
        "th",
        "thead",
        "tr",
        "u",
        "ul",
    )
)
PICTURE = re.compile(r"data:image/(png|jpeg|gif|svg\+xml);base64,[A-Za-z0-9+/=\s]*")
LINK = re.compile(r"(https?://|mailto:|#)[^\s]*", re.IGNORECASE)
SIZE = re.compile(r"\d{1,4}(px|%)?")
BASE64 = re.compile(r"[A-Za-z0-9+/=\s]+")


def clean(markup: str) -> str:
    """HTML without scripts, handlers, styles that fetch, foreign pictures and links that run."""
    return bleach.clean(
        markup,
        tags=TAGS,
        attributes=_allowed,
        protocols={"http", "https", "mailto", "data"},
        css_sanitizer=CSSSanitizer(),
    )


def _allowed(tag: str, name: str, value: str) -> bool:
    if tag == "img":
        return bool(
            (name == "src" and PICTURE.fullmatch(value))
            or (name in ("width", "height") and SIZE.fullmatch(value))
            or name in ("alt", "title")
        )
    if tag == "a":
        return name == "title" or (name == "href" and bool(LINK.fullmatch(value)))
    if tag in ("td", "th") and name in ("colspan", "rowspan"):
        return value.isdigit() and int(value) <= 1000
    return name in ("style", "title", "dir")


def once(render: Callable[[str], str]) -> Callable[[str], str]:
    """Render a text once: most are the lesson's own, which all students' notebooks have. Long ones are not kept."""
    kept = functools.lru_cache(1000)(render)

    @functools.wraps(render)
    def rendered(source: str) -> str:
        return kept(source) if len(source) < 20_000 else render(source)

    return rendered


@once
def markdown(source: str) -> str:
    """Markdown as clean HTML, which is Markdown too and may be rendered once more.

    nbconvert's renderer lets scripts and script links through. Brackets are written as entities, so that a
    second rendering finds no link in the text.
    """
    source = source.replace("attachment:", "#")  # attachments are not kept, and nbconvert stops at a missing one
    return clean(markdown2html(source)).replace("[", "&#91;").replace("]", "&#93;")


def outputs(found: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """Outputs with data that can only be looked at: clean HTML, pictures, plain text."""
    kept = []
    for output in found:
        if output.output_type in ("display_data", "execute_result"):
            data = {}
            for kind, value in output.data.items():
                safe = _data(kind, value)
                if safe:
                    data["text/html" if kind == "image/svg+xml" else kind] = safe
            output = nbformat.v4.new_output("display_data", data=data)
        kept.append(output)
    return kept


def _data(kind: str, value: object) -> str:
    if not isinstance(value, str):
        return ""
    if kind == "text/plain":
        return value
    if kind == "text/html":
        return clean(value)
    if kind in ("image/png", "image/jpeg"):
        return value if BASE64.fullmatch(value) else ""
    if kind == "image/svg+xml":  # a picture in an <img> runs no script and fetches nothing
        coded = base64.b64encode(value.encode()).decode()
        return f'<img alt="figure" src="data:image/svg+xml;base64,{coded}">'
    return ""


class SafeCells(Preprocessor):
    """Makes a notebook safe to show; a preprocessor of the HTML exporters."""

    enabled = Bool(True).tag(config=True)

    def preprocess_cell(
        self, cell: nbformat.NotebookNode, resources: dict, index: int
    ) -> tuple[nbformat.NotebookNode, dict]:
        """One cell with harmless source and outputs."""
        cell.pop("attachments", None)
        if cell.cell_type == "markdown":
            cell.source = markdown(cell.source)
        elif cell.cell_type == "raw":
            cell.source = html.escape(cell.source)
        else:
            cell.outputs = outputs(cell.outputs)
        return cell, resources
