"""Names of sections whose titles give none (0–9, β) or the name of another section, instead of id1, id2 and so on.

Such a name is that of the section around it and the title, so that a link to it holds when other sections come and go.
"""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx.transforms import SphinxTransform


class NameSections(SphinxTransform):
    """Name them before anything refers to them."""

    default_priority = 261  # behind PropagateTargets

    def apply(self, **kwargs: Any) -> None:
        """Change the first anchor of each such section."""
        for section in self.document.findall(nodes.section):
            if not re.fullmatch(r"id\d+", section["ids"][0]):
                continue
            around = section.parent["ids"] if isinstance(section.parent, nodes.section) else []
            words = re.sub(r"[\W_]+", "-", section[0].astext().lower()).strip("-")
            name = "-".join([*around[:1], words])
            if name and name not in self.document.ids:
                self.document.ids[name] = self.document.ids.pop(section["ids"][0])
                section["ids"][0] = name


def setup(app: Any) -> dict[str, Any]:
    """Register the transform."""
    app.add_transform(NameSections)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
