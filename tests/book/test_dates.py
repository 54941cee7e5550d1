"""Boxes that say what libraries do as of a date: no link in them is older than they say."""

from __future__ import annotations

import calendar
import re
from pathlib import Path

import pytest

BOOK = Path(__file__).resolve().parents[2] / "book"
#: Commits that boxes link to, and when they were made, as `git log -1 --format=%cs COMMIT` says.
MADE = {
    "001199898c4badd01eaf0785c212d8ed7ce83042": "2025-12-12",  # Megatron-LM
    "067f987df03b8355b03192d88d70f1709fedf51a": "2026-08-22",  # Megatron-Bridge
    "11ceb1d2acc50dcb0fb5b3b9927b874ee8f625b8": "2026-07-27",  # Megatron-LM
    "3ff7b24aa0e23db4a575f7dc4bc6f815008ac6fd": "2026-08-19",  # orbax
    "744d01e18b79512572f64a6bbd8b5f4a725203a7": "2026-08-22",  # ml-engineering
    "7eb7087885f7ffaf51148a9df3289d73b8709fbd": "2026-04-03",  # torchft
    "b5bcd76c66d0acb1a08b176d9639425bc55e0b2a": "2026-08-21",  # torchtitan
    "d0067d0da6cb01811b8072a7d304f0e00344ce2b": "2026-08-22",  # Transformer Engine
    "d8686d9c7015c39ce91dd01788c0ab111a24818b": "2026-08-07",  # nvidia-resiliency-ext
    "d98e8a64ddf34856e74b24714e3bedb2f5a39553": "2026-08-22",  # Megatron-LM
    "dd758caf451848bd150e1046af3d0a73e5fff38d": "2026-07-14",  # DeepEP
    "fa6c5014c9f6e9ee789da2d9c20d5126fee8df0d": "2026-06-22",  # OLMo-core
}
#: So many months a link may be older than its box without a word: files change less often than they are read.
MONTHS_OLD = 3
MONTHS = list(calendar.month_name)[1:]
#: A box, its title and what it holds; in it, "As of" or "Read in" a month or a year.
BOX = re.compile(r"^(:::+)\{admonition\} ((?:As of )?[^\n]*\b20\d\d)\n(.*?)^\1$", re.MULTILINE | re.DOTALL)
DATE = re.compile(rf"(?:({'|'.join(MONTHS)}) )?(20\d\d)")
CITED, URL = re.compile(r"\{cite:\w\}`([^`]+)`"), re.compile(r"https?://[^\s)}]+")
FILE = re.compile(r"github\.com/[\w.-]+/[\w.-]+/(?:blob|tree|commit)/([^/\s]+)")
SOURCE = re.compile(r"^@\w+\{(\w+),(.*?)^\}", re.MULTILINE | re.DOTALL)


def month(date: re.Match) -> tuple[int, int]:
    """Year and month, 1 to 12; of a year alone, its first month."""
    return int(date[2]), 1 + MONTHS.index(date[1]) if date[1] else 1


def faults(chapter: str, urls: dict[str, str]) -> list[str]:
    """What is wrong with the dates of a chapter's boxes; urls: of each source of the bibliography."""
    found = []
    for _, title, text in BOX.findall(chapter):
        said = DATE.search(re.sub(r"(?s).*?\bRead in ", "", text) if "Read in " in text else title)
        for bullet in re.split(r"^- ", re.sub(r"^%.*\n", "", text, flags=re.MULTILINE), flags=re.MULTILINE)[1:]:
            cited, words = [key for keys in CITED.findall(bullet) for key in keys.split(",")], URL.sub("", bullet)
            for url in [*URL.findall(bullet), *(urls.get(key, "") for key in cited)]:
                if at := FILE.search(url):
                    found += [f"{title}: {url} {fault}" for fault in _faults(at[1], words, month(said))]
                elif re.search(r"/(stable|latest)/", url) and not re.search(r"\d\.\d", words):
                    found.append(f"{title}: {url} changes; name the version that it describes")
    return found


def _faults(ref: str, words: str, said: tuple[int, int]) -> list[str]:
    """What is wrong with a link to a file at this branch, tag or commit."""
    if version := re.search(r"(\d+\.\d+)[\d.]*(-\d+)?$", ref):  # a tag
        return [] if version[1] in words else [f"is of {version[1]}, which its point should say"]
    if not re.fullmatch(r"[0-9a-f]{40}", ref):
        return ["changes; link to a tag or a commit"]
    if ref not in MADE:
        return ["has no date in tests/book/test_dates.py; open the repository and add it"]
    year, number, _ = MADE[ref].split("-")
    made = int(year), int(number)
    age = 12 * (said[0] - made[0]) + said[1] - made[1]
    told = [month(date) for date in DATE.finditer(words) if date[1]]
    return (
        []
        if age <= MONTHS_OLD or made in told
        else [f"is of {MONTHS[made[1] - 1]} {made[0]}, which its point should say"]
    )


def sources(bibliography: str) -> dict[str, str]:
    """The addresses of a bibliography's sources."""
    return {key: found[0] for key, entry in SOURCE.findall(bibliography) if (found := URL.search(entry))}


URLS = sources((BOOK / "references.bib").read_text(encoding="utf-8"))
CHAPTERS = sorted(path for path in BOOK.glob("*.md") if BOX.search(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_no_link_in_a_box_is_older_than_the_box_says(chapter):
    assert not faults(chapter.read_text(encoding="utf-8"), URLS)


@pytest.mark.parametrize(
    ("point", "fault"),
    [
        ("{cite:p}`old`", "is of December 2025"),
        ("{cite:p}`old`, in December 2025", ""),
        ("[it](https://github.com/a/b/blob/v2.13.0/c.py) does", "is of 2.13"),
        ("[it](https://github.com/a/b/blob/v2.13.0/c.py) does in 2.13", ""),
        ("[it](https://github.com/a/b/blob/main/c.py)", "changes"),
        (f"[it](https://github.com/a/b/blob/{'0' * 40}/c.py)", "has no date"),
        ("[it](https://docs.pytorch.org/docs/stable/c.html)", "name the version"),
        ("{cite:p}`new`", ""),
    ],
)
def test_an_old_link_is_seen(point, fault):
    box = f":::{{admonition}} As of August 2026\n- **It.** {point}\n:::\n"
    refs = {"old": "001199898c4badd01eaf0785c212d8ed7ce83042", "new": "11ceb1d2acc50dcb0fb5b3b9927b874ee8f625b8"}
    found = faults(box, {key: f"https://github.com/a/b/blob/{ref}/c.py" for key, ref in refs.items()})
    assert len(found) == bool(fault) and fault in "".join(found)


def test_the_boxes_are_found_and_readers_know_the_version_that_ran():
    assert len(CHAPTERS) >= 7
    (version,) = re.findall(r"^torch==(\d+\.\d+)", (BOOK.parent / "requirements.lock").read_text(), re.MULTILINE)
    assert f"ran with PyTorch {version}." in (BOOK / "start" / "reader.md").read_text(encoding="utf-8")
