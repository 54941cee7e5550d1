"""Gives each theorem, lemma and definition a link to itself, as headings have one, and each proof an end (in book.css).

sphinx-proof also gives all proofs of a page, and all statements, the same id, to which nothing can lead: it is taken
off.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx_proof.nodes import NODE_TYPES


def link(app: Any, doctree: nodes.document, docname: str) -> None:
    """Put the links into the titles, and take the ids off that stand more than once."""
    for node in doctree.findall(nodes.Element):
        if isinstance(node, tuple(NODE_TYPES.values())) and node["ids"] and isinstance(node[0], nodes.title):
            label = f'href="#{node["ids"][0]}" title="Link to this {node["realtype"]}"'
            node[0] += nodes.raw("", f'<a class="headerlink" {label}>#</a>', format="html")
        elif node.get("ids") in (["proof"], ["proof-content"]):
            node["ids"] = []


def setup(app: Any) -> dict[str, Any]:
    """Link when all nodes of a page are there."""
    app.connect("doctree-resolved", link)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
