"""The `quiz` directive: one question, its options, and what to learn from each of them.

A chapter writes a question like this::

    :::{quiz} How many bytes does rank 0 send in a ring all-reduce of $T$ bytes over 4 ranks?
    - [ ] $T$

      That is what a rank would send if it passed its tensor on once. Nobody would then hold the sum.

    - [x] $\\tfrac{3}{2}T$

      Three messages of $T/4$ in the reduce-scatter and three in the all-gather.
    :::

The text after `{quiz}` is the question. Each item of the list is one option: `[x]` marks a right one,
`[ ]` a wrong one; its first paragraph is the option, and everything after the blank line is the feedback,
indented to the item's text. Paragraphs, code blocks and figures between the question and the list belong
to the question. Math, code, links and citations work everywhere. Several options may be right.

Each option becomes an HTML `<details>`, which opens with a click, a tap or Enter, is announced by screen
readers, and needs no script. With scripts, `progress.js` remembers the option that was opened first, under the
question's id, which is made from its text. A question without a text, with fewer than two options, without a
right one, or with an option that lacks feedback causes a warning, which stops the build.
"""

from __future__ import annotations

import hashlib
from string import ascii_uppercase

from docutils import nodes
from docutils.parsers.rst import Directive

MARKS = {"[x] ": True, "[X] ": True, "[ ] ": False}


class quiz(nodes.General, nodes.Element):  # noqa: N801 (docutils names its nodes so)
    """One question with its options. Attribute: name, the id of the paragraph with the question."""


class quiz_option(nodes.General, nodes.Element):  # noqa: N801
    """One option: a `quiz_choice`, then a `quiz_feedback`. Attributes: letter, right."""


class quiz_choice(nodes.General, nodes.Element):  # noqa: N801
    """The text of an option in the list."""


class quiz_feedback(nodes.General, nodes.Element):  # noqa: N801
    """The text that appears when the option is opened."""


class Quiz(Directive):
    """See the module's docstring."""

    has_content = True
    required_arguments = 0
    optional_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """The question and its options as one node, followed by a problem for each thing that is missing."""
        node = quiz()
        self.set_source_info(node)
        title = self.arguments[0] if self.arguments else ""
        children, messages = self.state.inline_text(title, self.lineno)
        node["name"] = f"question-{hashlib.sha256(title.encode()).hexdigest()[:8]}"
        question = nodes.paragraph("", "", *children, classes=["quiz-question"], ids=[node["name"]])
        self.set_source_info(question)
        node += question
        body = nodes.Element()
        self.state.nested_parse(self.content, self.content_offset, body)
        for child in body.children:
            node += _options(child) if isinstance(child, nodes.bullet_list) else [child]
        return [node, *messages, *(self._complain(problem) for problem in _problems(title, node))]

    def set_source_info(self, node: nodes.Node) -> None:
        node.source, node.line = self.state_machine.get_source_and_line(self.lineno)

    def _complain(self, problem: str) -> nodes.system_message:
        return self.state_machine.reporter.warning(f"quiz: {problem}", line=self.lineno)


def _options(items: nodes.bullet_list) -> list[quiz_option]:
    """Each list item as an option; without a mark, its `right` is None."""
    options = []
    for letter, item in zip(ascii_uppercase, items.children, strict=False):
        blocks = list(item.children)
        right = _take_mark(blocks[0]) if blocks else None
        option = quiz_option(letter=letter, right=right)
        option += quiz_choice("", *(_inline(blocks[0]) if blocks else []))
        option += quiz_feedback("", *blocks[1:])
        options.append(option)
    return options


def _take_mark(first: nodes.Node) -> bool | None:
    """Remove `[x] ` or `[ ] ` from the start of an option; True for `[x]`, False for `[ ]`, None for neither."""
    text = next(iter(first.findall(nodes.Text)), None)
    for mark, right in MARKS.items():
        if text is not None and text.startswith(mark):
            text.parent.replace(text, nodes.Text(text[len(mark) :]))
            return right
        # An option that starts with math leaves the mark alone in its text node.
        if text is not None and text == mark.rstrip():
            text.parent.remove(text)
            return right
    return None


def _inline(block: nodes.Node) -> list[nodes.Node]:
    """The content of a block without the paragraph around it: a `<summary>` holds no paragraphs."""
    return list(block.children) if isinstance(block, nodes.paragraph) else [block]


def _problems(title: str, node: quiz) -> list[str]:
    """One problem for each thing that a question lacks."""
    options = list(node.findall(quiz_option))
    problems = []
    if not title.strip():
        problems.append("the question has no text: write it on the line of {quiz}")
    if len(options) < 2:
        problems.append("a question needs at least two options, each a list item")
    for option in options:
        if option["right"] is None:
            problems.append(f"option {option['letter']} starts with neither [x] nor [ ]")
        if not option.children[1].children:
            problems.append(f"option {option['letter']} has no feedback (a blank line, then indented text)")
    if options and not any(option["right"] for option in options):
        problems.append("no option is marked [x]")
    return problems


def _visit_quiz(self, node):
    self.body.append(f'<div class="quiz" role="group" aria-labelledby="{node["name"]}">\n')


def _depart_quiz(self, node):
    self.body.append("</div>\n")


def _visit_option(self, node):
    right = str(bool(node["right"])).lower()
    self.body.append(f'<details class="quiz-option" data-letter="{node["letter"]}" data-right="{right}">')


def _depart_option(self, node):
    self.body.append("</details>\n")


def _visit_choice(self, node):
    letter = node.parent["letter"]
    self.body.append(f'<summary><span class="quiz-letter">{letter}</span><span class="quiz-choice">')


def _depart_choice(self, node):
    self.body.append("</span></summary>")


def _visit_feedback(self, node):
    right = node.parent["right"]
    word, kind = ("Yes.", "right") if right else ("No.", "wrong")
    self.body.append(f'<div class="quiz-feedback quiz-{kind}"><p class="quiz-verdict">{word}</p>\n')


def _depart_feedback(self, node):
    self.body.append("</div>")


def setup(app):
    """Register the directive and how its nodes look in HTML."""
    app.add_node(quiz, html=(_visit_quiz, _depart_quiz))
    app.add_node(quiz_option, html=(_visit_option, _depart_option))
    app.add_node(quiz_choice, html=(_visit_choice, _depart_choice))
    app.add_node(quiz_feedback, html=(_visit_feedback, _depart_feedback))
    app.add_directive("quiz", Quiz)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
