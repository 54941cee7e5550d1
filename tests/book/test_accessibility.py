"""What a reader needs to see: axe-core finds nothing serious on any page, and the texts of figures can be read."""

from __future__ import annotations

import pytest

import ranks
from ranks.figure import LEGIBLE
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


#: The texts of a page's figures that are cut off at an edge of their picture or smaller than a number of points.
#: matplotlib draws a text as a group of glyphs, scaled to a hundredth of its points, with the words in a comment.
TEXTS = """least => {
    const found = [];
    const say = (picture, text, fault) => found.push(`${fault}: "${text.trim()}" in: ${picture.slice(0, 60)}`);
    const cut = (text, frame) => {
        const box = text.getBoundingClientRect();
        return box.width && (box.left < frame.left - 1 || box.right > frame.right + 1
            || box.top < frame.top - 1 || box.bottom > frame.bottom + 1);
    };
    for (const image of document.querySelectorAll("img[src^='data:image/svg']")) {
        const source = new TextDecoder().decode(Uint8Array.from(atob(image.src.split(",")[1]), c => c.charCodeAt(0)));
        const svg = document.importNode(new DOMParser().parseFromString(source, "image/svg+xml").documentElement, true);
        document.body.append(svg);
        for (const text of svg.querySelectorAll("g[id^='text_']")) {
            const words = [...text.childNodes].find(node => node.nodeType === Node.COMMENT_NODE)?.data || text.id;
            if (cut(text, svg.getBoundingClientRect())) say(image.alt, words, "cut off");
            const scale = text.innerHTML.match(/scale\\((-?[\\d.]+)/);
            if (scale && 100 * scale[1] < least) say(image.alt, words, `${100 * scale[1]} points`);
        }
        svg.remove();
    }
    for (const svg of document.querySelectorAll("svg:has(text)")) {
        const label = svg.closest("[aria-label]")?.ariaLabel || svg.closest("figure")?.innerText || "";
        for (const text of svg.querySelectorAll("text"))
            if (cut(text, svg.getBoundingClientRect())) say(label, text.textContent, "cut off");
    }
    return found;
}"""


def test_a_cut_title_and_a_small_label_are_seen(tmp_path):
    fig = ranks.Figure(alt="Two faults")
    fig.text(0.7, 0.5, "begins on the right and does not fit")
    good = ranks.Figure(alt="Small, and made legible")
    good.subplots().set_title("fits", fontsize=5)
    (tmp_path / "page.html").write_text(
        f"{fig._repr_html_()}{good._repr_html_()}<svg width=50><text x=40>longer</text></svg>"
    )
    with browser.chromium() as started:
        page = started.new_page()
        page.goto((tmp_path / "page.html").as_uri())
        assert [line.split('"')[:2] for line in page.evaluate(TEXTS, LEGIBLE)] == [
            ["cut off: ", "begins on the right and does not fit"], ["cut off: ", "longer"]
        ]  # fmt: skip
        small = [line for line in page.evaluate(TEXTS, LEGIBLE + 1) if "points" in line]
        assert len(small) == 1 and small[0].startswith('9 points: "fits"')


def test_the_texts_of_all_figures_can_be_read(book):
    faults = []
    with browser.chromium() as started:
        page = started.new_page(viewport={"width": 1280, "height": 900})
        for path in sorted((book / "book").rglob("*.html")):
            page.goto(path.as_uri())
            page.wait_for_load_state()
            faults += [f"{path.stem}: {line}" for line in page.evaluate(TEXTS, LEGIBLE)]
    assert not faults, "\n".join(faults)
