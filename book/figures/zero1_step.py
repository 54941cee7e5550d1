"""One step of ZeRO-1 on two GPUs: gradients, the sum of the own half, the optimizer's state, all parameters."""

from __future__ import annotations

from drawing import box, drawing, label

CAPTION = "One step of ZeRO-1 on two GPUs. Colors say who owns an element, heights how many bytes it has"
#: In units of the picture: a cell, a frame with six of them, the second frame, and 16- and 32-bit cells.
CELL, FRAME, SECOND = 27, 6 * 27 + 16, 6 * 27 + 16 + 20
HALF, WHOLE = 16, 26
WIDE = SECOND + FRAME
#: Where the rows stand: gradients, their sum, the state, the parameters.
GRADIENTS, SUM, STATE, PARAMETERS = 46, 128, 210, 344
HEIGHT = PARAMETERS + HALF + 14
SUBSCRIPTS = "₀₁₂₃₄₅"


def _x(gpu: int, cell: float) -> float:
    """The left side of a GPU's cell."""
    return SECOND * gpu + 8 + CELL * cell


def _cells(gpu: int, y: float, high: float, cells: range, names: str = "", faint: bool = False) -> list[str]:
    """Cells in the color of their owner, with the names of their elements."""
    marks = []
    for i in cells:
        kind = f"owned owned-{i // 3}{' owned-faint' * faint}"
        marks.append(box(_x(gpu, i), y, CELL, high, kind, 0))
        if names:
            ink = "still-label" if faint or i > 2 else "still-label owned-light"
            dark = "" if faint or i < 3 else "fill: #1b1b1b"
            text = names.replace("#", SUBSCRIPTS[i])
            marks.append(label(_x(gpu, i + 0.5), y + high / 2 + 4, text, ink, "middle", dark))
    return marks


def _absent(gpu: int, y: float, high: float, text: str) -> list[str]:
    """The half that a GPU does not have."""
    other = 3 * (1 - gpu)
    marks = [box(_x(gpu, other) + 1, y + 1, 3 * CELL - 2, high - 2, "owned-absent", 0)]
    return [*marks, label(_x(gpu, other + 1.5), y + high / 2 + 4, text, "still-label", "middle")]


def _arrow(x: float, y: float, to_x: float, to_y: float, owner: int) -> str:
    """An arrow that begins and ends vertically."""
    bend = (to_y - y) / 2
    way = f"M{x:g} {y:g}C{x:g} {y + bend:g} {to_x:g} {to_y - bend:g} {to_x:g} {to_y - 6:g}"
    tip = f"M{to_x - 4:g} {to_y - 7:g}h8l-4 7z"
    return f'<path class="moved moved-{owner}" d="{way}"/><path class="owned-{owner}" d="{tip}"/>'


def _moves(y: float, to_y: float, text: str, sent: tuple[int, ...]) -> list[str]:
    """What stays and what crosses between two rows; sent: the half that each GPU sends to the other one."""
    marks = []
    for gpu in (0, 1):
        own = 3 * gpu + 1
        half = sent[gpu]
        marks.append(_arrow(_x(gpu, own + 0.5), y, _x(gpu, own + 0.5), to_y, gpu))
        marks.append(
            _arrow(_x(gpu, 3 * half + 1.5), y, _x(1 - gpu, 3 * half + 1.5 + (0.9 if gpu else -0.9)), to_y, half)
        )
    middle = (y + to_y) / 2
    marks.append(box(WIDE / 2 - 92, middle - 10, 184, 19, "pill", 9))
    marks.append(label(WIDE / 2, middle + 4, text, "still-title", "middle"))
    return marks


def still() -> tuple[str, str]:
    """The picture and its text alternative."""
    marks = []
    for gpu in (0, 1):
        marks.append(box(SECOND * gpu, 0, FRAME, HEIGHT, "node-frame"))
        marks.append(label(SECOND * gpu + FRAME / 2, 18, f"GPU {gpu}", "still-title", "middle"))
        marks.append(label(SECOND * gpu + FRAME / 2, 36, "gradient of its examples, fp32", anchor="middle"))
        marks += _cells(gpu, GRADIENTS, WHOLE, range(6), f"{'ab'[gpu]}#", faint=True)
        marks.append(label(SECOND * gpu + FRAME / 2, SUM + WHOLE + 13, "g = (a + b) / 2", anchor="middle"))
        marks += _absent(gpu, SUM, WHOLE, "dropped")
        marks += _cells(gpu, SUM, WHOLE, range(3 * gpu, 3 * gpu + 3), "g#")
        marks.append(
            _arrow(
                _x(gpu, 3 * gpu + (0.5 if gpu == 0 else 2.5)),
                SUM + WHOLE,
                _x(gpu, 3 * gpu + (0.5 if gpu == 0 else 2.5)),
                STATE,
                gpu,
            )
        )
        for row, name in enumerate("mvw"):
            marks += _cells(gpu, STATE + WHOLE * row, WHOLE, range(3 * gpu, 3 * gpu + 3), f"{name}#")
        marks += _absent(gpu, STATE, 3 * WHOLE, f"on GPU {1 - gpu}")
        marks += _cells(gpu, PARAMETERS, HALF, range(6), "w#")
        marks.append(label(SECOND * gpu + FRAME / 2, HEIGHT - 3, "all parameters, bf16", anchor="middle"))
    marks += _moves(GRADIENTS + WHOLE, SUM, "1 reduce-scatter: 12 bytes", (1, 0))
    marks.append(box(WIDE / 2 - 64, (SUM + WHOLE + STATE) / 2 - 10, 128, 19, "pill", 9))
    marks.append(label(WIDE / 2, (SUM + WHOLE + STATE) / 2 + 4, "2 Adam: m, v, w", "still-title", "middle"))
    marks += _moves(STATE + 3 * WHOLE, PARAMETERS, "3 all-gather: 6 bytes", (0, 1))
    alt = (
        "From top to bottom, on two GPUs side by side. After backward each has a gradient of six fp32 elements. 1, the "
        "reduce-scatter: GPU 0 sends elements 3 to 5 to GPU 1, 12 bytes, and receives elements 0 to 2, so that each "
        "has the mean of its own half, g. 2, Adam: each GPU updates moments m and v and master weights w of its half, "
        "which exist on no other GPU. 3, the all-gather: each sends its three master weights as bf16, 6 bytes, after "
        "which both have all six parameters."
    )
    return drawing(WIDE, HEIGHT, marks), alt
