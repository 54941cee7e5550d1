"""What a submission may show in a browser: text, pictures, tables. Nothing that runs, nothing that is fetched.

Used for the feedback that students read and for nbgrader's formgrader page, where a script would run with the
instructor's rights.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import html
import re
import secrets
from collections.abc import Callable
from xml.etree import ElementTree

import nbformat
import nh3
from nbconvert.filters import markdown2html
from nbconvert.preprocessors import Preprocessor
from traitlets import Bool

from autograder.grade import limits
from autograder.grade.limits import well_formed
from autograder.lesson.notebook import address_of

#: The tags that stay.
TAGS = {
    "a", "abbr", "b", "blockquote", "br", "caption", "code", "dd", "del", "details", "div", "dl", "dt", "em", "h1",
    "h2", "h3", "h4", "h5", "h6", "hr", "i", "img", "kbd", "li", "ol", "p", "pre", "s", "small", "span", "strong",
    "sub", "summary", "sup", "table", "tbody", "td", "tfoot", "th", "thead", "tr", "u", "ul",
}  # fmt: skip
#: The attributes that stay. No id and no class: those are the page's own.
ATTRIBUTES = {
    "*": {"dir", "style", "title"},
    "a": {"href"},
    "img": {"alt", "height", "src", "width"},
    "td": {"colspan", "rowspan"},
    "th": {"colspan", "rowspan"},
}
BASE64 = re.compile(r"[A-Za-z0-9+/=\s]+", re.ASCII)
#: At most 1,999 pixels, or the whole width.
LENGTH = r"(1?\d{1,3}(\.\d+)?px|(\d{1,2}(\.\d+)?|100)%)"
SIZE = rf"(1?\d{{1,3}}|{LENGTH})"
#: What an attribute may say, in any case; `alt` and `title` may say anything.
VALUES = {
    "colspan": r"\d{1,3}",
    "dir": "ltr|rtl|auto",
    "height": SIZE,
    "href": r"(https?://|mailto:|#)\S*",
    "rowspan": r"\d{1,3}",
    "src": r"data:image/(png|jpeg|gif|svg\+xml);base64,[A-Za-z0-9+/= ]*",
    "width": SIZE,
}
COLOR = r"([a-z]{3,20}|#[0-9a-f]{3,8}|(rgb|hsl)a?\([0-9.,%/ ]{1,40}\))"
LINE = rf"none|([0-5]px )?(solid|dashed|dotted|double)( {COLOR})?"
#: The properties of a style that stay, with their values. None of them moves an element, hides it, gives it a height
#: that its content exceeds or grows from one element to the one inside it; none can name a file.
STYLES = {
    "background": COLOR,
    "background-color": COLOR,
    "border": LINE,
    "border-bottom": LINE,
    "border-collapse": "collapse|separate",
    "border-left": LINE,
    "border-right": LINE,
    "border-top": LINE,
    "color": COLOR,
    "font-family": r"[\w ,-]{1,100}",
    "font-size": r"(x?x-)?(small|large)|medium|([89]|[12]\d)(px|pt)",
    "font-style": "normal|italic|oblique",
    "font-weight": "normal|bold|[1-9]00",
    "max-width": LENGTH,
    "text-align": "left|center|right|justify|start|end",
    "text-decoration": "none|underline|overline|line-through",
    "vertical-align": "baseline|sub|super|top|text-top|middle|bottom|text-bottom",
    "white-space": "normal|nowrap|pre|pre-wrap|pre-line",
    "width": LENGTH,
}

#: How the address of a picture in SVG begins.
SVG_DATA = "data:image/svg+xml;base64,"

_NAMES = "|".join(sorted(TAGS))
#: The signs that are text, in three readings of the same markup. Text are those that begin no tag that stays, no
#: stylesheet and no comment; those that begin no tag that stays; all.
TEXT_SIGNS = [
    re.compile(sign, re.ASCII | re.IGNORECASE)
    for sign in (rf"<(?!/?(?:{_NAMES}|style)[ \t\n\f\r/>]|[!?])", rf"<(?!/?(?:{_NAMES})[ \t\n\f\r/>])", "<")
]
#: A parser's time grows with the square of these: the tags, and the characters that are no picture's.
MAX_TAGS, MAX_CHARACTERS = 20_000, 200_000
PICTURE = re.compile(r"base64,[A-Za-z0-9+/=\s]+")
#: Line ends and Markdown's signs as entities; one of them makes a link of a bare address.
SIGNS = {ord(sign): f"&#{ord(sign)};" for sign in "\n\r[]()*_`~\\$|:"}
#: Stands after the markup. A tag, a stylesheet or a comment that is never closed swallows it.
END = f"\u2063{secrets.token_hex(8)}"


def clean(markup: str) -> str:
    """HTML without scripts, handlers, styles that fetch, foreign pictures and links that run.

    What is not allowed but could be read stays readable: a tag that is not in TAGS, such as `<T>` or `<script>`, is
    shown as text. Only comments and stylesheets are left out, which no browser shows. Markup of more than MAX_TAGS or
    MAX_CHARACTERS is shown as text as a whole.
    """
    large = markup.count("<") > MAX_TAGS or len(PICTURE.sub("", markup)) > MAX_CHARACTERS
    for sign in TEXT_SIGNS[-1:] if large else TEXT_SIGNS:
        cleaned = _cleaner().clean(sign.sub("&lt;", markup) + END)
        if END in cleaned:
            break
    return well_formed(cleaned.replace(END, ""))


@functools.cache
def _cleaner() -> nh3.Cleaner:
    return nh3.Cleaner(
        tags=TAGS,
        attributes=ATTRIBUTES,
        attribute_filter=_attribute,
        url_schemes={"http", "https", "mailto", "data"},
    )


def _attribute(tag: str, name: str, value: str) -> str | None:
    """An attribute's value on one line, or None where it is not allowed."""
    value = " ".join(value.split())
    if name == "style":
        return _style(value)
    if name not in VALUES or _matches(VALUES[name], value):
        return value if name != "src" or not value.startswith(SVG_DATA) or is_drawable(_decoded(value)) else None
    return None


def _decoded(address: str) -> str:
    with contextlib.suppress(ValueError):
        return base64.b64decode(address.removeprefix(SVG_DATA)).decode("utf-8", "replace")
    return ""


def _style(value: str) -> str | None:
    """The declarations that STYLES allows, or None where there are none."""
    kept = []
    for declaration in value.lower().split(";"):
        name, _, wanted = (part.strip() for part in declaration.partition(":"))
        if name in STYLES and _matches(STYLES[name], wanted):
            kept.append(f"{name}: {wanted}")
    return "; ".join(kept) or None


def _matches(pattern: str, value: str) -> bool:
    return bool(re.fullmatch(pattern, value, re.ASCII | re.IGNORECASE))


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

    nbconvert's renderer lets scripts and script links through. The result is one line of HTML from its first sign to
    its last, with Markdown's signs as entities, so that a second rendering finds nothing to render: a heading, for
    instance, would get its own text as its id.
    """
    source = source.replace("attachment:", "#")  # of what is not kept, at which nbconvert stops
    return f"<div>{clean(markdown2html(source).strip()).translate(SIGNS)}</div>"


def _with_pictures(source: str, pictures: dict[str, dict[str, str]]) -> str:
    """Markdown with the data of its attached pictures in place of their names, of each one once."""
    for name, bundle in pictures.items():
        kind, data = next(iter(bundle.items()))
        source = address_of(name).sub(f"data:{kind};base64,{data}".replace("\\", ""), source, count=1)
    return source


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
        if not is_drawable(value):
            return "<p>(A picture in SVG is left out: it has too many parts, or of a kind that takes long to draw.)</p>"
        coded = base64.b64encode(value.encode("utf-8", "replace")).decode()
        return f'<img alt="figure" src="{SVG_DATA}{coded}">'
    return ""


#: What a picture in SVG may have in it: what matplotlib writes, and other plain shapes. A filter, a mask, a pattern or
#: a `use` in a `use` can make a browser draw for minutes.
SHAPES = {
    "circle", "clipPath", "defs", "desc", "ellipse", "g", "image", "line", "linearGradient", "metadata", "path",
    "polygon", "polyline", "radialGradient", "rect", "stop", "style", "svg", "text", "title", "tspan", "use",
}  # fmt: skip
SLOW_STYLE = re.compile(r"filter|mask|animat|transition|@|url\s*\(\s*['\"]?[^#'\")]", re.IGNORECASE)


def is_drawable(picture: str) -> bool:
    """Is this SVG of few enough elements, all of them in SHAPES? What a `use` draws once more counts once more."""
    if "<!ENTITY" in picture or len(picture) > limits.CELL_OUTPUT:
        return False
    try:
        root = ElementTree.fromstring(picture)
    except (ElementTree.ParseError, ValueError):
        return False
    sizes: dict[str, int] = {}
    count, uses = 0, list[str]()
    for element in root.iter():
        count += 1
        kind = str(element.tag).rpartition("}")[2]
        if kind == "use":
            uses.append(next((value for name, value in element.attrib.items() if name.endswith("href")), "")[1:])
        style = f"{element.get('style', '')} {element.text if kind == 'style' else ''}"
        if SLOW_STYLE.search(style) or any(name in element.attrib for name in ("filter", "mask")):
            return False
        if name := element.get("id"):
            inside = [str(one.tag).rpartition("}")[2] for one in element.iter()] if count < limits.SVG else []
            count += len(inside)  # the work of looking
            sizes[name] = limits.SVG if "use" in inside else len(inside)
    described = {one for top in root.iter() if str(top.tag).endswith("}metadata") for one in top.iter()}
    known = all(str(one.tag).rpartition("}")[2] in SHAPES for one in root.iter() if one not in described)
    return known and count + sum(sizes.get(name, 0) for name in uses) < limits.SVG


class SafeCells(Preprocessor):
    """Makes a notebook safe to show; a preprocessor of the HTML exporters."""

    enabled = Bool(True).tag(config=True)

    def preprocess_cell(
        self, cell: nbformat.NotebookNode, resources: dict, index: int
    ) -> tuple[nbformat.NotebookNode, dict]:
        """One cell with harmless source and outputs."""
        pictures = cell.pop("attachments", {})
        if cell.cell_type == "markdown":
            cell.source = markdown(_with_pictures(cell.source, pictures))
        elif cell.cell_type == "raw":
            cell.source = html.escape(cell.source)
        else:
            cell.outputs = outputs(cell.outputs)
        return cell, resources
