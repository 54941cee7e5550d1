"""The built book in Firefox: nothing fails, nothing sticks out, formulas are drawn, and keys move every figure."""

from __future__ import annotations

import pytest

from tests.book.test_book import BAD_IMAGES, BAD_MATH, CUT_CODE, OVERFLOW
from tests.book.test_figures import live_figure
from tests.helpers import firefox, npm
from tests.helpers.browser import pages

pytestmark = pytest.mark.firefox

#: What Firefox reports of a formula, also of one of which it has read only a part when it first draws the page.
HALF_READ = "Invalid markup: Incorrect number of children for <"
#: The same, asked of the page when it has been read to its end.
CHILDREN = """[...document.querySelectorAll('mfrac, mroot, msub, msup, mover, munder, msubsup, munderover')]
  .filter(e => e.children.length !== (['msubsup', 'munderover'].includes(e.localName) ? 3 : 2))
  .map(e => e.outerHTML.slice(0, 120))"""

ASK = {"formulas": BAD_MATH, "children": CHILDREN, "pictures": BAD_IMAGES, "wide": OVERFLOW}


@pytest.mark.thorough
def test_firefox_sees_what_goes_wrong(tmp_path):
    """The tests below would pass on anything if this one did not."""
    page = tmp_path / "page.html"
    page.write_text(
        "<script>console.error('said so'); setTimeout(undefined_function)</script><script>undefined_function()</script>"
        '<div style="width: 2000px">wide</div><span class="math"><math></math></span>'
        '<math><msup><mi>x</mi></msup></math><img src="no.png" alt="nothing">'
    )
    with npm.or_skip():
        found = firefox.visit([page], 390, ASK)[page]
    assert "said so" in found["errors"] and any("undefined_function" in error for error in found["errors"])
    assert all(found[name] for name in ASK), found


@pytest.mark.parametrize("width", [1440, 1100])
def test_every_page_works_in_firefox(book, width):
    ask = ASK | ({"cut": CUT_CODE} if width == 1440 else {})
    problems, moved = [], set()
    lessons = [page for page in pages(book) if page.name not in ("search.html", "genindex.html")]
    with npm.or_skip():
        visited = firefox.visit(lessons, width, ask)
    for page, found in visited.items():
        name = page.relative_to(book)
        found["cut"] = found.get("cut", []) if name.parts[0] == "notebooks" else []
        found["errors"] = [error for error in found["errors"] if not error.startswith(HALF_READ)]
        problems += [f"{name}: {kind}: {what}" for kind in ("errors", *ask) for what in found[kind]]
        for figure in found["figures"]:
            (step, says), (first, says_first) = figure["end"], figure["home"]
            last = step.split(" / ")[1]
            if step != f"{last} / {last}" or first != f"0 / {last}" or says == says_first:
                problems.append(f"{name}: {figure}")
            moved.add(figure["name"])
    assert not problems, "\n".join(problems)
    assert moved == {f"figure-{file.stem}" for file in live_figure.FIGURES.glob("*.js")} - {"figure-stepper"}
