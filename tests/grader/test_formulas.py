"""Formulas on the feedback page: drawn where they are formulas, harmless whatever a student writes."""

import re

import nbformat
import pytest

from autograder.grade.pages import feedback, formulas, safe_html
from autograder.grade.running import clock
from autograder.lesson import notebook
from tests.helpers.hostile_markup import assert_harmless


def shown(source: str) -> str:
    """What the page shows of a Markdown cell."""
    return str(feedback._markdown(safe_html.markdown(source)))


def test_formulas_become_mathml():
    page = shown("A mean $g = \\frac1N \\sum_r g_r$ of\n\n$$\nv \\leftarrow \\beta_2 v\n$$\n")
    assert page.count("<math") == 2 and 'display="block"' in page and "$" not in page
    assert "<mfrac><mn>1</mn><mi>N</mi></mfrac>" in page and ">←</mo>" in page


@pytest.mark.parametrize(
    ("source", "kept"),
    [
        ("`$x$` and\n\n```\n$y$\n```\n", ["<code>&#36;x&#36;</code>", "<code>&#36;y&#36;"]),
        ("It costs $5, or $6.", ["$5, or $6."]),
        ("$\\newcommand{\\a}{xx}\\a$", ["$\\newcommand{\\a}{xx}\\a$"]),
        (f"${'x' * 2000}$", [f"${'x' * 2000}$"]),
        ("$\\left( x$", ["$\\left( x$"]),
        ("a < b and c > d & e", ["a &lt; b and c &gt; d &amp; e"]),
    ],
)
def test_what_is_no_formula_stays_as_it_is(source, kept):
    page = shown(source)
    assert "<math" not in page and all(text in page for text in kept)


def test_all_formulas_of_a_page_together_are_bounded(monkeypatch):
    """220 short formulas with 880 columns each took 30 s and made a page of 28 MB."""
    many = "".join(f"${'&' * 880}{number}$\n\n" for number in range(220))
    budget = formulas.Budget()
    page = "".join(str(feedback._markdown(safe_html.markdown(many), budget)) for _ in range(10))
    assert budget.left <= 0 and len(page) < 10_000_000
    honest = "".join(f"$x_{{{number}}} = \\frac{{1}}{{2}}$ " for number in range(500))
    assert shown(honest).count("<math") == 500, "more than any lesson has"


HOSTILE = [
    r"$\text{<script>document.title='planted'</script>}$",
    r"$\text{</math><img src=x onerror=alert(1)>}$",
    r"$\href{javascript:alert(1)}{x}$",
    r"$\style{position:fixed;top:0}{x}$",
    r"$\class{x}{y} \color{red} z \cssId{a}{b}$",
    r"$&lt;script&gt;alert(1)&lt;/script&gt;$",
    r"$\mathrm{&lt;img src=x onerror=alert(1)&gt;}$",
]


@pytest.mark.parametrize("source", HOSTILE)
def test_a_hostile_formula_is_harmless(source):
    page = shown(source)
    assert ("<math" in page) == source.startswith(r"$\text"), "what asks for more than a text stays as it is written"
    assert_harmless(page, formulas=True)
    assert not re.search(r"<(?!/?(?:div|p|m[a-z]+)\b)", page), page


def test_of_what_the_converter_makes_only_what_is_known_is_written(monkeypatch):
    made = (
        '<math onclick="f()" style="top:0"><a href="javascript:f()"><mi class="x">y</mi></a><script>f()</script></math>'
    )
    monkeypatch.setattr(formulas.converter, "mathml", lambda latex, display: made)
    assert formulas.mathml("never seen before") == "<math><mi>y</mi>f()</math>"


def test_aligned_lines_are_aligned():
    page = shown("$$\\begin{aligned} a &= b + c \\\\ d &= e \\end{aligned}$$")
    assert page.count("<mtr>") == 2 and page.count('class="tml-right"') == 2 and "&amp;" not in page


def test_an_underscore_in_a_name_is_one():
    assert "<mtext>outer_lr</mtext>" in shown("$\\text{outer\\_lr} \\cdot v$")


def test_formulas_that_grow_or_nest_cost_no_time():
    for formula in ("{" * 900, "\\frac{" * 150, "x^{" * 300 + "}" * 300, "\\sqrt{" * 160 + "x" + "}" * 160):
        started = clock.now()
        shown(f"${formula}$")
        assert clock.now() - started < 2


def test_every_formula_of_the_lessons_is_drawn():
    for lesson in notebook.lessons():
        path = notebook.NOTEBOOKS / lesson / f"{lesson}.ipynb"
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type == "markdown":
                outside = re.sub(r"<(code|pre)\b.*?</\1>", "", shown(cell.source), flags=re.DOTALL)
                assert "$" not in outside and "\\" not in outside, f"{cell.id}: {outside}"


@pytest.mark.parametrize(
    "markup",
    [
        '<img alt="a>b" src="x"><p title=" src=x onerror=alert(1) x=">$x$</p>',
        '<a href="#"><img alt="<a ">¶</a><p title=" src=x onerror=alert(1) x=">text</p>',
    ],
)
def test_an_attribute_may_hold_signs_of_tags(markup):
    """Not every version of the cleaner writes them as entities. No attribute may lose its quotes by that."""
    page = str(feedback._markdown(markup))
    assert 'title=" src=x onerror=alert(1) x="' in page and page.count('"') % 2 == 0
