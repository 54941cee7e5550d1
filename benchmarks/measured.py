"""What the book's formulas and the planner's constants say of one GPU, beside what the GPU did.

    python benchmarks/measured.py [FILE.json]

Without a file: `measured/h100.json`. Prints the table that README.md holds: prediction, measured value, their ratio.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from machines.cluster import find
from machines.model import LLAMA3_8B, activation_bytes_per_token, logits_bytes_per_token
from planner.software import ATTENTION_SHARE, MATMUL_SHARE, MEMORY_SHARE

HERE = Path(__file__).resolve().parent
MEASURED = HERE / "measured" / "h100.json"
H100 = find("H100")
BF16 = H100.flops["bf16"]


def results(path: Path = MEASURED) -> dict[str, dict[str, Any]]:
    """Name → result, of all parts of a file that the measurement wrote."""
    parts = json.loads(path.read_text(encoding="utf-8"))["parts"].values()
    return {result["name"]: result for part in parts for result in part["results"]}


def compared(found: dict[str, dict[str, Any]]) -> Iterator[tuple[str, float, float]]:
    """(what, the book's value, the measured one) on an H100 or H200 with layers of Llama 3 8B."""
    kept = found["one layer, recomputation none"]["measured_bytes_per_token"]
    fused = activation_bytes_per_token(LLAMA3_8B)
    apart = 2 * LLAMA3_8B.ffn + 4 * LLAMA3_8B.heads + 8
    yield "bytes that a layer keeps per token, SwiGLU fused (10)", fused, kept
    yield "the same with SiLU's result kept and the kernels' statistics", fused + apart, kept
    logits = found["logits, plain cross-entropy"]
    per_token = logits["measured_peak_bytes"] / logits["tokens"]
    yield "bytes of the logits per token (12)", logits_bytes_per_token(LLAMA3_8B), per_token
    once, again = (found[f"12 layers, recomputation {how}"]["measured_ms"] for how in ("none", "full"))
    yield "time with full recomputation over time without (10)", 4 / 3, again / once
    for kernel, name in (("flash 2", "flash"), ("flash 3", "cudnn")):
        one = found[f"{name} attention, 8192 tokens"]
        for share, way in zip(ATTENTION_SHARE[kernel, "H100"], ("forward", "backward"), strict=True):
            what = f"attention, 8,192 tokens, {way}: the planner's {kernel}, measured {name}"
            yield what, share, one[f"measured_{way}_tflops"] * 1e12 / BF16
    share, _ = MATMUL_SHARE["H100", "bf16"]
    product, copy = found["sustained bf16"]["share_of_peak"], found["copy (2 bytes read, 2 written)"]["share_of_peak"]
    yield "share of the BF16 peak: the planner's in a whole run, a product for ten seconds", share, product
    yield "share of the memory's bandwidth: the planner's, a copy", MEMORY_SHARE, copy
    for way in ("fused", "foreach"):
        adam = found[f"Adam {way}"]
        what = f"the same: Adam {way}, {adam['counted_bytes_per_element']} bytes per parameter"
        yield what, MEMORY_SHARE, adam["share_of_peak"]
    yield "GB/s from the host, pinned (nominal)", H100.host_link / 1e9, found["best"]["pinned_up_gb_per_s"]
    ring = [found["sum over 512 ranks"][f"{how}_ring_relative_error"] for how in ("predicted", "measured")]
    yield "relative error of a BF16 sum around a ring of 512", *ring


def table(path: Path) -> str:
    """The comparison in Markdown."""
    rows = [f"| {what} | {book:,.4g} | {gpu:,.4g} | {gpu / book:.2f} |" for what, book, gpu in compared(results(path))]
    return "\n".join(["| | book | GPU | GPU / book |", "|---|---:|---:|---:|", *rows])


if __name__ == "__main__":
    print(table(Path(sys.argv[1]) if len(sys.argv) > 1 else MEASURED))
