"""The pages of reference that are made from the chapters, and those that must agree with them."""

from __future__ import annotations

import re

from bs4 import BeautifulSoup

from autograder.lessons import notebook
from autograder.lessons.notebook import ROOT


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


def squeezed(formula):
    """A formula without what does not change it."""
    return re.sub(r"\\[,;!]|\\left|\\right|\\[Bb]ig[glr]?|\s|\\text|[{}&]|\.$|\\[dt]?frac", "", formula)


def test_each_formula_stands_in_the_chapters(book):
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
    "bus bandwidth of an all-reduce of $t$ seconds",
    "MFU",
    "arithmetic intensity of a product of $r \\times i$ and $i \\times o$ in bf16",
    "arrival of the last of $K$ buckets",
    "micro-batches of unequal counts $c_k$, $C = \\sum_k c_k$",
    "noise $\\sigma^2$ from the ranks' gradients",
    "error of a sum of $n$ numbers",
    "ZeRO stage 0, 1, 2, 3",
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
