"""What a published book needs: descriptions of pages, addresses, a sitemap, a page for wrong addresses, a repository.

Two settings in `_config.yml` switch things on. `html_baseurl`, the address at which the book is published, gives each
page its canonical address and the preview picture, and writes `sitemap.xml`. `repository_url` puts the links to the
repository, to its issues and to an edit of the page at the top of each page, and `{{ clone }}` in a text becomes the
command that clones it. Where one is empty, what it switches on is missing, and `{{ clone }}` says so.
"""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

from docutils import nodes

#: The letters of a description that search engines show.
LONGEST = 160
PICTURE = "_static/preview.png"
BUTTONS = ("use_repository_button", "use_edit_page_button", "use_issues_button")
LOST = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="robots" content="noindex">
<title>Page not found — {title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 1.1rem/1.6 system-ui, sans-serif; margin: 15vh auto 0; max-width: 36rem; padding: 0 1rem; }}
</style>
</head>
<body>
<main>
<h1>There is no page here</h1>
<p>The address may be mistyped, or the page may have moved: since the first edition the lessons have other numbers.</p>
<p>Begin at <a data-page="index.html" href="{base}index.html">{title}</a>, or
<a data-page="search.html" href="{base}search.html">search the book</a>.</p>
</main>
<script>
// A server shows this page at any address: the book's root is what comes before the folders of the book.
const root = location.pathname.replace(/(?:(?:book|notebooks|_[a-z]+)\\/.*|[^/]*)$/, "");
if (!"{base}") for (const link of document.querySelectorAll("a")) link.setAttribute("href", root + link.dataset.page);
</script>
</body>
</html>
"""


def link_repository(app: Any, config: Any) -> None:
    """Switch the theme's links to the repository on, and say how to clone it."""
    clone = f"`git clone {config.repository_url}`" if config.repository_url else "it has no public address yet"
    config.myst_substitutions = {**config.myst_substitutions, "clone": clone}
    if config.repository_url:
        config.html_theme_options |= {"repository_url": config.repository_url, **dict.fromkeys(BUTTONS, True)}


def description(doctree: nodes.document) -> str:
    """What a page is about, in at most `LONGEST` letters: its first words, or what one can do after a chapter."""
    for paragraph in doctree.findall(nodes.paragraph):
        text = paragraph.astext()
        after = paragraph.next_node(descend=False, siblings=True)
        if isinstance(after, nodes.bullet_list) and not text.endswith("."):
            text = f"{text} {' '.join(item.astext() for item in after)}"
        text = " ".join(text.split())
        if len(text) > 40 and "effort" not in paragraph["classes"]:
            return text if len(text) <= LONGEST else text[: LONGEST - 1].rsplit(" ", 1)[0].rstrip(",;:") + "…"
    return ""


def describe(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Give a page the tags by which others show it."""
    base = _base(app)
    title = html.unescape(re.sub(r"<[^>]*>", "", context.get("title") or app.config.html_title))
    tags = {"og:title": title, "og:type": "article", "og:site_name": app.config.html_title}
    said = description(doctree) if doctree is not None else ""
    if said:
        tags |= {"description": said, "og:description": said}
    if base:
        tags |= {"og:url": base + app.builder.get_target_uri(pagename), "og:image": base + PICTURE}
    tags["twitter:card"] = "summary_large_image" if base else "summary"
    context["metatags"] = context.get("metatags", "") + "".join(_tag(name, text) for name, text in tags.items())


def _tag(name: str, text: str) -> str:
    key = "property" if name.startswith("og:") else "name"
    return f'\n<meta {key}="{name}" content="{html.escape(text)}">'


def _base(app: Any) -> str:
    """The address at which the book is published, with a slash at its end; '' if it is not set."""
    base = app.config.html_baseurl
    return base.rstrip("/") + "/" if base else ""


def write(app: Any, exception: Exception | None) -> None:
    """Write the page for wrong addresses, and the sitemap if the book has an address."""
    if exception or app.builder.name != "html":
        return
    base, out = _base(app), Path(app.outdir)
    (out / "404.html").write_text(LOST.format(base=base, title=html.escape(app.config.html_title)), encoding="utf-8")
    if base:
        pages = (base + app.builder.get_target_uri(name) for name in sorted(app.env.found_docs))
        lines = "".join(f"  <url><loc>{html.escape(page)}</loc></url>\n" for page in pages)
        around = '<?xml version="1.0" encoding="utf-8"?>\n<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">'
        (out / "sitemap.xml").write_text(f"{around}\n{lines}</urlset>\n", encoding="utf-8")


def setup(app: Any) -> dict[str, Any]:
    """Register the setting, and what it switches on."""
    app.add_config_value("repository_url", "", "html", str)
    app.connect("config-inited", link_repository, priority=100)
    app.connect("html-page-context", describe)
    app.connect("build-finished", write)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
