"""Answers to a prediction: a dropdown with `:class-container: with-output` also holds the output of the cell above it.

A cell cannot stand inside of a directive, since it would not run there.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes


def fold(app: Any, document: nodes.document) -> None:
    """Move what the cell above each such dropdown shows into it, below its title. ValueError where there is none."""
    for dropdown in list(document.findall(nodes.container)):
        if "with-output" not in dropdown.get("container_classes", []):
            continue
        cell = dropdown.parent[max(0, dropdown.parent.index(dropdown) - 1)]
        shown = [part for part in cell.children if part.get("nb_element") == "cell_code_output"]
        if not shown:
            raise ValueError(f"{app.env.docname}: no cell with an output stands above {dropdown[0].astext()!r}")
        folded = cell.copy()
        for part in shown:
            cell.remove(part)
            folded += part
        if not cell.children:
            cell.parent.remove(cell)
        dropdown.insert(1, folded)


def setup(app: Any) -> dict[str, Any]:
    """Fold once a page is read."""
    app.connect("doctree-read", fold)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
