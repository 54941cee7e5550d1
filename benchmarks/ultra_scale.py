"""Turn the measurements of the Ultra-Scale Playbook into rows for `planner.py`, a sweep per model and number of nodes.

    python benchmarks/ultra_scale.py benchmarks_interactive.html > rows.json

The file is assets/data/benchmarks/benchmarks_interactive.html of the playbook's repository: the interactive figure of
1,758 runs that finished, on one to 64 nodes of eight H100s, 256 sequences of 4,096 tokens each. --failed: the runs
that did not finish instead, which say nothing about time.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

#: The figure's panels: axis → name, and layers, width, inner width, heads, heads of keys and values, tied embeddings.
PANELS = {
    "x": ("1.34B", 16, 2048, 8192, 32, True), "x2": ("3.57B", 28, 3072, 8192, 32, True),
    "x3": ("8.86B", 32, 4096, 14336, 32, False), "x4": ("80B", 80, 8192, 28672, 64, False),
}  # fmt: skip
FIELDS = r"(Nodes|MBS|GradAcc|DP|PP|TP|ZeRO|tok/s/gpu|GPU memory):\s*([\d.,]+)"


def points(text: str) -> list[tuple[str, dict[str, float]]]:
    """(panel, numbers) of each point of the figure, once."""
    traces, _ = json.JSONDecoder().raw_decode(text[text.index('[{"hoverinfo"') :])
    found = {}
    for trace in traces:
        for label in trace.get("text") or []:
            numbers = {key: float(value.replace(",", "")) for key, value in re.findall(FIELDS, label)}
            found[trace["xaxis"], tuple(sorted(numbers.items()))] = (trace["xaxis"], numbers)
    return list(found.values())


def row(panel: str, numbers: dict[str, float]) -> dict[str, Any]:
    """The row of one run."""
    size, layers, hidden, ffn, heads, tied = PANELS[panel]
    whole = {key: int(value) for key, value in numbers.items()}
    name = f"Ultra-Scale {size}, nodes {whole['Nodes']}, DP{whole['DP']} TP{whole['TP']} PP{whole['PP']}"
    return {
        "name": f"{name} MBS{whole['MBS']} ZeRO-{whole['ZeRO']}",
        "source": "Ultra-Scale Playbook (nanotron)",
        "model": {
            "layers": layers, "hidden": hidden, "ffn": ffn, "heads": heads, "kv_heads": heads, "vocab": 131072,
            "seq": 4096, "gated": True, "tied": tied,
        },
        "cluster": "H100",
        "gpus": 8 * whole["Nodes"],
        "layout": {
            "dp": whole["DP"], "tp": whole["TP"], "pp": whole["PP"], "micro_batch": whole["MBS"],
            "zero_stage": whole["ZeRO"], "virtual_stages": 1,
        },
        "precision": "bf16",
        "batch_sequences": whole["GradAcc"] * whole["MBS"] * whole["DP"],
        "published": {
            "tokens_per_gpu_per_second": numbers.get("tok/s/gpu"), "memory_gib": numbers.get("GPU memory"),
        },
    }  # fmt: skip


def main() -> int:
    """Run the program; its exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("figure", type=Path)
    parser.add_argument("--failed", action="store_true", help="the runs that did not finish")
    options = parser.parse_args()
    try:
        found = points(options.figure.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        print(f"{options.figure} is not the playbook's figure: {error}", file=sys.stderr)
        return 2
    print(json.dumps([row(*point) for point in found if ("tok/s/gpu" in point[1]) != options.failed], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
