"""The `running-model` directive: what a lesson's idea does to the model that runs through the book, as a table.

    :::{running-model} zero_stage=3
    What there is to see in it.
    :::

The argument is a layout of the planner (`planner.Layout`): `name=value` for each field that is not its default; data
parallelism gets the ranks that are left. Without an argument each row has the layout that the planner finds fastest.
The rows are 8, 64 and 1,024 H100s and one NVL72; `:model:` is another model of `machines.model` than Llama 3 8B,
`:sequence:` another number of tokens per sequence, `:batch:` another number of sequences per step than 1,024. All
numbers are computed while the book is built. Each row leads to the page that plans a training run, with its settings. A
layout that does not fit the GPUs, and a name that does not exist, cause a warning, which stops the build.

The `one-run` directive collects the boxes of all chapters, and shows for one of them how its numbers add up.
"""

from __future__ import annotations

import ast
import functools
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from urllib.parse import urlencode

from collected import read_chapters, title_of
from docutils import nodes
from docutils.parsers.rst import directives
from docutils.statemachine import StringList
from plan_page import MEMORY, PAGE, TIME, note_sources
from sphinx.util.docutils import SphinxDirective

import planner
from machines.cluster import GB, find
from machines.model import MODELS, Model
from planner import Layout, Prediction, communication, predict
from planner.arithmetic import Step
from planner.layout import check
from planner.search import FILLED
from planner.software import MEGATRON

#: What a row is called, the machine, and how many of its GPUs take part.
MACHINES = (
    ("8 H100s", "H100", 8),
    ("64 H100s", "H100", 64),
    ("1,024 H100s", "H100", 1024),
    ("one NVL72", "GB200 NVL72", 64),
)
HEADS = ["", "memory per GPU", "sent per GPU", "step"]
BLANK, NONBREAKING = "\N{NO-BREAK SPACE}", "\N{NON-BREAKING HYPHEN}"
#: Sequences per step, unless a box says otherwise.
BATCH = 1024
#: The row whose numbers `one-run` adds up.
ADDED_UP = "1,024 H100s"
BOX = re.compile(r"^:::+\{running-model\}(.*)\n((?::\w+:.*\n)*)", re.MULTILINE)


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
    """A layout in the words of lesson 15: "dp 32, tp 4, pp 2", broken only between axes; what is 1 is left out."""
    sizes = {axis: getattr(layout, axis) for axis in ("dp", "tp", "pp", "cp", "ep")}
    axes = ", ".join(f"{axis}{BLANK}{size}" for axis, size in sizes.items() if size > 1)
    shard = f" over{BLANK}{layout.shard}" if layout.shard else ""
    again = f", {layout.recomputation}" if layout.recomputation else ""
    return f"{axes}{', ' * bool(axes)}ZeRO{NONBREAKING}{layout.zero_stage}{shard}{again}"


def in_address(value: Any) -> str:
    """A setting as the address of the page that plans a training run has it."""
    if isinstance(value, tuple):
        return ",".join(value)
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


class Row(NamedTuple):
    """A row of the box: a machine, and the prediction for it; None if the layout needs more GPUs than it has."""

    name: str
    machine: str
    found: Prediction | None

    @property
    def sent(self) -> dict[str, float]:
        """Bytes that a GPU sends in a step, by axis."""
        assert self.found
        layout = self.found.layout
        step = Step(self.found.model, self.found.cluster, layout, MEGATRON)
        return communication.bytes_sent(step, layout.micro_batches(self.found.batch))

    @property
    def cells(self) -> list[str]:
        """Memory, bytes sent and time, in words."""
        if not self.found:
            return ["too few GPUs", "", ""]
        seconds = f"{self.found.seconds:.3g} s" if self.found.nbytes <= self.found.cluster.memory else "does not fit"
        return [f"{self.found.nbytes / GB:.0f} GB", f"{sum(self.sent.values()) / GB:,.0f} GB", seconds]

    @property
    def link(self) -> str:
        """The name of the machine, as a link to the page that plans a training run, with the row's settings."""
        if not self.found:
            return self.name
        settings = {"cluster": self.machine, "gpus": self.found.layout.gpus, "batch": self.found.batch}
        settings |= {"model": self.found.model.name, "sequence": self.found.model.sequence, "precision": "bf16"}
        settings |= {k: v for k, v in asdict(self.found.layout).items() if k != "dp"} | {"software": MEGATRON.name}
        texts = {name: in_address(value) for name, value in settings.items()}
        return f'<a href="{PAGE}.html#{urlencode(texts)}">{self.name}</a>'.replace("&", "&amp;")


@functools.cache
def predictions(model: Model, batch: int, given: tuple[tuple[str, Any], ...] | None) -> tuple[Row, ...]:
    """A row for each of `MACHINES`. given: fields of the layout, or None for the fastest one. ValueError."""
    table = []
    for name, machine, gpus in MACHINES:
        cluster, layout = find(machine), dict(given or ())
        split = layout.get("tp", 1) * layout.get("pp", 1) * layout.get("cp", 1)
        if given is None:
            found = planner.plan(model, cluster, gpus, batch).best
        elif gpus < max(split, layout.get("ep", 1) * layout.get("pp", 1)):
            found = None
        else:
            whole = Layout(dp=gpus // split, **layout)
            check(model, cluster, whole, batch, gpus, software=MEGATRON)
            found = predict(model, cluster, whole, batch, memory_limit=False)
        table.append(Row(name, machine, found))
    return tuple(table)


def rows(model: Model, batch: int, given: dict[str, Any] | None) -> list[list[str]]:
    """The cells of the box's table, without links."""
    found = predictions(model, batch, None if given is None else tuple(given.items()))
    table = [
        [row.name, *row.cells, *([named(row.found.layout)] if given is None and row.found else [])] for row in found
    ]
    return [[cell.replace(" ", BLANK) if i < 4 else cell for i, cell in enumerate(row)] for row in table]


def model_of(options: dict[str, Any]) -> Model:
    """The model that a box's options name. ValueError."""
    name = options.get("model", "Llama 3 8B")
    if name not in MODELS:
        raise ValueError(f"there is no model {name!r}; there are: {', '.join(MODELS)}")
    return replace(MODELS[name], sequence=int(options.get("sequence", MODELS[name].sequence)))


class RunningModel(SphinxDirective):
    """See the module's docstring."""

    has_content = True
    optional_arguments = 1
    final_argument_whitespace = True
    option_spec: ClassVar = {
        "model": directives.unchanged,
        "sequence": directives.positive_int,
        "batch": directives.positive_int,
    }

    def run(self) -> list[nodes.Node]:
        """The box: a title, the table, how its numbers come about, and the body."""
        batch = self.options.get("batch", BATCH)
        note_sources(self.env)
        try:
            model = model_of(self.options)
            given = fields(self.arguments[0]) if self.arguments else None
            table = rows(model, batch, given)
            links = [row.link for row in predictions(model, batch, None if given is None else tuple(given.items()))]
        except ValueError as error:
            return [self.state_machine.reporter.warning(f"running-model: {error}", line=self.lineno)]
        heads = HEADS if given is not None else [*HEADS, "layout"]
        lines = [heads, ["---", *["---:"] * (len(HEADS) - 1), *["---"] * (len(heads) - len(HEADS))]]
        lines += [[link, *cells[1:]] for link, cells in zip(links, table, strict=True)]
        text = [f"| {' | '.join(line)} |" for line in lines]
        layout = (
            f"Each row has the fastest layout that leaves {100 - 100 * FILLED:.0f} percent of the memory free. "
            if given is None
            else f"Every row has {named(Layout(**given))}, and data parallelism over the rest. "
        )
        note = (
            f"A step has {batch:,} sequences of {model.sequence:,} tokens. {layout}Weights and activations are "
            "in bf16, gradients, master weights and moments in float32. Of the 72 GPUs of an NVL72, 64 take part. "
            "Memory and time are estimates, computed by the planner in this book's repository; each row leads to the "
            "page on which you can change its settings."
        )
        box = nodes.admonition(classes=["running-model"])
        box += nodes.title("", f"The running model: {model.name}")
        self.state.nested_parse(StringList([*text, "", note, "", *self.content]), self.content_offset, box)
        return [box]


class Box(NamedTuple):
    """A box of a chapter. given: what it says of the layout."""

    chapter: str
    title: str
    model: Model
    batch: int
    given: dict[str, Any] | None

    @property
    def predictions(self) -> tuple[Row, ...]:
        return predictions(self.model, self.batch, None if self.given is None else tuple(self.given.items()))

    @property
    def words(self) -> str:
        """The layout in words, and model, sequences and batch where they are others than in most boxes."""
        layout = "the fastest layout" if self.given is None else named(Layout(**self.given))
        usual = MODELS["Llama 3 8B"]
        other = [] if self.model.name == usual.name else [self.model.name.replace("-", NONBREAKING)]
        if self.model.sequence != usual.sequence and self.model == replace(usual, sequence=self.model.sequence):
            other += [f"{self.model.sequence:,} tokens per sequence"]
        if self.batch != BATCH:
            other += [f"{self.batch:,} sequences"]
        return "; ".join([layout, *other])


def boxes(folder: Path) -> list[Box]:
    """The boxes of all chapters in a folder, in the order of the book. ValueError."""
    found = []
    for chapter in read_chapters(folder):
        for arguments, lines in BOX.findall(chapter.text):
            options = dict(re.findall(r"^:(\w+): *(.*)$", lines, re.MULTILINE))
            given = fields(arguments) if arguments.strip() else None
            batch = int(options.get("batch", BATCH))
            found.append(Box(chapter.name, title_of(chapter.text), model_of(options), batch, given))
    return found


def together(found: list[Box]) -> list[list[Box]]:
    """The boxes, those that say the same thing in one list."""
    same: dict[tuple[Model, int, str], list[Box]] = {}
    for box in found:
        same.setdefault((box.model, box.batch, box.words), []).append(box)
    return list(same.values())


def collected_tables(found: list[Box]) -> list[str]:
    """Three tables of MyST: memory, bytes and time of the boxes on each machine, equal ones in one row."""
    lines = []
    headings = ("Memory per GPU, in GB", "What a GPU sends in a step, in GB", "Time of a step, in seconds")
    for place, heading in enumerate(headings):
        lines += [
            f"## {heading}",
            "",
            f"| lesson | layout | {' | '.join(name.replace(' ', BLANK) for name, *_ in MACHINES)} |",
        ]
        lines += ["|---|---|" + "---:|" * len(MACHINES)]
        for box, *others in together(found):
            cells = [
                re.sub(r"( GB| s)$|^[^\d].*$|^$", "", row.cells[place]) or "\N{EN DASH}" for row in box.predictions
            ]
            lessons = ", ".join(f"{{doc}}`{one.chapter[:2]} </book/{one.chapter}>`" for one in (box, *others))
            lines.append(f"| {lessons} | {box.words} | {' | '.join(cells)} |")
        lines.append("")
    return lines


def parts(row: Row) -> list[tuple[str, str | None, float, float, float]]:
    """What a row's numbers are made of, term by term: (name, chapter, bytes held, bytes sent, seconds)."""
    assert row.found
    names = {**MEMORY, **{term: words for terms in TIME.values() for term, words in terms.items()}}
    found, sent = row.found, row.sent
    terms = [term for term in names if term in found.memory or term in found.time or sent.get(term)]
    return [
        (*names[term], found.memory.get(term, 0.0), sent.get(term, 0.0), found.time.get(term, 0.0)) for term in terms
    ]


def added_up(row: Row) -> list[str]:
    """A table of MyST with the parts of a row and their sums."""
    lines = ["| | memory, GB | sent, GB | time, s |", "|---|---:|---:|---:|"]
    table = parts(row)
    for name, chapter, *values in table:
        words = f"{{doc}}`{name} </book/{chapter}>`" if chapter else name
        cells = [f"{value:,.3f}" if value else "" for value in (values[0] / GB, values[1] / GB, values[2])]
        lines.append(f"| {words} | {' | '.join(cells)} |")
    held, sent, seconds = (sum(column) for column in list(zip(*table, strict=True))[2:])
    return [*lines, f"| **together** | **{held / GB:,.3f}** | **{sent / GB:,.3f}** | **{seconds:,.3f}** |"]


class OneRun(SphinxDirective):
    """The boxes of all chapters, and how the numbers of the fastest layout add up."""

    def run(self) -> list[nodes.Node]:
        note_sources(self.env)
        folder = Path(self.env.srcdir) / "book"
        for path in folder.glob("[0-9][0-9]_*.md"):
            self.env.note_dependency(str(path))
        try:
            tables = collected_tables(boxes(folder))
        except ValueError as error:
            return [self.state_machine.reporter.warning(f"one-run: {error}", line=self.lineno)]
        fastest = Box("", "", model_of({}), BATCH, None)
        row = next(row for row in fastest.predictions if row.name == ADDED_UP)
        text = [
            *tables,
            "## How the numbers add up",
            "",
            f"The fastest layout of {row.name} for {fastest.model.name} is {named(row.found.layout)}. Its numbers, "
            "term by term; each name leads to the chapter that derives it.",
            "",
            *added_up(row),
        ]
        holder = nodes.container()
        self.state.nested_parse(StringList(text), self.content_offset, holder, match_titles=True)
        return list(holder.children)


def setup(app: Any) -> dict[str, Any]:
    """Sphinx calls this."""
    app.add_directive("running-model", RunningModel)
    app.add_directive("one-run", OneRun)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
