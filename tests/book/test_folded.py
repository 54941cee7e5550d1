"""Dropdowns take in what the cell above them shows, and sections without a name of their own get one."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from docutils import nodes
from docutils.core import publish_doctree

from autograder.lesson import notebook

sys.path.insert(0, str(notebook.ROOT / "book" / "_ext"))

import anchors
import folded

APP = SimpleNamespace(env=SimpleNamespace(docname="a page"))


def part(kind: str, *children: nodes.Node, **more: object) -> nodes.container:
    return nodes.container("", *children, nb_element=kind, **more)


def dropdown() -> nodes.container:
    return nodes.container("", nodes.rubric("", "The answer"), nodes.paragraph(), container_classes=["with-output"])


@pytest.mark.parametrize("shown", [["cell_code_source", "cell_code_output"], ["cell_code_output"]])
def test_an_output_moves_into_the_dropdown_below_and_code_stays(shown):
    page = publish_doctree("")
    page += [part("cell_code", *map(part, shown)), dropdown()]
    folded.fold(APP, page)
    *code, fold = page.children
    assert [child["nb_element"] for cell in code for child in cell] == shown[:-1]
    assert [type(child).__name__ for child in fold] == ["rubric", "container", "paragraph"]
    assert [child["nb_element"] for child in fold[1]] == ["cell_code_output"]


@pytest.mark.parametrize("above", [[], [nodes.paragraph()], [part("cell_code", part("cell_code_source"))]])
def test_a_dropdown_without_an_output_above_it_stops_the_build(above):
    page = publish_doctree("")
    page += [*above, dropdown()]
    with pytest.raises(ValueError, match="a page: no cell with an output stands above 'The answer'"):
        folded.fold(APP, page)


def test_sections_are_named_by_their_title_and_the_section_around_them():
    settings = {"doctitle_xform": False, "auto_id_prefix": "id"}  # Sphinx's
    page = publish_doctree("Terms\n=====\n\n0–9\n---\n\na\n\nβ\n-\n\nb\n", settings_overrides=settings)
    assert [section["ids"][0] for section in page.findall(nodes.section)] == ["terms", "id1", "id2"]
    anchors.NameSections(page).apply()
    assert [section["ids"][0] for section in page.findall(nodes.section)] == ["terms", "terms-0-9", "terms-β"]
    assert {"terms-0-9", "terms-β"} <= page.ids.keys()
