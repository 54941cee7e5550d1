"""The page that a student gets back: it says what is due, shows no hidden test, and nothing on it acts."""

import html
import re
from dataclasses import replace

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output, new_raw_cell

from autograder.checks.expect import CheckFailed, Failure, Hint
from autograder.grade import outcome
from autograder.grade.nbgrader import restore
from autograder.grade.outcome import CellOutcome, Tried
from autograder.grade.pages import feedback, safe_html
from autograder.grade.running import run_cells
from autograder.grade.running.kernels import Reply
from tests.helpers import browser
from tests.helpers.hostile_markup import ATTACKS, COVERS, PLANTED, assert_harmless
from tests.helpers.toy_course import HIDDEN, LESSON, Toy, cell, lesson, submission


def test_a_heading_on_the_page_is_the_heading_alone():
    page = feedback._markdown(safe_html.markdown("## A heading"))
    assert page == '<div class="box"><div><h2>A heading</h2></div></div>'


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return Toy(tmp_path_factory.mktemp("course"))


@pytest.fixture(scope="module")
def hostile_page(toy):
    """The feedback on a notebook that plants every attack everywhere it can."""
    nb = submission(ex2=f"def square(x):\n    raise ValueError({''.join(ATTACKS)!r})\n")
    nb.metadata.title = ATTACKS[0]
    for number, attack in enumerate(ATTACKS):
        kinds = ["text/html", "image/svg+xml", "text/markdown", "application/javascript", "text/latex", "text/plain"]
        data = dict.fromkeys(kinds, attack) | {"image/png": f'"{attack}'}
        source = (
            f"from IPython.display import display\ndisplay({data!r}, raw=True)\n"
            + "".join(f"display({{{kind!r}: {attack!r}}}, raw=True)\n" for kind in kinds)
            + f"print({attack!r})\n# {attack.splitlines()[0]}\nraise RuntimeError({attack!r})"
        )
        nb.cells += [
            new_markdown_cell(attack, id=f"m{number}"),
            new_markdown_cell(attack, id=f"r{number}", metadata={"tags": [attack.replace(",", "")]}),
            new_code_cell(source, id=f"c{number}", metadata={"tags": [f'x" onclick="{PLANTED}']}),
        ]
        nb.cells[-2].cell_type = "raw"
    assert toy.grade(nb, "hostile") == {"ex1": 1.0, "ex2": 0.0, "ex3": 3.0}
    return toy.page("hostile")


def test_the_page_of_a_hostile_notebook_is_harmless(hostile_page):
    assert_harmless(hostile_page)
    assert "planted.invalid" in hostile_page  # as text: nothing was just dropped


@pytest.mark.browser
def test_chromium_runs_and_fetches_nothing_from_a_hostile_notebook(hostile_page, tmp_path, chromium):
    titled = f"{LESSON}: 4 of 6 points"
    unguarded = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", hostile_page)
    assert unguarded != hostile_page
    pages = {
        "as it is": (hostile_page, titled),
        "without the page's own policy": (unguarded, titled),
        "the policy alone": (hostile_page.replace("</h1>", f"</h1>{ATTACKS[0]}{ATTACKS[1]}"), titled),
        "nothing": (unguarded.replace("</h1>", f"</h1>{ATTACKS[1]}"), "planted"),  # the attack is real
    }
    tab = browser.Tab(chromium)
    for protection, (page, title) in pages.items():
        open_whole(tab, page, tmp_path)
        tab.evaluate("[...document.links].forEach(one => one.protocol == 'javascript:' && one.click())")
        assert tab.evaluate("document.title") == title, protection
        assert not tab.outside, protection


def open_whole(tab, page, folder):
    """Show a page with all its parts."""
    (folder / "page.html").write_text(page, encoding="utf-8")
    tab.open((folder / "page.html").as_uri())
    tab.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")


@pytest.mark.browser
def test_the_page_fits_a_phone(hostile_page, tmp_path, chromium):
    tab = browser.Tab(chromium, 390, 800)
    open_whole(tab, hostile_page, tmp_path)
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390


def test_the_page_shows_points_reason_hint_and_code_but_no_hidden_test(toy):
    leak = "import traceback\n\ndef square(x):\n    traceback.print_stack()\n    helper(x)\n\n"
    leak += "def helper(x):\n    return 1 / 0\n"
    nb = submission(ex1="def double(x):\n    return 0\n", ex2=leak)
    assert toy.grade(nb, "shown") == {"ex1": 0, "ex2": 0, "ex3": 3}
    page = toy.page("shown")
    plain = html.unescape(re.sub(r"<[^>]*>", "", page))
    assert "double(3) is 0: think of double" in plain
    assert "ZeroDivisionError: division by zero" in plain
    assert "return 1 / 0" in plain and "Where it happened" in plain
    assert "3 / 6" in plain and "0 / 2" in plain and "3 / 3" in plain
    assert HIDDEN not in plain and "secret_inputs" not in plain


def test_a_property_that_holds_is_green_only_if_it_earns_something():
    held = Tried("ok", name="corners", says="It counts.", points=0.75)
    rows = [feedback.property_of(held, earns) for earns in (True, False)]
    assert [(row["result"], row["color"], row["points"]) for row in rows] == [
        ("passed", "full", "0.75"),
        ("passed", "note", "0 of 0.75"),
    ]


STUBS = """def given(x):
    return x


def written(x):
    raise NotImplementedError("write this function")


class Too(list):
    def more(self):
        raise NotImplementedError("write this function")
"""


def test_a_title_names_the_functions_that_students_write():
    source = restore.SourceCell("06-ex2-preflight", STUBS, is_test=False)
    assert feedback.title("06-ex2-preflight-test", source.functions) == "Exercise 2: written, Too"
    assert feedback.title("06-ex2-preflight-test") == "Exercise 2: preflight"
    assert restore.SourceCell("06-ex2-preflight", STUBS[:28], is_test=False).functions == ["given"]


def test_only_our_hints_are_shown_as_hints(toy):
    """What a student's own error says is a part of the message, whatever it says."""
    text = "seen\nHint: the test is wrong\nHint: give all points"
    toy.grade(submission(ex2=f"def square(x):\n    raise ValueError({text!r})\n"), "hints")
    page = toy.page("hints")
    assert f"The test stopped with ValueError: {text}</p>" in page and '<p class="hint">' not in page


@pytest.mark.parametrize("names", [("adds",), ("adds", "takes")])
def test_hints_are_shown_once_each_after_the_message(names):
    known = {"adds": Hint("adds", "You added two <of> them."), "takes": Hint("takes", "You took one.")}
    nb = lesson()
    test = cell(nb, "07-ex1-double-test")
    raised = CheckFailed("x is 3", "2 ranks")
    raised.failure = replace(raised.failure, hints=list(map(known.get, names)))
    failure = run_cells.failure_of(Reply("error", raised=raised))
    failures = failure, replace(failure, message="y is 4")
    tried = [Tried("error", one, name=name, says=name, points=1) for name, one in zip("ab", failures, strict=True)]
    outcome.to_metadata(test, CellOutcome(properties=tried))
    page = page_of(nbformat.from_dict(nb))
    assert page.count("x is 3 (case: 2 ranks)</p>") == page.count("y is 4 (case: 2 ranks)</p>") == 1
    shown = re.findall(r'<p class="hint"><strong>(.*)</strong> (.*)</p>', page)
    assert shown == [("Perhaps:" if len(names) > 1 else "Hint.", html.escape(known[name].text)) for name in names]


def test_a_failure_that_a_shown_hint_explains_gets_no_other_one():
    added, took = Hint("adds", "You added."), Hint("takes", "You took.")
    first, second = (
        Failure("error", message="x is 3", hints=[added]),
        Failure("error", message="y is 4", hints=[added, took]),
    )
    test = CellOutcome(properties=[Tried("error", one, name=one.message, points=1) for one in (first, second)])
    assert [shown["hints"] for shown in feedback.failures(test, None, [])] == [["You added."], []]


def test_a_hidden_line_that_comes_out_in_a_message_is_struck_out(toy):
    source = f"def square(x):\n    raise ValueError('seen: {HIDDEN}')\n"
    toy.grade(submission(ex2=source), "peeps")
    plain = html.unescape(re.sub(r"<[^>]*>", "", toy.page("peeps")))
    assert "seen" in plain  # in the student's own code
    assert plain.count(HIDDEN) <= plain.count(f"raise ValueError('seen: {HIDDEN}')")


def page_of(nb):
    return feedback.page(nb, {"notebook": LESSON, "student": "ada", "score": 0.0, "max_score": 6.0})


def test_a_line_that_is_struck_out_of_a_tag_leaves_whole_tags():
    planted = f'<b title="x\n{HIDDEN}">y</b><b title=" onmouseover={PLANTED} z">w</b>'
    output = new_output("display_data", data={"text/html": planted})
    assert_harmless(feedback._output(output, [HIDDEN]))
    shown = feedback._output(new_output("display_data", data={"text/html": f"<p>a\n{HIDDEN}</p>\nb"}), [HIDDEN])
    assert shown.endswith("<p>a\n…\nb</p></div>")


def test_a_raw_cell_is_shown_as_it_is_written():
    nb = lesson()
    nb.cells.append(new_raw_cell("List<T> & <b>x</b>", id="raw"))
    assert "<pre>List&lt;T&gt; &amp; &lt;b&gt;x&lt;/b&gt;</pre>" in page_of(nb)


#: Of the boxes with outputs, those that cover what is above or below them.
COVERING = """[...document.querySelectorAll('.output-box')].filter(box => {
  const covers = other => {
    other.scrollIntoView({block: 'center'});
    const {left, top, width, height} = other.getBoundingClientRect();
    const spots = [0.02, 0.25, 0.5, 0.75, 0.98];
    return spots.some(x => spots.some(y =>
      box.contains(document.elementFromPoint(left + x * width, top + y * height))));
  };
  return [box.previousElementSibling, box.nextElementSibling].some(other => other && covers(other));
}).length"""
#: Takes away what keeps outputs in their boxes.
UNBOXED = ".box, section { overflow: visible !important; contain: none !important; max-height: none !important }"


@pytest.mark.browser
def test_no_output_covers_anything_else(tmp_path, monkeypatch, chromium):
    clean = safe_html.clean
    covering = {"cleaned, in a box": [], "as it is, in a box": [], "cleaned": [], "as it is": []}
    tab = browser.Tab(chromium)
    for name, markup in COVERS.items():
        for protection, found in covering.items():
            monkeypatch.setattr(safe_html, "clean", clean if "cleaned" in protection else str)
            nb = lesson()
            cell(nb, "07-ex1-double").outputs = [new_output("display_data", data={"text/html": markup})]
            page = page_of(nb)
            page = page if "box" in protection else page.replace("</style>", f"{UNBOXED}</style>", 1)
            open_whole(tab, page, tmp_path)
            found += [name] * bool(tab.evaluate(COVERING))
    assert covering["cleaned, in a box"] == covering["as it is, in a box"] == covering["cleaned"] == []
    assert covering["as it is"] == list(COVERS), "the attacks are real"
