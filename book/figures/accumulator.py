"""The still of a sum in few bits: the addition of 1 at which bfloat16 and float16 stop, by lesson 10's `round_to`."""

from __future__ import annotations

import torch

from autograder.lesson import notebook

CAPTION = "Ones, added up in a format of few bits"
#: Exponent and mantissa bits of the two formats.
FORMATS = {"bfloat16": (8, 7), "float16": (5, 10)}
#: In units of the picture: a bit's width and height, and where the first bit stands.
WIDTH, HEIGHT, LEFT = 22, 20, 76


def still() -> tuple[str, str]:
    """The picture and its text alternative."""
    round_to = notebook.functions("10_memory")["round_to"]
    marks, said, top = [], [], 0
    for name, (exponent_bits, mantissa_bits) in FORMATS.items():
        total, before = torch.ones(1), torch.zeros(1)
        while total != before:
            before, total = total, round_to(total + 1, exponent_bits, mantissa_bits)
        end = int(total.item())
        title = f"{name} stops at {end:,}"
        marks.append(f'<text class="still-title" x="0" y="{top + 14}">{title}</text>')
        for line, (label, number) in enumerate((("sum", end), ("addend", 1), ("exact", end + 1), ("rounded", end))):
            y = top + 24 + HEIGHT * line
            marks.append(f'<text class="still-label" x="0" y="{y + 14}">{label}</text>')
            marks += _bits(number, end.bit_length(), mantissa_bits + 1, y)
        said.append(f"{title}: the bit of 1 comes after the last of the {mantissa_bits + 1} that {name} keeps")
        top += 40 + 4 * HEIGHT
    key = "Bits from the highest power of two down to 1. Boxed: the bits that the format keeps."
    marks.append(f'<text class="still-label" x="0" y="{top + 12}">{key}</text>')
    picture = f'<svg viewBox="0 0 {LEFT + 13 * WIDTH + 160} {top + 18}" xmlns="http://www.w3.org/2000/svg">'
    return f"{picture}{''.join(marks)}</svg>", f"Ones are added up in two formats. {'; '.join(said)}."


def _bits(number: int, width: int, kept: int, y: int) -> list[str]:
    """The bits of `number` in `width` columns; the first `kept` are boxed."""
    marks = []
    for column in range(width):
        x, power = LEFT + WIDTH * column, width - 1 - column
        if column < kept:
            marks.append(f'<rect class="still-box" x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}"/>')
        if power < number.bit_length():
            marks.append(f'<text class="still-label" x="{x + 8}" y="{y + 14}">{number >> power & 1}</text>')
    return marks
