"""The pages of reference that are made from the chapters, and those that must agree with them."""

from __future__ import annotations

import re

import pytest
from bs4 import BeautifulSoup

from autograder.lesson import notebook
from autograder.lesson.notebook import ROOT


def page(book, name):
    return BeautifulSoup((book / "book" / f"{name}.html").read_text(), "html.parser")


def test_the_table_of_efforts_says_what_each_chapter_says(book):
    rows = page(book, "reference/exercises").select("#what-each-lesson-takes table tr")[1:]
    assert [row.td.get_text() for row in rows] == [lesson[:2] for lesson in notebook.lessons()]
    for row, lesson in zip(rows, notebook.lessons(), strict=True):
        number, _, reading, hours, exercises, points, needs = [cell.get_text() for cell in row.select("td")]
        own = page(book, lesson).select_one("p.effort").get_text()
        count = f"{exercises} exercise{'s' * (exercises != '1')}"
        assert own.startswith(f"About {reading.removesuffix(' min')} minutes to read"), lesson
        assert own.endswith(f" · {count}, {points} points"), lesson
        assert re.fullmatch(r"(\d to )?\d+[¼½¾]? hours?", hours), hours
        assert all(needed < number for needed in needs.split(", ") if needed != "–")


@pytest.mark.parametrize("name", ["formulas", "errors"])
def test_a_section_that_a_page_of_reference_names_is_there(name):
    named = re.findall(r"lesson (\d\d), \*([^*]+)\*", (ROOT / "book" / "reference" / f"{name}.md").read_text())
    for number, title in named:
        (chapter,) = (ROOT / "book").glob(f"{number}_*.md")
        heading = rf"^(#+|:::+\{{dropdown\}}) {re.escape(title)}$"
        assert re.search(heading, chapter.read_text(), re.MULTILINE), f"{chapter.name} has no section {title!r}"
    assert len(named) > 4


def squeezed(formula):
    """A formula without what does not change it."""
    return re.sub(r"\\[,;!]|\\left|\\right|\\[Bb]ig[glr]?|\s|\\text|[{}&]|\.$|\\[dt]?frac", "", formula)


def test_each_formula_stands_in_the_chapters():
    """Each formula of the sheet, or each of its parts with an operator, is found in some chapter as it stands."""
    chapters = squeezed("".join(path.read_text() for path in sorted((ROOT / "book").glob("[0-9][0-9]_*.md"))))
    text = (ROOT / "book" / "reference" / "formulas.md").read_text()
    rows = [row for row in text.splitlines() if row.startswith("| ") and "$" in row.split("|")[2]]
    assert len(rows) > 40
    missing = []
    for row in rows:
        for formula in re.findall(r"\$([^$]+)\$", row.split(" | ")[1]):
            for part in re.split(r",\\?quad|\\quad", formula):
                if squeezed(part).strip(",") not in chapters:
                    missing.append(f"{row.split('|')[1].strip()}: {part}")
    assert {line.split(":")[0] for line in missing} == WRITTEN_OTHERWISE, "\n".join(missing)


#: What the chapters say in words or in another order.
WRITTEN_OTHERWISE = {
    "bus bandwidth of an all-reduce",
    "MFU",
    "arithmetic intensity of an $r \\times i$ by $i \\times o$ matrix multiplication in bf16",
    "tokens per GPU and micro-batch that hide ZeRO-1's reduce-scatter and all-gather, without the first and last piece",
    "tokens per GPU and micro-batch that hide FSDP's gathers in forward, and all its collectives in backward",
    "arrival of the last of $K$ buckets; $t_k$",
    "gradient of micro-batches of unequal counts",
    "variance of single examples' gradients, estimated from the ranks'",
    "error of a sum of $n$ numbers $t_i$ in any order; $u$",
    "ZeRO stage 0, 1, 2, 3, bytes per rank",
    "communication over computation in forward; over a step two thirds of it",
    "share of the time that is lost to failures, saves themselves aside",
}


def test_the_index_leads_to_sections(book):
    index = page(book, "reference/index-of-terms")
    entries = {
        item.p.contents[0].get_text(): [a.get_text() for a in item.select("a")]
        for item in index.select("ul.book-index > li")
    }
    assert len(entries) > 200 and all(entries.values())
    names = list(entries)
    assert names == sorted(names, key=lambda name: name.casefold().lstrip("_"))
    assert "05 torch.compile" in entries["torch.compile"]
    assert "glossary" in entries["bucket"]
    assert any("assignment" in place for places in entries.values() for place in places)
