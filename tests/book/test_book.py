"""The built book, as a reader has it: opened from disk, with the network off, in a real browser."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
import pytest
from bs4 import BeautifulSoup

from autograder.author import drafts
from autograder.lesson import notebook
from tests.helpers.browser import Tab, pages
from tests.helpers.notebook_regions import split

ROOT = Path(__file__).resolve().parents[2]

#: A shorter line of code ("return total") says nothing about where it comes from.
TELLING = 25
#: A line that any chapter may have and that says nothing of an answer.
SEED = re.compile(r"rng = np\.random\.default_rng\(\d*\)")


def soup(page: Path) -> BeautifulSoup:
    return BeautifulSoup(page.read_text(), "html.parser")


def chapters(book: Path) -> list[Path]:
    """The pages of the lessons' chapters."""
    return [book / "book" / f"{lesson}.html" for lesson in notebook.lessons()]


# In the browser


@pytest.mark.browser
def test_the_browser_sees_what_goes_wrong(chromium, tmp_path):
    """The tests below would pass on anything if this one did not."""
    page = tmp_path / "page.html"
    page.write_text(
        '<img src="https://example.org/a.png"><script>undefined_function()</script>'
        '<script>console.error("said so")</script><div style="width: 2000px">wide</div>'
    )
    tab = Tab(chromium, 390, 844)
    tab.open(page.as_uri())
    assert tab.outside == ["https://example.org/a.png"]
    assert any("undefined_function" in error for error in tab.errors)
    assert "said so" in tab.errors
    assert tab.evaluate(OVERFLOW)


#: What is wider than the window, unless it scrolls inside something.
OVERFLOW = """(() => {
  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth <= width) return [];
  const scrolls = e => e && (getComputedStyle(e).overflowX !== 'visible' || scrolls(e.parentElement));
  return [...document.body.querySelectorAll('*')]
    .filter(e => e.getBoundingClientRect().right > width + 1 && !scrolls(e.parentElement))
    .slice(0, 5).map(e => e.outerHTML.slice(0, 120)).concat(['the page is wider than the window']);
})()"""

#: Formulas that were not drawn, or drawn as an error.
BAD_MATH = """[...document.querySelectorAll('.math')]
  .filter(e => !e.querySelector('math')?.getBoundingClientRect().width)
  .concat([...document.querySelectorAll('.temml-error, merror')]).map(e => e.textContent.slice(0, 80))"""

BAD_IMAGES = """[...document.querySelectorAll('img')]
  .filter(e => !(e.alt || '').trim() || (e.loading !== 'lazy' && !e.naturalWidth)).map(e => e.src.slice(0, 80))"""

NAMELESS = """[...document.querySelectorAll('button, a[href]')].filter(e => e.offsetParent &&
  !(e.textContent.trim() || e.getAttribute('aria-label') || e.title || e.dataset.bsTitle
    || e.querySelector('img[alt], svg title')))
  .map(e => e.outerHTML.slice(0, 120))"""


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 390])
def test_every_page_works_with_the_network_off(chromium, book, width):
    problems = []
    formulas = 0
    tab = Tab(chromium, width)
    for page in pages(book):
        name = page.relative_to(book)
        tab.open(page.as_uri())
        problems += [f"{name} asks for {url}" for url in tab.outside]
        problems += [f"{name}: {error}" for error in tab.errors]
        problems += [f"{name}: a formula is not drawn: {text}" for text in tab.evaluate(BAD_MATH)]
        problems += [f"{name}: no text alternative, or no picture: {src}" for src in tab.evaluate(BAD_IMAGES)]
        problems += [f"{name}: a control without a name: {html}" for html in tab.evaluate(NAMELESS)]
        problems += [f"{name}, {width} wide: {element} sticks out" for element in tab.evaluate(OVERFLOW)]
        formulas += tab.evaluate("document.querySelectorAll('math').length")
    assert not problems, "\n".join(problems)
    assert formulas > 20


#: Code that is in sight and wider than its block.
CUT_CODE = """[...document.querySelectorAll('div.highlight pre')]
  .filter(e => e.checkVisibility() && e.scrollWidth > e.clientWidth + 1)
  .map(e => e.textContent.split('\\n').reduce((a, b) => a.length > b.length ? a : b))"""


@pytest.mark.browser
@pytest.mark.parametrize(("width", "folders"), [(1280, ("notebooks",)), (1440, ("notebooks", "book"))])
def test_no_code_of_a_lesson_scrolls_sideways_on_a_desktop(chromium, book, width, folders):
    tab, seen, cut = Tab(chromium, width), 0, []
    lessons = notebook.lessons()
    for page in [page for page in pages(book) if page.stem in lessons and page.relative_to(book).parts[0] in folders]:
        tab.open(page.as_uri())
        seen += tab.evaluate("document.querySelectorAll('div.highlight pre').length")
        cut += [f"{page.stem}: {line}" for line in tab.evaluate(CUT_CODE)]
    assert not cut and seen > 500


@pytest.mark.browser
@pytest.mark.parametrize("width", [1440, 390])
def test_scripts_move_nothing_while_a_page_loads(chromium, book, width):
    """All parts of the page stand where they will stand before its first script runs."""
    where = """['.bd-container__inner', '.bd-article-container', '.bd-article h1'].map(one => {
      const { x, y, width } = document.querySelector(one).getBoundingClientRect();
      return [x, y, width].map(Math.round).join(' ');
    })"""
    seen = []
    for script in (True, False):
        page = chromium.new_context(java_script_enabled=script, viewport={"width": width, "height": 900}).new_page()
        page.goto((book / "book" / "10_memory.html").as_uri())
        seen.append(page.evaluate(where))
        page.context.close()
    assert seen[0] == seen[1]


#: The colors of a page, and which of its two logos one sees.
LOOK = """(() => {
  const style = (where, name) => getComputedStyle(document.querySelector(where)).getPropertyValue(name).trim();
  return {
    border: style('html', '--pst-color-border'), page: style('body', 'background-color'),
    text: style('article p', 'color'), link: style('article p a', 'color'),
    code: style('div.highlight pre', 'color'), behind: style('div.highlight pre', 'background-color'),
    keyword: style('div.highlight .kn', 'color'),
    logos: [...document.querySelectorAll('.navbar-brand img')].filter(e => e.checkVisibility()).map(e => e.className),
  };
})()"""


def first_look(chromium, url, scheme, stopped=None, script=True):
    """How a page looks to somebody who has never been there; `stopped`: the scripts that never arrive."""
    context = chromium.new_context(color_scheme=scheme, java_script_enabled=script)
    page = context.new_page()
    if stopped:
        page.route(stopped, lambda route: route.abort())
    page.goto(url, timeout=60_000)
    page.wait_for_timeout(300)  # what fades has arrived
    look = page.evaluate(LOOK)
    context.close()
    return look


@pytest.mark.browser
def test_a_first_visit_has_its_colors_before_the_last_script_and_without_scripts(chromium, site):
    url = site + "book/01_collectives.html"
    finished = {scheme: first_look(chromium, url, scheme) for scheme in ("light", "dark")}
    assert all(finished["light"][what] != finished["dark"][what] for what in finished["light"])
    for scheme, look in finished.items():
        assert len(look["logos"]) == 1
        for stopped in (re.compile(r"pydata-sphinx-theme\.js"), re.compile(r"\.js(\?|$)")):
            assert first_look(chromium, url, scheme, stopped) == look, f"{scheme}, without {stopped.pattern}"
        assert first_look(chromium, url, scheme, script=False) == finished["light"], f"{scheme}, without scripts"


@pytest.mark.browser
def test_a_reader_who_follows_the_system_finds_its_colors_of_today(chromium, site):
    """The theme also stores which colors it last showed; the system may have changed since."""
    context = chromium.new_context(color_scheme="dark")
    page = context.new_page()
    page.goto(site + "book/01_collectives.html", timeout=60_000)
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.emulate_media(color_scheme="light")
    page.route(re.compile(r"\.js(\?|$)"), lambda route: route.abort())
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    context.close()


SHIFTS = """window.shift = 0; new PerformanceObserver(list => {
  for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shift += entry.value;
}).observe({ type: "layout-shift", buffered: true });"""


@pytest.mark.browser
@pytest.mark.parametrize(
    ("name", "width"),
    [
        ("book/cluster.html", 1024),
        ("book/start/attacks.html", 1440),
        ("book/13_context.html", 768),
        ("book/reference/formulas.html", 768),
        ("book/07_bandwidth.html", 1440),
    ],
)
def test_nothing_jumps_on_a_first_visit(chromium, book, site, name, width):
    """The cumulative layout shift, from a server and from disk; 0.1 counts as good (https://web.dev/articles/cls)."""
    for url in (site + name, (book / name).as_uri()):
        context = chromium.new_context(viewport={"width": width, "height": 900})
        page = context.new_page()
        page.add_init_script(SHIFTS)
        page.goto(url, timeout=60_000)
        page.evaluate("document.fonts.ready.then(() => null)")
        page.wait_for_timeout(500)
        assert page.evaluate("window.shift") < 0.05, url
        context.close()


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 390])
def test_the_magnifier_does_not_cover_what_one_types(chromium, book, width):
    free = """(form) => {
      const input = form.querySelector('input');
      const begins = input.getBoundingClientRect().left + parseFloat(getComputedStyle(input).paddingLeft);
      return begins - form.querySelector('.fa-magnifying-glass').getBoundingClientRect().right;
    }"""
    tab = Tab(chromium, width)
    tab.open((book / "search.html").as_uri())
    assert tab.page.locator("main form.bd-search").first.evaluate(free) >= 2
    tab.open((book / "book" / "index.html").as_uri())
    tab.page.keyboard.press("Control+k")
    dialog = tab.page.locator("#pst-search-dialog[open] form.bd-search")
    dialog.wait_for()
    assert dialog.evaluate(free) >= 2


def test_an_assignment_lists_its_exercises(book):
    for lesson in notebook.lessons():
        links = soup(book / "notebooks" / lesson / f"{lesson}.html").select(".assignment-offer li a")
        tests = [cell for cell in notebook.read(lesson).cells if notebook.nbgrader_role(cell) == "grade"]
        assert len(links) == len(tests) and all(link["href"].startswith("#") for link in links), lesson
        assert not any("(" in code.text for link in links for code in link.select("code")), lesson


@pytest.mark.browser
@pytest.mark.parametrize("width", [1440, 390])
def test_the_columns_of_an_assignments_exercises_stand_apart(chromium, book, width):
    tab, columns = Tab(chromium, width), 0
    where = """[...document.querySelectorAll('.assignment-offer li')].map(item => [item.getBoundingClientRect().left,
      Math.max(...[...item.querySelector('a').getClientRects()].map(line => line.right))])"""
    for lesson in notebook.lessons():
        tab.open((book / "notebooks" / lesson / f"{lesson}.html").as_uri())
        items = tab.evaluate(where)
        lefts = sorted({left for left, _ in items})
        columns += len(lefts) - 1
        for left, right in itertools.pairwise(lefts):
            assert max(end for begin, end in items if begin == left) < right - 24, lesson  # the next one's bullet
    assert (columns > 10) == (width == 1440)


@pytest.mark.browser
def test_a_download_is_called_by_words_and_not_by_code(chromium, book):
    tab = Tab(chromium)
    tab.open((book / "book" / "02_costs.html").as_uri())
    fonts = tab.evaluate(
        """[...document.querySelectorAll('article a.download code')].map(code => [
          getComputedStyle(code).fontFamily, getComputedStyle(code.closest('p')).fontFamily])"""
    )
    assert fonts and all(own == around for own, around in fonts)


@pytest.mark.browser
def test_search_finds_sections_and_shows_the_passage(chromium, book):
    tab = Tab(chromium)

    def results(question):
        tab.open((book / "search.html").as_uri() + f"?q={question}")
        tab.wait("document.querySelector('.search-sections [role=status]')")
        links = tab.page.locator(".search-sections a").all()
        return [(link.get_attribute("href"), link.inner_text()) for link in links]

    found = results("error+feedback")
    assert found[0] == ("book/07_bandwidth.html#error-feedback", "07 · Cheaper gradients › Error feedback")
    assert all((book / link.split("#")[0]).is_file() for link, _ in found)
    marked = {mark.lower() for mark in tab.page.locator(".search-sections mark").all_inner_texts()}
    assert marked <= {"error", "feedback"} | {f"error{sign}feedback" for sign in " -_"}
    same = [results(question) for question in ("all-reduce", "all_reduce", "All-Reduce")]
    assert same[0] == same[1] == same[2] and "notebooks/" not in same[0][0][0]
    for written, question in (("all-reduce", "allreduce"), ("reduce-scatter", "reducescatter"), ("zero-3", "zero3")):
        assert {link for link, _ in results(written)} >= {link for link, _ in results(question)[:5]} != set(), question
        assert "bibliography" not in results(question)[0][0]
    tab.page.locator(".search-sections a").first.click()
    tab.wait("document.querySelector('article h1')")
    assert results("xyzzyplugh") == []
    assert "No section has all words" in tab.page.locator(".search-sections").inner_text()
    assert (
        results("%3Cimg+src%3Dx+onerror%3Dalert(1)%3E") == [] and not tab.page.locator(".search-sections img").count()
    )
    assert not tab.errors


@pytest.mark.browser
def test_a_copy_button_takes_commands_and_neither_prompts_nor_what_they_print(chromium, book):
    tab = Tab(chromium)
    taken = []
    for path in sorted(book.glob("book/**/*.html")):
        if "highlight-console" not in path.read_text(encoding="utf-8"):
            continue
        tab.open(path.as_uri())
        tab.evaluate("window.copied = []; addEventListener('copy', event => copied.push(event.target.value))")
        for button in tab.page.locator(".highlight-console .copybtn").all():
            button.scroll_into_view_if_needed()
            button.click(force=True)
        blocks = tab.page.locator(".highlight-console pre").all_inner_texts()
        copied = tab.evaluate("copied")
        assert len(copied) == len(blocks) > 0
        for block, text in zip(blocks, copied, strict=True):
            assert text.splitlines() == [re.sub(r"^[$#] ", "", line) for line in block.splitlines()]
        taken += copied
    assert any(text.startswith("apt-get") for text in taken) and any(" -n class \\\n  " in text for text in taken)


def test_every_section_has_an_anchor_with_a_name(book):
    numbered = [
        path for path in sorted(book.glob("*/**/*.html")) if re.search('<section[^>]* id="id[0-9]', path.read_text())
    ]
    assert not numbered
    assert 'id="glossary-0-9"' in (book / "book" / "reference" / "glossary.html").read_text(encoding="utf-8")


@pytest.mark.browser
def test_the_dark_mode_switch_works_and_is_remembered(chromium, site):
    brightness = """(() => {
      const [r, g, b] = getComputedStyle(document.%s).%s.match(/[0-9.]+/g).map(Number);
      return (r + g + b) / 765;
    })()"""
    ground, text = brightness % ("body", "backgroundColor"), brightness % ("querySelector('article p')", "color")
    tab = Tab(chromium)
    tab.open(site + "book/index.html")
    tab.evaluate("localStorage.setItem('mode', 'light'); localStorage.setItem('theme', 'light')")
    tab.open(site + "book/index.html")
    assert tab.evaluate(ground) > 0.9 and tab.evaluate(text) < 0.4
    for _ in range(3):
        if tab.evaluate("document.documentElement.dataset.mode") != "dark":
            tab.evaluate("document.querySelector('.theme-switch-button').click()")
    tab.wait(f"{ground} < 0.2 && {text} > 0.6")  # colors fade from one to the other
    tab.open(site + "book/start/reader.html")
    assert tab.evaluate(ground) < 0.2 and tab.evaluate(text) > 0.6


@pytest.mark.browser
def test_a_quiz_opens_with_the_keyboard(chromium, book):
    tab = Tab(chromium)
    for page in chapters(book):
        tab.open(page.as_uri())
        assert tab.evaluate("document.querySelectorAll('.quiz-option[open]').length") == 0
        tab.evaluate("document.querySelector('.quiz-option summary').focus()")
        tab.page.keyboard.press("Enter")
        tab.wait("document.querySelector('.quiz-option[open] .quiz-feedback').offsetHeight > 0")


# In the files


def test_the_front_door_leads_to_a_page(book):
    url = soup(book / "index.html").find("meta", {"http-equiv": "Refresh"})["content"].partition("url=")[2]
    assert (book / url).is_file()


def test_links_resolve(book):
    anchors = {page: {tag["id"] for tag in soup(page).find_all(id=True)} for page in pages(book)}
    broken = []
    for page in pages(book):
        for tag in soup(page).find_all(["a", "link", "script", "img"]):
            url = urlsplit(tag.get("href") or tag.get("src") or "")
            if url.scheme or url.netloc or not (url.path or url.fragment):
                continue
            target = (page.parent / unquote(url.path)).resolve() if url.path else page
            place = "" if "=" in url.fragment else unquote(url.fragment)  # settings of a page are no place on it
            lost = place and target in anchors and place not in anchors[target]
            if not target.is_file() or lost:
                broken.append(f"{page.relative_to(book)}: {url.geturl()}")
    assert not broken, "\n".join(broken)


def test_next_and_previous_name_chapters_by_number_and_assignments_as_such(book):
    first, second = notebook.lessons()[:2]
    names = [tag.get_text() for tag in soup(book / "notebooks" / first / f"{first}.html").select(".prev-next-title")]
    titles = [soup(page).select_one("h1").find(string=True) for page in chapters(book)[:2]]
    assert names == [f"{lesson[:2]} · {title}" for lesson, title in zip((first, second), titles, strict=True)]
    names = [tag.get_text() for tag in soup(book / "book" / f"{second}.html").select(".prev-next-title")]
    assert names == [f"Assignment {first[:2]}", f"Assignment {second[:2]}"]


def test_theorems_are_numbered_by_chapter(book):
    for chapter in chapters(book):
        titles = [title.get_text().split()[:2] for title in soup(chapter).select(".proof > .admonition-title")]
        numbers = [number for kind, number in titles if kind != "Proof."]
        assert numbers == [f"{int(chapter.name[:2])}.{k}" for k in range(1, len(numbers) + 1)], chapter.name


def test_every_mention_of_another_lesson_is_a_link(book):
    linked = 0
    for page in chapters(book):
        article = soup(page).article
        links = [
            a for a in article.select("a") if re.fullmatch(r"(?:lesson|chapter) \d\d", a.get_text(), re.IGNORECASE)
        ]
        assert all(a["href"].split("/")[-1].startswith(a.get_text()[-2:]) for a in links), page.name
        linked += len(links)
        for inside in article.select("a, pre, code, h1, h2, h3, svg, script"):
            inside.decompose()
        left = set(re.findall(r"\b(?:lesson|chapter) (\d\d)\b", article.get_text(), re.IGNORECASE))
        assert left <= {page.name[:2]}, f"{page.name}: {left}"
    assert linked > 40


def open_answers(page: BeautifulSoup) -> list[str]:
    """The predictions of a chapter below which a table or the output of a cell lies open."""
    found = []
    for paragraph in page.select("article p:has(> strong)"):
        if not any(strong.get_text().startswith("Predict") for strong in paragraph("strong")):
            continue
        below = paragraph.find_next_sibling()
        while below and "cell" in below.get("class", []) and not below.select(".cell_output"):
            below = below.find_next_sibling()  # code alone
        shown = [] if below is None else below.select(".cell_output") + [below] * (below.name == "table")
        shown = [one for one in shown[:1] if not one.find_parent("details") and not one.select("details")]
        found += [paragraph.get_text()[:80] for _ in shown]
    return found


def test_answers_to_predictions_are_folded(book):
    asked, output = "<article><p><strong>Predict</strong> it.</p>", "<div class=cell_output>2</div>"
    for below, answers in (
        ("<table></table>", 1),
        (f"<div class=cell>{output}</div>", 1),
        ("<details><table></table></details>", 0),
        (f"<div class=cell><details>{output}</details></div>", 0),
        ("<div class=cell><div class=cell_output><details>2</details></div></div>", 0),
    ):
        assert len(open_answers(BeautifulSoup(asked + below, "html.parser"))) == answers
    assert not {page.stem: found for page in chapters(book) if (found := open_answers(soup(page)))}


def test_no_markup_is_left_raw(book):
    """A table that was not recognized, a fence, a role: readers would see its signs."""
    raw = []
    for page in pages(book):
        html = soup(page)
        for tag in html.select("pre, code, script, style, title, .math"):
            tag.decompose()
        text = html.get_text()
        raw += [f"{page.relative_to(book)}: {sign} {text[at : at + 60]!r}" for sign, at in _signs(text)]
    assert not raw, "\n".join(raw)


def _signs(text):
    found = re.finditer(r"\|\s*[-—–]+\s*\||```|:::|\$\$|\{[a-z:]+\}`|\]\(|\*\*\w", text)
    return [(match.group(), match.start()) for match in found]


def test_each_assignment_has_a_page_with_its_file(book):
    for lesson in notebook.lessons():
        page = book / "notebooks" / lesson / f"{lesson}.html"
        offer = soup(page).select_one(".assignment-offer a.download")
        offered = (page.parent / unquote(offer["href"])).resolve()
        released = notebook.NOTEBOOKS / lesson / f"{lesson}.ipynb"
        assert offered.name == released.name
        assert offered.read_bytes() == released.read_bytes()


def test_each_chapter_has_its_parts(book):
    for lesson, page in zip(notebook.lessons(), chapters(book), strict=True):
        html = soup(page)
        quizzes = html.select(".quiz")
        assert len(quizzes) >= 3, f"{lesson}: at least three quiz questions"
        for option in html.select(".quiz-option"):
            verdict = option.select_one(".quiz-verdict").get_text()
            feedback = option.select_one(".quiz-feedback").get_text().removeprefix(verdict).strip()
            assert len(feedback) > 12, f"{lesson}: an option without feedback: {option.get_text()[:60]}"
        assert html.select("details.sd-dropdown"), f"{lesson}: folded interview answers"
        assert html.select(".proof.theorem"), f"{lesson}: a theorem with its proof"
        assert html.select("div.cell_output img[alt], figure svg[aria-label]"), f"{lesson}: a figure"
        links = [tag["href"] for tag in html.select("article a[href]")]
        assert any(f"notebooks/{lesson}/{lesson}.html" in link for link in links), f"{lesson}: a link to the notebook"
        assert any("bibliography.html" in link for link in links), f"{lesson}: cites a source"


def secrets(lesson: str) -> set[str]:
    """The lines of a lesson's answers and hidden tests that neither its notebook nor an earlier lesson shows."""
    before = [name for name in notebook.lessons() if name < lesson]
    texts = [(ROOT / "book" / f"{name}.md").read_text() for name in before]
    texts += [line for name in [*before, lesson] for line in split(name, "SOLUTION", "HIDDEN TESTS")[1]]
    shown = "\n".join(" ".join(text.split()) for text in texts)
    hidden = {" ".join(line.split()) for line in split(lesson, "SOLUTION", "HIDDEN TESTS")[0]}
    return {line for line in hidden if len(line) >= TELLING and line not in shown and not SEED.fullmatch(line)}


def test_each_chapter_says_what_effort_it_takes(book):
    for chapter in chapters(book):
        line = soup(chapter).select_one("p.effort")
        reading = r"About \d+ minutes to read(, \d+ with everything optional)?"
        assert re.fullmatch(rf"{reading} · \d+ exercises?, \d+ points", line.get_text())
        assert (chapter.parent / line.a["href"]).resolve().is_file()


def test_the_map_of_the_course_leads_to_every_chapter_and_what_it_builds_on_comes_before(book):
    cards = soup(book / "book" / "index.html").select(".course-part > li")
    assert [card.select_one("a")["href"] for card in cards] == [chapter.name for chapter in chapters(book)]
    for card in cards:
        number = card.select_one(".course-number").get_text()
        takes = card.select("p")[-1].get_text()
        found = re.fullmatch(r"(\d+) min · assignment(?: · builds on ([\d, ]+))?", takes)
        own = soup(book / "book" / card.a["href"]).select_one("p.effort").get_text()
        assert found and own.startswith(f"About {found[1]} minutes"), takes
        assert all(needed < number for needed in (found[2] or "").split(", ") if needed), takes


def test_the_reference_pages_hold_what_the_chapters_hold(book):
    text = {name: soup(book / "book" / "reference" / f"{name}.html").get_text() for name in ("glossary", "questions")}
    for chapter in chapters(book):
        page = soup(chapter)
        table = next(heading for heading in page.find_all("h2") if "Key terms" in heading.get_text()).find_next("table")
        terms = [row.td.get_text() for row in table.find_all("tr") if row.td]
        assert terms and all(term in text["glossary"] for term in terms)
        asked = next(heading for heading in page.find_all("h2") if "Interview" in heading.get_text()).find_next(
            "summary"
        )
        assert asked.get_text().strip() in text["questions"]


def test_no_answer_is_in_the_book(book):
    texts = {page: soup(page).get_text() for page in pages(book)}
    for path in book.rglob("*"):
        if path.suffix in (".ipynb", ".md", ".txt", ".py") or path.name == "searchindex.js":
            texts[path] = path.read_text()
            if path.suffix == ".ipynb":
                texts[path] = "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells)
    texts = {path: " ".join(text.split()) for path, text in texts.items()}
    assert any(path.suffix == ".ipynb" for path in texts), "downloads are looked into"
    leaks = []
    for lesson in notebook.lessons():
        lines = secrets(lesson)
        assert len(lines) >= (1 if drafts.is_draft(lesson) else 10), f"{lesson}: nothing to look for"
        leaks += [f"{path.relative_to(book)}: {line}" for path, text in texts.items() for line in lines if line in text]
    assert not leaks, "\n".join(sorted(leaks))


def test_only_the_pages_of_the_book_are_in_it(book):
    """Neither solutions nor tests are built or copied along."""
    assert {path.name for path in book.iterdir() if path.is_dir()} <= {
        *("_downloads", "_images", "_sources", "_sphinx_design_static", "_static"),
        *("book", "notebooks"),
    }
    sources = {
        path.relative_to(book / "_sources").parts[0] for path in (book / "_sources").rglob("*") if path.is_file()
    }
    assert sources <= {"book", "notebooks"}
