"""Formulas become MathML while the book is built."""

from __future__ import annotations

import pytest

from autograder.lesson import mathml


def test_a_formula_becomes_mathml():
    assert "<msup>" in mathml.mathml("x^2", display=False)
    assert "<math" in mathml.mathml(r"\begin{aligned} a &= b \\ &= c \end{aligned}", display=True)
    assert "top" in mathml.mathml(r"\lVert c - \operatorname{top}_k(c)\rVert", display=False)


@pytest.mark.parametrize("latex", [r"\frac{1}{2", r"\nosuchcommand x", "x^1^2"])
def test_a_formula_with_a_mistake_is_refused_in_one_line(latex):
    with pytest.raises(ValueError) as error:
        mathml.mathml(latex, display=False)
    assert "\n" not in str(error.value) and str(error.value)


def test_signs_of_html_are_escaped():
    assert "<b>" not in mathml.mathml(r"a < b, \text{<b>x</b>}", display=False)
