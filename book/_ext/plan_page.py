"""The directives of the page that plans a training run.

    :::{plan-page}
    What stands there for a reader without scripts.
    :::

    :::{published-runs}
    :::

The figure computes with the planner itself: `to_javascript.py` translates `machines/` and
`planner/` while the book is built, and `book/planning/plan.js` shows what they say. The table of published runs
(`PRESETS`) has what the planner predicts for them, and how far it is off over all of `benchmarks/published_runs.json`.
The script turns the table's first column into buttons.
"""

from __future__ import annotations

import functools
import json
import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective
from sphinx.util.fileutil import copy_asset
from to_javascript import RUNTIME, translated

import planner
from machines import cluster
from planner import accuracy, calibrate, rows

BOOK = Path(__file__).resolve().parent.parent
PLANNING = BOOK / "planning"
SCRIPTS = ("figures/vendor/preact-htm.js", "planning/planner.js", "planning/plan.js")
ELEMENT = "plan-a-run"
#: The page, as others in its folder link to it.
PAGE = "plan"

#: Name of a run in `published_runs.json` → its name on the page. Dense models and mixtures of experts, many machines;
#: the planner's good rows and its bad ones. None of them gave a constant.
PRESETS = {
    "Llama 3 405B 16384 seq 8192": "Llama 3 405B, 8,192 tokens",
    "Llama 3 405B 16384 seq 131072": "Llama 3 405B, 131,072 tokens",
    "BLOOM 176B as trained DP8 TP4 PP12 MBS2": "BLOOM 176B",
    "torchtitan 8B 128 compile": "Llama 3 8B, torchtitan",
    "torchtitan 405B 512 interleaved": "Llama 3 405B, torchtitan",
    "torchtitan 8B long 262144 CP8": "Llama 3 8B, 262,144 tokens",
    "fms-fsdp 13b A100 128": "Llama 2 13B, fms-fsdp",
    "Ultra-Scale 1.34B 64 nodes": "1.34B on 64 nodes, nanotron",
    "Llama3.1 405B H100 1024 fp8": "Llama 3.1 405B, Megatron",
    "Llama3 70B GB300 64 nvfp4": "Llama 3 70B, NVFP4",
    "DeepSeek-V3 2048 H800": "DeepSeek-V3, as trained",
    "DeepSeek-V3 B200 256 mxfp8": "DeepSeek-V3, Megatron",
    "Qwen3 235B-A22B B200 256 mxfp8": "Qwen3 235B-A22B",
    "GPT-OSS 120B GB300 64 mxfp8": "GPT-OSS 120B",
}
#: Term of a prediction → what pages call it, and the chapter that derives it, if one does; the groups are the lanes.
TIME = {
    "computes": {
        "matmuls": ("matrix multiplications", "02_costs"),
        "attention": ("attention", "13_context"),
        "logits": ("output layer and loss", "12_tensor"),
        "elementwise": ("norms, residuals, activations", None),
        "quantizing": ("quantizing", "10_memory"),
        "recomputing": ("recomputation", "10_memory"),
        "adapters": ("adapters (LoRA)", None),
        "experts' overhead": ("overhead of experts", "14_experts"),
        "optimizer": ("optimizer", "08_zero1"),
    },
    "communicates": {
        "tensor": ("tensor parallelism", "12_tensor"),
        "context": ("context parallelism", "13_context"),
        "experts": ("expert parallelism", "14_experts"),
        "stages": ("between stages", "11_pipeline"),
        "data": ("data parallelism, ZeRO", "09_fsdp"),
        "offloading": ("offloading", "10_memory"),
    },
    "waits": {
        "bubble": ("bubble", "11_pipeline"),
        "imbalance": ("uneven stages", "11_pipeline"),
        "host": ("for the host", None),
    },
}
MEMORY = {
    "states": ("weights, gradients, optimizer", "09_fsdp"),
    "activations": ("activations", "10_memory"),
    "logits": ("logits", "12_tensor"),
    "fixed": ("libraries, buffers", None),
}
#: Unit of what was published → how a value is written.
UNITS = {
    "tokens_per_gpu_per_second": "{:,.0f} tokens/s",
    "step_seconds": "{:.3g} s",
    "tflops_per_gpu": "{:,.0f} TFLOP/s",
    "mfu": "{:.1%} MFU",
}


@functools.cache
def constants() -> dict[str, Any]:
    """What the page's script shows besides the planner: published runs, their machines, errors, and words of terms."""
    machines = {run.cluster.name: asdict(run.cluster) for run in map(rows.read, published_runs())}
    own = {name: machine for name, machine in machines.items() if name not in cluster.CLUSTERS}
    margins = {family: asdict(found) for family, found in accuracy.margins().items()}
    return {"presets": presets(), "machines": own, "margins": margins, "TIME": TIME, "MEMORY": MEMORY}


@functools.cache
def published_runs() -> list[dict[str, Any]]:
    """The rows of `benchmarks/published_runs.json`."""
    return list(json.loads(calibrate.ROWS.read_text(encoding="utf-8")))


@functools.cache
def presets() -> list[dict[str, Any]]:
    """The published runs: name, source, model, settings, and the published value with the predicted one."""
    by_name = {row["name"]: row for row in published_runs()}
    found = []
    for row_name, name in PRESETS.items():
        run = rows.read(by_name[row_name])
        compared = rows.compare(run)
        settings = {"cluster": run.cluster.name, "gpus": compared.prediction.layout.gpus, "batch": run.batch}
        settings |= {"precision": run.precision, "software": run.software.name}
        shown = {"published": compared.published, "predicted": compared.predicted, "error": compared.error}
        found.append(
            {
                "name": name,
                "source": by_name[row_name]["source"],
                "model": asdict(run.model) | {"name": name},
                "settings": settings | asdict(compared.prediction.layout),
                "unit": compared.unit,
                "counting": run.counting,
                "recompute_told": "recompute" in by_name[row_name]["layout"],
                **shown,
            }
        )
    return found


def as_json(data: Any) -> str:
    """JSON for a page: an infinite time is a number that JavaScript reads as infinite, and no text ends the script."""
    return json.dumps(data, separators=(",", ":")).replace("Infinity", "1e999").replace("</", "<\\/")


def table() -> list[str]:
    """The published runs as a table of MyST."""
    lines = ["| run | GPUs | precision | published | predicted | error |", "|---|---:|---|---:|---:|---:|"]
    for run in presets():
        settings, unit = run["settings"], UNITS[run["unit"]]
        gpus = f"{settings['gpus']:,} {settings['cluster']}"
        values = [unit.format(run["published"]), unit.format(run["predicted"]), signed(run["error"])]
        cells = [gpus, settings["precision"], *values]
        cells = [cell.replace(" ", "\N{NO-BREAK SPACE}") for cell in cells]
        lines.append(f"| {' | '.join([run['name'], *cells])} |")
    return lines


def signed(share: float) -> str:
    """+5.2 %, with the sign that typesetters use."""
    return f"{100 * share:+.1f} %".replace("-", "\N{MINUS SIGN}")


def how_far_off() -> str:
    """How far off the planner is, over all published runs that gave no constant and are used, in two sentences."""
    told = {row["name"] for row in published_runs() if "recompute" in row["layout"]}
    kinds: dict[bool, list[float]] = {False: [], True: []}
    for compared in accuracy.compared_runs():
        kinds[bool(compared.run.model.experts)].append(abs(compared.error))
    large = [c.run.name for c in accuracy.compared_runs() if c.prediction.nbytes > c.run.cluster.memory]
    too_large, untold = len(large), sum(name not in told for name in large)
    dense, experts = (f"{100 * statistics.median(kinds[kind]):.0f} %" for kind in (False, True))
    runs = sum(map(len, kinds.values()))
    return (
        f"Over all {runs} published runs with which the planner is compared, its median error is {dense} for the "
        f"{len(kinds[False])} dense models and {experts} for the {len(kinds[True])} mixtures of experts. It counts too "
        f"much memory for {too_large} of them, which ran and by its account do not fit. For {untold} of these it is "
        "not known what was recomputed, and the planner assumes nothing."
    )


class PlanPage(SphinxDirective):
    """The figure: see the module's docstring."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """The figure's element with its constants, and what stands there without scripts."""
        note_sources(self.env)
        figure = f'<script type="application/json" id="plan-constants">{as_json(constants())}</script>'
        still = nodes.container(classes=["plan-still"])
        self.state.nested_parse(self.content, self.content_offset, still)
        return [nodes.raw("", f"<{ELEMENT}></{ELEMENT}>{figure}", format="html"), still]


class PublishedRuns(SphinxDirective):
    """The table: see the module's docstring."""

    def run(self) -> list[nodes.Node]:
        """The table in a container by which the script finds it, and the planner's accuracy."""
        note_sources(self.env)
        runs = nodes.container(classes=["plan-runs"])
        self.state.nested_parse(StringList([*table(), "", how_far_off()]), self.content_offset, runs)
        return [runs]


def note_sources(env: Any) -> None:
    """Build the page again when what it computes with has changed."""
    for folder in (Path(planner.__file__).parent, Path(cluster.__file__).parent):
        for path in folder.glob("*.py"):
            env.note_dependency(str(path))
    env.note_dependency(str(calibrate.ROWS))


def _copy(app: Any) -> None:
    """The scripts, the translated one too, and their style go next to the pages."""
    if app.builder.format == "html":
        folder = Path(app.outdir) / "_static" / "planning"
        copy_asset(PLANNING, folder, excluded=lambda path: path == RUNTIME.name)
        (folder / "planner.js").write_text(translated(), encoding="utf-8")


def _load(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Give the page its scripts, and no other page."""
    if f"<{ELEMENT}>" in (context.get("body") or ""):
        app.add_css_file("planning/plan.css")
        for script in SCRIPTS:
            app.add_js_file(script, loading_method="defer")


def setup(app: Any) -> dict[str, Any]:
    """Register the directives, and what puts the scripts into the page."""
    app.add_directive("plan-page", PlanPage)
    app.add_directive("published-runs", PublishedRuns)
    app.connect("builder-inited", _copy)
    app.connect("html-page-context", _load)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
