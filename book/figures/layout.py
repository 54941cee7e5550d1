"""The still of the layouts: Llama 3 70B on 512 H100s, as lesson 15 costs it; and what the page computes with."""

from __future__ import annotations

import functools
import json
from itertools import product
from typing import Any

from autograder.lesson import notebook
from machines.cluster import Cluster, find
from machines.model import (
    LLAMA3_8B,
    LLAMA3_70B,
    LLAMA3_405B,
    activation_bytes_per_token,
    flops_per_token,
    parameters,
)

CAPTION = "Layouts of a model on a cluster, the fastest first"
GPUS, BATCH, SIZES = 512, 512, (1, 2, 4, 8, 16)
#: In units of the picture: the space for labels, a cell's width and height.
LEFT, WIDE, HIGH = 44, 68, 26


def machine(name: str) -> Cluster:
    """A machine on which messages cost their bytes at nominal bandwidth, and nothing else."""
    found: Cluster = notebook.functions("15_layout")["BandwidthOnly"](**vars(find(name)))
    return found


@functools.cache
def share() -> float:
    """The share of the peak that makes lesson 15's `cost` right for Llama 3 405B on 8,192 GPUs."""
    lesson = notebook.functions("15_layout")
    found: float = lesson["calibrate"](LLAMA3_405B, machine("H100"), lesson["llama3_layout"](64), 8192, 2048, 430)
    return found


def data() -> str:
    """The numbers of machines and models, for the page."""
    machines = {
        name: {
            "memory": one.memory, "peak": one.flops["bf16"], "domain": one.domain, "nvlink": one.nvlink,
            "ports": one.ports, "port": one.port,
        }
        for name, one in ((name, find(name)) for name in ("H100", "GB200 NVL72"))
    }  # fmt: skip
    models = {
        m.name: {
            "parameters": parameters(m).total, "layers": m.layers, "hidden": m.hidden, "heads": m.heads,
            "sequence": m.sequence, "flops": flops_per_token(m), "kept": activation_bytes_per_token(m),
        }
        for m in (LLAMA3_8B, LLAMA3_70B, LLAMA3_405B)
    }  # fmt: skip
    return json.dumps({"machines": machines, "models": models, "share": share()})


def best_layouts() -> dict[tuple[int, int], dict[str, Any]]:
    """(tp, pp) → the fastest layout that fits, or the first that runs out of memory, or the first of all."""
    lesson, found = notebook.functions("15_layout"), {}
    for tp, pp in product(SIZES, SIZES):
        layouts = [
            {"tp": tp, "dp": GPUS // (tp * pp), "pp": pp, "micro": b, "chunks": v, "recompute": again}
            for b, v, again in product((1, 2, 4), (1, 2, 4, 8), (False, True))
        ]
        tried = [lesson["cost"](LLAMA3_70B, machine("H100"), one, GPUS, BATCH, share()) for one in layouts]
        fit = [one for one in tried if one["reason"] is None]
        full = [one for one in tried if one["reason"] == "memory"]
        found[tp, pp] = min(fit, key=lambda one: one["seconds"]) if fit else (full or tried)[0]
    return found


def still() -> tuple[str, str]:
    """The picture and its text alternative."""
    layouts = best_layouts()
    top = max(one.get("mfu", 0) for one in layouts.values())
    marks = [
        f'<text class="still-label" x="{LEFT + k * WIDE + 18}" y="12">tp {tp}</text>' for k, tp in enumerate(SIZES)
    ]
    for row, pp in enumerate(SIZES):
        y = 20 + row * HIGH
        marks.append(f'<text class="still-label" x="0" y="{y + 16}">pp {pp}</text>')
        for column, tp in enumerate(SIZES):
            one, x = layouts[tp, pp], LEFT + column * WIDE
            look = f"fill: var(--rank-2); fill-opacity: {0.7 * one.get('mfu', 0) / top:.2f}; opacity: 1"
            words = one["reason"] or f"{100 * one['mfu']:.1f} %"
            marks += [
                f'<rect class="still-box" x="{x}" y="{y}" width="{WIDE - 3}" height="{HIGH - 3}" style="{look}"/>',
                f'<text class="still-label" x="{x + 14}" y="{y + 16}">{words}</text>',
            ]
    (tp, pp), best = max(layouts.items(), key=lambda item: item[1].get("mfu", 0))
    alt = (
        f"MFU of layouts of Llama 3 70B on 512 H100s, by tensor and pipeline parallelism. Best is tp {tp}, "
        f"pp {pp}, with {100 * best['mfu']:.1f} %; with little of both, memory is too small."
    )
    size = f"{LEFT + len(SIZES) * WIDE} {20 + len(SIZES) * HIGH}"
    return f'<svg viewBox="0 0 {size}" xmlns="http://www.w3.org/2000/svg">{"".join(marks)}</svg>', alt
