"""The `live-figure` directive: a figure that the reader moves, with a question before it and a still for paper.

A chapter writes a figure like this::

    :::{live-figure} ring
    :ask: After how many rounds do you expect the first finished chunk?
    :settings: ranks=4

    After three rounds each rank holds one finished chunk, as the theorem says …
    :::

The name after `{live-figure}` belongs to three files in `book/figures/`. `ring.js` registers the element
`<figure-ring>` (`stepper.js` says how). `ring.css` says how it looks. `ring.py` has a function `still()`, which returns
the picture for paper and for readers without scripts: SVG, made from the same data as in Python, and its text
alternative; its `CAPTION` stands below the figure, after the figure's number (`figure_numbers.py`). If it also has a
function `data()`, the element carries the JSON that this one returns, such as a recorded run. `:ask:` is what readers
should ask themselves before they play; the body is what there is to discover afterwards; math and links work in both.
`:settings:` are the settings that the figure starts with. With `:alone:` a figure needs neither question nor body, and
runs once by itself.

A picture that never moves needs only `NAME.py`, and the arguments that its `still` takes::

    :::{drawn-figure} two_nodes group=3,11
    :caption: In the place of the module's.
    :::

A page loads only the scripts of its own figures. A picture that carries the ledger of its run, as
`results.timeline()` does, gets the player of `ledger.js` below it. A figure without a question or a body, or whose
files are missing, causes a warning, which stops the build.
"""

from __future__ import annotations

import functools
import html
import importlib.util
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import Directive, directives
from sphinx.util.fileutil import copy_asset

FIGURES = Path(__file__).resolve().parent.parent / "figures"

#: What every page with a figure loads, in this order, before the figures' own scripts.
BASE = ("vendor/preact-htm.js", "stepper.js")
#: The sign by which a page shows that it holds a picture with the ledger of its run.
LEDGER = "data-ledger="


class LiveFigure(Directive):
    """See the module's docstring."""

    has_content = True
    required_arguments = 1
    option_spec: ClassVar = {
        "ask": directives.unchanged_required,
        "settings": directives.unchanged,
        "alone": directives.flag,
    }

    def run(self) -> list[nodes.Node]:
        """The question, the element with its still, and what there is to discover, in one container."""
        name = self.arguments[0]
        files = [FIGURES / f"{name}.{kind}" for kind in ("js", "css", "py")]
        missing = [path.name for path in files if not path.is_file()]
        alone = "alone" in self.options
        if missing or not (alone or ("ask" in self.options and self.content)):
            problem = f"there is no book/figures/{missing[0]}" if missing else "it needs :ask: and a body"
            return [self.state_machine.reporter.warning(f"live-figure {name}: {problem}", line=self.lineno)]
        settings = self.options.get("settings", "") + (" playing" if alone else "")
        element = nodes.raw("", _element(name, settings), format="html")
        if alone:
            return [nodes.container("", element, classes=["live-figure"])]
        element["caption"] = module(name).CAPTION
        asked, messages = self.state.inline_text(self.options["ask"], self.lineno)
        question = nodes.paragraph("", "", *asked, classes=["live-ask"])
        found = nodes.container(classes=["live-found"])
        self.state.nested_parse(self.content, self.content_offset, found)
        return [nodes.container("", question, element, found, classes=["live-figure"]), *messages]


class DrawnFigure(Directive):
    """See the module's docstring."""

    required_arguments = 1
    final_argument_whitespace = True
    option_spec: ClassVar = {"caption": directives.unchanged_required}

    def run(self) -> list[nodes.Node]:
        """The picture, with the caption that `figure_numbers` writes below it."""
        name, *settings = self.arguments[0].split()
        try:
            picture, alt = module(name).still(**dict(pair.split("=", 1) for pair in settings))
        except (OSError, TypeError, ValueError) as error:
            return [self.state_machine.reporter.warning(f"drawn-figure {name}: {error}", line=self.lineno)]
        drawn = nodes.raw("", f'<div class="live-still">{_described(picture, alt)}</div>', format="html")
        drawn["caption"] = self.options.get("caption", module(name).CAPTION)
        return [drawn]


def _described(picture: str, alt: str) -> str:
    """A picture with its text alternative."""
    return picture.replace("<svg ", f'<svg role="img" aria-label="{html.escape(alt)}" ', 1)


def _element(name: str, settings: str) -> str:
    """The figure's element, with its data if it has some, and its still."""
    figure = module(name)
    picture, alt = figure.still()
    given = dict(pair.partition("=")[::2] for pair in settings.split())
    if hasattr(figure, "data"):
        given["data-recorded"] = figure.data()
    attributes = "".join(f' {key}="{html.escape(value)}"' for key, value in given.items())
    return f'<figure-{name}{attributes}></figure-{name}>\n<div class="live-still">{_described(picture, alt)}</div>'


@functools.cache
def module(name: str) -> Any:
    """`book/figures/NAME.py`, imported once."""
    spec = importlib.util.spec_from_file_location(f"figure_{name}", FIGURES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def _copy(app: Any) -> None:
    """The scripts and their styles go next to the pages."""
    if app.builder.format == "html":
        copy_asset(
            FIGURES, Path(app.outdir) / "_static" / "figures", excluded=lambda path: path.endswith((".py", ".pyc"))
        )


def _load(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Give a page the scripts of its figures, and no others."""
    body = context.get("body") or ""
    names = [path.stem for path in sorted(FIGURES.glob("*.js")) if f"<figure-{path.stem}" in body]
    names += ["ledger"] if LEDGER in body else []
    if names or "live-still" in body:
        for style in ("figures.css", *(f"{name}.css" for name in names)):
            app.add_css_file(f"figures/{style}")
    if names:
        for script in (*BASE, *(f"{name}.js" for name in names)):
            app.add_js_file(f"figures/{script}", loading_method="defer")


def setup(app: Any) -> dict[str, Any]:
    """Register the directives, and what puts their scripts into pages."""
    app.add_directive("live-figure", LiveFigure)
    app.add_directive("drawn-figure", DrawnFigure)
    app.connect("builder-inited", _copy)
    app.connect("html-page-context", _load)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
