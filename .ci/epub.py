"""Write the built book as an EPUB: `make epub`.

    python .ci/epub.py _build/html _build/book.epub

One file a page, with its formulas as MathML, its pictures, and the font of the formulas. Figures that move are still
pictures, and what is folded on a page is open. Follows EPUB 3.3 (https://www.w3.org/TR/epub-33/).
"""

from __future__ import annotations

import base64
import html as escaping
import mimetypes
import re
import sys
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote, urlparse

import articles
import yaml
from bs4 import Tag

IDENTIFIER = "urn:uuid:6f0d2c5e-0d0b-4f4e-9a55-6d1c7a7c2e11"
FONT = articles.ROOT / "book" / "_vendor" / "stix" / "stix-two-math-subset.woff2"
#: SVG's names with capitals, which a parser of HTML has made small. XML tells them apart, and a reader drops what it
#: does not know: without its viewBox a picture is cut.
SVG_NAMES = """viewBox preserveAspectRatio linearGradient radialGradient gradientUnits gradientTransform spreadMethod
    clipPath clipPathUnits maskUnits patternUnits patternTransform markerWidth markerHeight markerUnits refX refY
    pathLength textPath textLength lengthAdjust startOffset foreignObject"""
CAPITALS = {name.lower(): name for name in SVG_NAMES.split()}
CONTAINER = """<?xml version="1.0"?>
<container version="1.0" xmlns="urn:oasis:names:tc:opendocument:xmlns:container">
  <rootfiles><rootfile full-path="content.opf" media-type="application/oebps-package+xml"/></rootfiles>
</container>
"""
STYLE = """@font-face { font-family: "STIX Two Math"; src: url("math.woff2"); }
:root { --rank-0: #0072b2; --rank-1: #e69f00; --rank-2: #009e73; --rank-3: #cc79a7; --rank-4: #56b4e9;
  --rank-5: #d55e00; --rank-6: #f0e442; --rank-7: #666666; }
math { font-family: "STIX Two Math", math; }
div.math { margin: 1em 0; }
.eqno { float: right; }
pre { font-size: 0.8em; white-space: pre-wrap; overflow-wrap: anywhere; border-left: 3px solid; padding-left: 0.6em; }
table { border-collapse: collapse; font-size: 0.9em; }
th, td { border-bottom: 1px solid; padding: 0.2em 0.5em; text-align: left; vertical-align: top; }
img, svg { max-width: 100%; height: auto; }
.theorem, .lemma, .corollary, .quiz, details { border-left: 3px solid; margin: 1em 0; padding-left: 0.8em; }
summary, .live-ask { font-weight: bold; }
.still-title, .still-label { fill: currentcolor; font: 12px sans-serif; }
.still-label { font-size: 11px; }
.still-title { font-weight: 600; }
.still-box { fill: none; opacity: 0.5; stroke: currentcolor; }
.still-done { opacity: 1; stroke-width: 2.5; }
"""


def file_of(page: str) -> str:
    """The name of a page's file: book-05_ddp.xhtml."""
    return page.replace("/", "-") + ".xhtml"


def xhtml(title: str, body: str) -> str:
    """A document of the book."""
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n<!DOCTYPE html>\n'
        '<html xmlns="http://www.w3.org/1999/xhtml" xmlns:epub="http://www.idpf.org/2007/ops" lang="en" xml:lang="en">'
        f'<head><title>{escaping.escape(title)}</title><link rel="stylesheet" type="text/css" href="book.css"/></head>'
        f"<body>{body}</body></html>\n"
    )


def picture(source: str) -> tuple[str, bytes]:
    """(ending, bytes) of the picture at an address: a file, or data in the page."""
    if source.startswith("data:"):
        kind, text = source.removeprefix("data:").split(",", 1)
        ending = mimetypes.guess_extension(kind.split(";")[0]) or ".bin"
        data = base64.b64decode(text) if kind.endswith(";base64") else unquote(text).encode()
    else:
        path = Path(unquote(urlparse(source).path))
        ending, data = path.suffix, path.read_bytes()
    return ending, for_readers(data) if ending == ".svg" else data


def for_readers(svg: bytes) -> bytes:
    """A picture as stores and readers take it.

    Matplotlib names a DTD on another server, and draws a space as a path without its `d`.
    """
    svg = re.sub(rb"<!DOCTYPE[^>\[]*>\s*", b"", svg)
    return re.sub(rb"<path(?![^>]*\sd=)", b'<path d="M0 0"', svg)


def cleaned(article: Tag, pictures: dict[str, bytes]) -> str:
    """An article as XHTML. Its pictures go into `pictures`: name → bytes."""
    for tag in article.find_all("math"):
        tag["xmlns"] = "http://www.w3.org/1998/Math/MathML"
    for tag in article.find_all("svg"):
        tag["xmlns"] = "http://www.w3.org/2000/svg"
        for part in [tag, *tag.find_all(True)]:
            part.name = CAPITALS.get(part.name, part.name)
            part.attrs = {CAPITALS.get(name, name): value for name, value in part.attrs.items()}
    for tag in article.select('[role^="doc-"]'):
        del tag["role"]
    for tag in article.select("img[src]"):
        ending, data = picture(tag["src"])
        tag["src"] = f"picture-{len(pictures)}{ending}"
        pictures[tag["src"]] = data
    for tag in article.find_all(True):
        for name in [name for name in tag.attrs if name.startswith("data-") or name in ("align", "loading")]:
            del tag[name]
    return article.decode_contents(formatter="minimal")


def package(title: str, author: str, files: dict[str, bytes], spine: list[str]) -> str:
    """The list of what is in the EPUB, and the order of its pages."""
    items = []
    for number, (name, data) in enumerate(files.items()):
        kind = {".xhtml": "application/xhtml+xml", ".woff2": "font/woff2"}.get(Path(name).suffix)
        kind = kind or mimetypes.guess_type(name)[0]
        says = [
            word
            for word, sign in (("mathml", b"<math"), ("svg", b"<svg"))
            if kind.endswith("xhtml+xml") and sign in data
        ]
        says += ["nav"] if name == "nav.xhtml" else []
        properties = f' properties="{" ".join(says)}"' if says else ""
        items.append(f'<item id="i{number}" href="{name}" media-type="{kind}"{properties}/>')
    order = list(files)
    refs = "".join(f'<itemref idref="i{order.index(name)}"/>' for name in spine)
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n'
        '<package xmlns="http://www.idpf.org/2007/opf" version="3.0" unique-identifier="id" xml:lang="en">'
        f'<metadata xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:identifier id="id">{IDENTIFIER}</dc:identifier>'
        f"<dc:title>{escaping.escape(title)}</dc:title><dc:language>en</dc:language>"
        f"<dc:creator>{escaping.escape(author)}</dc:creator><dc:rights>CC BY 4.0, code: MIT</dc:rights>"
        f'<meta property="dcterms:modified">{now}</meta></metadata>'
        f"<manifest>{''.join(items)}</manifest><spine>{refs}</spine></package>\n"
    )


def contents(found: dict[str, Tag]) -> str:
    """The contents, as the EPUB's own page and as what readers show as such."""
    parts = []
    for caption, pages in articles.contents():
        lines = ((file_of(page), escaping.escape(articles.heading(page, found[page]))) for page in pages)
        items = "".join(f'<li><a href="{name}">{heading}</a></li>' for name, heading in lines)
        parts.append(f"<li><span>{caption}</span><ol>{items}</ol></li>")
    return f'<nav epub:type="toc"><h1>Contents</h1><ol>{"".join(parts)}</ol></nav>'


def main(arguments: list[str]) -> int:
    """Write the EPUB; the exit status."""
    html, epub = (Path(argument).resolve() for argument in arguments)
    settings = yaml.safe_load((articles.ROOT / "_config.yml").read_text(encoding="utf-8"))
    found = articles.articles(
        html,
        lambda page, anchor: f"{file_of(page)}#{anchor}" if anchor else file_of(page),
        lambda page, anchor: anchor,
    )
    pictures: dict[str, bytes] = {}
    files = {"nav.xhtml": xhtml(settings["title"], contents(found)).encode()}
    for page, article in found.items():
        heading = articles.heading(page, article)
        files[file_of(page)] = xhtml(heading, cleaned(article, pictures)).encode()
    spine = list(files)
    files |= {"book.css": STYLE.encode(), "math.woff2": FONT.read_bytes()} | pictures
    new = epub.with_suffix(".new")
    with zipfile.ZipFile(new, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("mimetype", "application/epub+zip", zipfile.ZIP_STORED)
        archive.writestr("META-INF/container.xml", CONTAINER)
        archive.writestr("content.opf", package(settings["title"], settings["author"], files, spine))
        for name, data in files.items():
            archive.writestr(name, data)
    new.rename(epub)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
