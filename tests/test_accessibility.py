"""axe-core finds nothing serious on any page of the book, in light and in dark, wide and narrow."""

from __future__ import annotations

import pytest

from tests.helpers import browser, npm

pytestmark = [pytest.mark.browser, pytest.mark.thorough]

AXE = npm.Package(
    "axe-core@4.14.1",
    "FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ==",
    "package",
    r"axe\.min\.js",
)
GRAVE = ("serious", "critical")


@pytest.fixture(scope="module")
def axe():
    with npm.or_skip():
        return (npm.get(AXE) / "axe.min.js").read_text()


def grave(page, axe):
    """What axe finds on an open page: rule and element."""
    page.evaluate(axe)
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    return [f"{one['id']}: {node['html'][:150]}" for one in found if one["impact"] in GRAVE for node in one["nodes"]]


def test_axe_sees_what_is_wrong(axe, tmp_path):
    (tmp_path / "bad.html").write_text("<html lang=en><title>t</title><main><h1>x</h1><img src='x.png'></main>")
    with browser.chromium() as started:
        page = started.new_page()
        page.goto((tmp_path / "bad.html").as_uri())
        assert [line.split(":")[0] for line in grave(page, axe)] == ["image-alt"]


@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 390)])
def test_no_page_has_a_serious_fault(book, axe, theme, width):
    # The assignments are made alike: one of them stands for all.
    pages = [*sorted((book / "book").rglob("*.html")), book / "search.html", *book.glob("notebooks/03_step/*.html")]
    faults = []
    with browser.chromium() as started:
        page = started.new_page(color_scheme=theme, viewport={"width": width, "height": 900})
        for path in pages:
            page.goto(path.as_uri())
            page.wait_for_load_state()
            faults += [f"{path.relative_to(book)}, {theme}, {width} wide: {line}" for line in grave(page, axe)]
    assert not faults, "\n".join(faults[:20])
