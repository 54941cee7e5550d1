"""Links a key term of an earlier chapter, where a chapter first uses it in running prose, to the glossary.

The glossary page is collected from the chapters' tables of key terms (`collected.py`); each of its entries has an
anchor, `term-bucket`, and is known to Sphinx, so that {term}`bucket` works as well. Only paragraphs of a chapter's
sections are looked at: no quiz, theorem, table or title. A name of one word that means something else in everyday
language (`EVERYDAY`) is left alone, and so are names that the chapter's own table explains.
"""

from __future__ import annotations

import re
from pathlib import Path

from collected import AFTER_THE_PROSE, plain, read_chapters, terms
from docutils import nodes
from sphinx import addnodes
from sphinx.transforms import SphinxTransform

#: Names with an ordinary meaning, in which chapters use them as well.
EVERYDAY = {"round", "decay", "unit", "stream", "elastic", "agent", "commit", "blocking", "layout", "atomic", "expert"}
EVERYDAY |= {"collective", "node", "persist", "store", "warm-up"}


def names(term: str) -> list[str]:
    """The names in a cell of a table of key terms that a text may be searched for.

    Of several, parted by commas, one of a single small word may be half a name ("strong, weak scaling"), and so may
    what ends with a number ("stage 1, 2, 3"). What needs an explanation in parentheses means something else elsewhere.
    """
    parts = re.split(r",\s*", term)
    found = [part for part in parts if re.fullmatch(r"[A-Za-z0-9][\w\- ]{2,}(?<! \d)", part)]
    whole = len(parts) == 1
    return [one for one in found if one not in EVERYDAY and (whole or " " in one or re.search(r"[A-Z0-9-]", one))]


def earlier(docname: str, folder: Path) -> dict[str, str]:
    """Name → the term of the glossary, of all chapters before this one; without the chapter's own terms."""
    found: dict[str, str] = {}
    for chapter in read_chapters(folder):
        own = chapter.name == docname.rpartition("/")[2]
        for term, _ in terms(chapter.text):
            for name in names(term):
                if own:
                    found.pop(name, None)
                else:
                    found.setdefault(name, term)
        if own:
            return found
    return {}


def pattern(name: str) -> re.Pattern[str]:
    """How a text writes a name: at the beginning of a sentence or not, as one or as several."""
    first = name[0] if name[:2].isupper() else f"[{name[0].lower()}{name[0].upper()}]"
    return re.compile(rf"(?<![\w-]){first}{re.escape(name[1:])}(?:es|s)?(?![\w-])")


class LinkTerms(SphinxTransform):
    """Put the links into the chapters."""

    default_priority = 425  # after the links to lessons

    def apply(self, **kwargs) -> None:
        if not re.fullmatch(r"book/\d\d_\w+", self.env.docname):
            return
        wanted = earlier(self.env.docname, Path(self.env.srcdir, "book"))
        for paragraph in list(self.document.findall(_is_prose)):
            for text in [child for child in paragraph if isinstance(child, nodes.Text)]:
                self.link(paragraph, text, wanted)

    def link(self, paragraph: nodes.paragraph, text: nodes.Text, wanted: dict[str, str]) -> None:
        """Link the first name in a text that is still wanted, then look on after it."""
        matches = [(match, name) for name in wanted if (match := pattern(name).search(str(text)))]
        if not matches:
            return
        match, name = min(matches, key=lambda found: (found[0].start(), -len(found[1])))
        term = wanted[name]
        for other in [one for one in wanted if wanted[one] == term]:
            del wanted[other]
        target = {"refdomain": "std", "reftype": "term", "reftarget": plain(term), "refdoc": self.env.docname}
        shown = nodes.inline("", match[0], classes=["glossary-term"])
        link = addnodes.pending_xref("", shown, refexplicit=True, refwarn=True, **target)
        rest = nodes.Text(str(text)[match.end() :])
        paragraph.replace(text, [nodes.Text(str(text)[: match.start()]), link, rest])
        self.link(paragraph, rest, wanted)


def _is_prose(node: nodes.Node) -> bool:
    """Whether a node is a paragraph of a section below a chapter's title."""
    section = node.parent
    if not isinstance(node, nodes.paragraph) or not isinstance(section, nodes.section):
        return False
    if not isinstance(section.parent, nodes.section) or not isinstance(section[0], nodes.title):
        return False  # the chapter's beginning, or a theorem's content
    return not any(one[0].astext() in AFTER_THE_PROSE for one in (section, section.parent))


def setup(app):
    """Register the transform."""
    app.add_transform(LinkTerms)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
