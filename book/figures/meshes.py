"""Meshes on two nodes of eight GPUs: for each axis, which ranks form a group, and which wires it uses.

    :::{drawn-figure} meshes sizes=tp:4,dp:2,pp:2
    :::

sizes: the axes, the fastest-changing first; a second mesh on the same ranks after a slash.
"""

from __future__ import annotations

import math

from drawing import box, drawing, label

from autograder.lesson import notebook

CAPTION = "The groups of a mesh on two nodes of eight GPUs. Ranks with the same letter form a group"
#: In units of the picture: ranks per node, the space for labels, a rank's box, the height of an axis' two rows.
NODE, LEFT, WIDE, HIGH, PANEL = 8, 48, 40, 22, 78


def parse(sizes: str) -> list[dict[str, int]]:
    """The meshes of "tp:4,dp:2/ep:8"; ValueError if one of them does not fill both nodes."""
    meshes = [{name: int(n) for name, n in (axis.split(":") for axis in mesh.split(","))} for mesh in sizes.split("/")]
    if any(math.prod(mesh.values()) != 2 * NODE for mesh in meshes):
        raise ValueError(f"the sizes of {sizes} must multiply to {2 * NODE}")
    return meshes


def still(sizes: str) -> tuple[str, str]:
    """The picture and its text alternative."""
    lesson = notebook.functions("15_layout")
    marks, said, y = [], [], 0
    for mesh in parse(sizes):
        stride = 1
        for name, size in mesh.items():
            groups = lesson["rank_groups"](mesh, name)
            where = "ports of both nodes" if lesson["crosses_nodes"](mesh, name, NODE) else "NVLink alone"
            marks.append(label(0, y + 13, f"{name} {size}, {stride} apart: {where}", "still-title"))
            stride *= size
            for number, members in enumerate(groups):
                for rank in members:
                    x, top = LEFT + WIDE * (rank % NODE), y + 20 + (HIGH + 3) * (rank // NODE)
                    first = " mesh-first" if number == 0 else ""
                    marks.append(box(x, top, WIDE - 3, HIGH, f"mesh-rank mesh-{number % 8}{first}"))
                    text = f"{rank} {chr(97 + number)}"
                    marks.append(label(x + (WIDE - 3) / 2, top + 15, text, "still-label", "middle"))
            for node in (0, 1):
                marks.append(label(0, y + 35 + (HIGH + 3) * node, f"node {node}"))
            said.append(f"{name}: groups {groups}, {where}")
            y += PANEL
    return drawing(LEFT + WIDE * NODE, y - 4, marks), f"Sixteen ranks on two nodes of {NODE}. {'; '.join(said)}."
