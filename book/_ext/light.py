"""Gives the pages their colors before they are first painted, and takes out what none of them needs.

The theme has two sets of colors, `light` and `dark`. It writes neither into a page but `auto`, and its last script
decides: until that one has run, or forever without scripts, a page has no colors at all
(https://github.com/pydata/pydata-sphinx-theme/issues/1857). Here a page is light when it comes, and the theme's first
script, in the head, decides by what the reader has chosen, or else by the reader's system.

The theme brings all icons of Font Awesome, as a script of 1.5 MB and in its style sheet. The book uses some twenty: of
the theme's font only these are kept, within the style sheet, and the script goes. What searches as one types, which is
switched off, is loaded by the search page alone. Three tags that say the same of the viewport become one.
"""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path
from typing import Any

from fontTools import subset
from fontTools.ttLib import TTFont
from written import pages

SCRIPT = re.compile(r'\s*<script defer src="[^"]*scripts/fontawesome\.js[^"]*"></script>')
SEARCH = re.compile(r'\s*<script src="[^"]*(?:searchtools|language_data|searchindex)\.js[^"]*"></script>')
VIEWPORT = re.compile(r'<meta name="viewport"[^>]*>')

WRITTEN = re.compile(r'(<html\b[^>]*) data-theme="auto"')
#: The theme's script in the head, and what decides in its place.
DECIDED = re.compile(r'document\.documentElement\.dataset\.theme = localStorage\.getItem\("theme"\) \|\| "[^"]*";')
DECIDES = """(({ dataset }) => {
      const dark = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
      dataset.theme = ["light", "dark"].includes(dataset.mode) ? dataset.mode : dark;
    })(document.documentElement);"""

FACE = re.compile(r"@font-face\{[^}]*Font Awesome[^}]*\}")
#: The rules that give icons their signs.
RULE = re.compile(r'((?:\.fa-[a-z0-9-]+:before,?)+)\{content:"[^"]*"\}')
#: A sign of an icon in a style sheet, as it is or as its number.
SIGN = re.compile("([\ue000-\uf8ff])|\\\\(f[0-9a-f]{3})")
FONTS = {"fa-solid-900": ("Font Awesome\\ 6 Free", 900), "fa-brands-400": ("Font Awesome\\ 6 Brands", 400)}


def lighter(html: str, searches: bool) -> str:
    """A page with its colors, and without what it does not need. searches: whether it is the search page."""
    html = DECIDED.sub(DECIDES, WRITTEN.sub(r'\1 data-theme="light"', SCRIPT.sub("", html)))
    if not searches:
        html = SEARCH.sub("", html)
    first = VIEWPORT.search(html)
    if first:
        html = html[: first.end()] + VIEWPORT.sub("", html[first.end() :])
    return html


def icons(css: str, used: set[str], folder: Path) -> str:
    """The theme's style sheet with the icons that are used, and their fonts in it."""

    def kept(rule: re.Match[str]) -> str:
        return rule[0] if used & set(re.findall(r"\.(fa-[a-z0-9-]+):", rule[1])) else ""

    css = FACE.sub("", RULE.sub(kept, css))
    signs = {ord(sign) if sign else int(number, 16) for sign, number in SIGN.findall(css)}
    return css + "".join(_face(folder / f"{file}.ttf", *FONTS[file], signs) for file in FONTS)


def _face(path: Path, family: str, weight: int, signs: set[int]) -> str:
    """The rule that brings the signs of one of the theme's fonts; '' if it has none of them."""
    font = TTFont(path)
    wanted = signs & set(font.getBestCmap())
    if not wanted:
        return ""
    cut = subset.Subsetter()
    cut.populate(unicodes=wanted)
    cut.subset(font)
    font.flavor, packed = "woff", io.BytesIO()
    font.save(packed)
    source = f"url(data:font/woff;base64,{base64.b64encode(packed.getvalue()).decode()})"
    return f"@font-face{{font-family:{family};font-weight:{weight};font-display:block;src:{source}}}"


def lighten(app: Any, exception: Exception | None) -> None:
    """Change the pages and the theme's style sheet."""
    written = pages(app, exception)
    if not written:
        return
    out = Path(app.outdir)
    used: set[str] = set()
    for page in written:
        html = lighter(page.read_text(encoding="utf-8"), page.name == "search.html")
        page.write_text(html, encoding="utf-8")
        used.update(re.findall(r"\bfa-[a-z0-9-]+", html))
    for script in (out / "_static" / "scripts").glob("*.js"):
        if script.name == "fontawesome.js":
            script.unlink()
        else:
            used.update(re.findall(r"\bfa-[a-z0-9-]+", script.read_text(encoding="utf-8")))
    theme = out / "_static" / "styles" / "pydata-sphinx-theme.css"
    css = theme.read_text(encoding="utf-8")
    if FACE.search(css):
        fonts = out / "_static" / "vendor" / "fontawesome" / "webfonts"
        theme.write_text(icons(css, used, fonts), encoding="utf-8")


def setup(app: Any) -> dict[str, Any]:
    """Change them at the end of the build, after all others."""
    app.connect("build-finished", lighten, priority=900)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
