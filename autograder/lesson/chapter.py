"""A lesson's chapter as text: how many words it has, and how many of them are its core."""

from __future__ import annotations

import re

from autograder.lesson import notebook

#: The heading under which optional sections stand, and those of what one looks up or works through.
OPTIONAL = "Optional sections"
APPARATUS = ("Key terms", "Interview questions", "Quiz", "Exercises", "References", "Further reading")
#: What is folded.
FOLDED = r"^(:::+)\{dropdown\}.*?^\1$"


def words(lesson: str) -> int:
    """The words of a lesson's chapter, its cells left out; 0 if it has none."""
    return len(_text(lesson).split())


def core_words(lesson: str) -> int:
    """The words of a chapter's core, where a formula is one word; 0 if the chapter has no optional sections.

    The core leaves out what is folded, the optional sections, and the sections of `APPARATUS`.
    """
    text = _text(lesson)
    if f"\n## {OPTIONAL}\n" not in text:
        return 0
    for folded in (FOLDED, *(rf"^## {title}\n.*?(?=^## |\Z)" for title in (OPTIONAL, *APPARATUS))):
        text = re.sub(folded, "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"\$\$.*?\$\$( \(\S+\))?|\$[^$]+\$", "formula", text, flags=re.DOTALL)
    text = re.sub(r"\{cite:\w+\}`[^`]*`|^%.*$|^:[\w-]+:.*\S+$|^:::+.*$|^\|[-:| ]+$", "", text, flags=re.MULTILINE)
    return sum(bool(re.search(r"\w", word)) for word in text.split())


def _text(lesson: str) -> str:
    """A lesson's chapter without its cells; "" if it has none."""
    chapter = notebook.ROOT / "book" / f"{lesson}.md"
    text = chapter.read_text(encoding="utf-8") if chapter.is_file() else ""
    return re.sub(r"^---\n.*?^---\n|^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
