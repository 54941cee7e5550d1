"""The `running-model` directive: what a lesson's idea does to the model that runs through the book, as a table.

    :::{running-model} zero_stage=3
    What there is to see in it.
    :::

The argument is a layout of the planner (`planner.Layout`): `name=value` for each field that is not its default; data
parallelism gets the ranks that are left. Without an argument each row has the layout that the planner finds fastest.
The rows are 8, 64 and 1,024 H100s and one NVL72; `:model:` is another model of `ranks.model` than Llama 3 8B, `:batch:`
another number of sequences per step than 1,024. All numbers are computed while the book is built. A layout that does
not fit the GPUs, and a name that does not exist, cause a warning, which stops the build.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

import planner
from planner import Layout, communication, predict
from planner.arithmetic import Step
from planner.software import MEGATRON
from ranks.cluster import GB, find
from ranks.model import MODELS, Model

#: What a row is called, the machine, and how many of its GPUs take part.
MACHINES = (
    ("8 H100s", "H100", 8),
    ("64 H100s", "H100", 64),
    ("1,024 H100s", "H100", 1024),
    ("one NVL72", "GB200 NVL72", 64),
)
HEADS = ["", "memory per GPU", "sent per GPU", "step"]


def fields(text: str) -> dict[str, Any]:
    """The fields of a layout in "tp=8 recompute=full"; ValueError if there is no such field."""
    found: dict[str, Any] = {}
    for pair in text.split():
        name, _, value = pair.partition("=")
        if name not in Layout.__dataclass_fields__ or name == "dp" or not value:
            raise ValueError(f"{pair!r} sets no field of a layout; write name=value, without dp")
        try:
            found[name] = ast.literal_eval(value)
        except ValueError:  # a word
            found[name] = value
    return found


def named(layout: Layout) -> str:
    """A layout in the words of lesson 15: "dp 32, tp 4, pp 2"; what is 1 is left out."""
    axes = ", ".join(f"{axis} {size}" for axis in ("dp", "tp", "pp", "cp") if (size := getattr(layout, axis)) > 1)
    again = "" if layout.recompute == "none" else f", {layout.recompute} recomputation"
    return f"{axes}{', ' * bool(axes)}ZeRO\N{NON-BREAKING HYPHEN}{layout.zero_stage}{again}"


def rows(model: Model, batch: int, given: dict[str, Any] | None) -> list[list[str]]:
    """The table: a row for each of `MACHINES`. given: fields of the layout, or None for the fastest one."""
    table = []
    for name, machine, gpus in MACHINES:
        cluster = find(machine)
        if given is None:
            found = planner.plan(model, cluster, gpus, batch).best
        else:
            split = given.get("tp", 1) * given.get("pp", 1) * given.get("cp", 1)
            found = predict(model, cluster, Layout(dp=gpus // split, **given), batch, memory_limit=False)
        step = Step(model, cluster, found.layout, MEGATRON)
        sent = communication.bytes_sent(step, found.layout.micro_batches(batch))
        seconds = f"{found.seconds:.3g} s" if found.nbytes <= cluster.memory else "does not fit"
        cells = [name, f"{found.nbytes / GB:.0f} GB", f"{sum(sent.values()) / GB:,.0f} GB", seconds]
        cells = [cell.replace(" ", "\N{NO-BREAK SPACE}") for cell in cells]
        table.append([*cells, named(found.layout)] if given is None else cells)
    return table


class RunningModel(SphinxDirective):
    """See the module's docstring."""

    has_content = True
    optional_arguments = 1
    final_argument_whitespace = True
    option_spec: ClassVar = {"model": directives.unchanged, "batch": directives.positive_int}

    def run(self) -> list[nodes.Node]:
        """The box: a title, the table, how its numbers come about, and the body."""
        name, batch = self.options.get("model", "Llama 3 8B"), self.options.get("batch", 1024)
        for package in ("planner", "ranks"):
            for path in Path(planner.__file__).parent.parent.joinpath(package).glob("*.py"):
                self.env.note_dependency(str(path))
        try:
            if name not in MODELS:
                raise ValueError(f"there is no model {name!r}; there are: {', '.join(MODELS)}")
            given = fields(self.arguments[0]) if self.arguments else None
            table = rows(MODELS[name], batch, given)
        except ValueError as error:
            return [self.state_machine.reporter.warning(f"running-model: {error}", line=self.lineno)]
        heads = HEADS if given is not None else [*HEADS, "layout"]
        lines = [heads, ["---", *["---:"] * (len(HEADS) - 1), *["---"] * (len(heads) - len(HEADS))], *table]
        text = [f"| {' | '.join(line)} |" for line in lines]
        layout = (
            "" if given is None else f"Every row has {named(Layout(**given))}, and data parallelism over the rest. "
        )
        note = (
            f"A step has {batch:,} sequences of {MODELS[name].sequence:,} tokens. {layout}Weights and activations are "
            "in bf16, gradients, master weights and moments in float32. Of the 72 GPUs of an NVL72, 64 take part. "
            "Memory and time are estimates, computed by the planner in this book's repository."
        )
        box = nodes.admonition(classes=["running-model"])
        box += nodes.title("", f"The running model: {name}")
        self.state.nested_parse(StringList([*text, "", note, "", *self.content]), self.content_offset, box)
        return [box]


def setup(app: Any) -> dict[str, Any]:
    """Sphinx calls this."""
    app.add_directive("running-model", RunningModel)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
