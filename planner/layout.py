"""A layout: which ranks split what, in which order, and with how much recomputation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from machines.cluster import Cluster
from machines.model import Model
from planner.software import PRECISIONS, Software

RECOMPUTE = ("none", "selective", "full")
SCHEDULES = ("1f1b", "zero_bubble", "dualpipe")
CONTEXT = ("ring", "all_gather", "all_to_all")
#: What selective recomputation can repeat: Megatron's `recompute_modules`.
MODULES = ("layernorm", "moe_act", "mla_up_proj", "mlp", "moe", "core_attn")


#: The fields that are numbers of ranks, sequences or chunks.
SIZES = ("dp", "tp", "pp", "cp", "ep", "etp", "micro_batch", "virtual_stages")
#: Layers that embedding, output layer and multi-token prediction may stand for at most where a pipeline is cut.
EXTRA_LAYERS = 3


def counted(number: int, noun: str) -> str:
    """ "1 GPU", "8 GPUs"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


class LayoutError(ValueError):
    """A layout that does not exist, or does not fit; the message is one line that says what to change.

    setting: the field that is wrong, or "batch", "gpus", "precision", "memory"; "" if no single one is.
    """

    def __init__(self, message: str, setting: str = "") -> None:
        super().__init__(message)
        self.setting = setting


@dataclass(frozen=True)
class Layout:
    """How dp · tp · pp · cp ranks share a step (lesson 15).

    dp, tp, pp, cp, ep: ranks of data, tensor, pipeline, context and expert parallelism. ep divides the ranks of a
    pipeline stage, as in Megatron's parallel folding: experts use the ranks of tp, cp and dp. etp: ranks that share one
    expert, as tp ranks share a matrix; ep · etp divides the ranks of a stage. micro_batch: sequences per micro-batch
    and replica. virtual_stages: chunks of layers per rank of the pipeline (lesson 11). zero_stage: 0 to 3 (lessons 08,
    09). shard: ranks over which ZeRO shards, None for all of dp and cp; fewer is HSDP. recompute: "none", "selective"
    or "full" (lesson 10). sequence_parallel: tensor parallelism also splits norms and residuals
    (lesson 12). recompute_modules: of `MODULES`, what every layer repeats. recompute_layers: layers of a rank that are
    recomputed in full, as Megatron's `recompute_num_layers` (there per virtual stage). offload_layers: layers of a rank
    whose activations wait in the host's memory. schedule: of the pipeline, "1f1b" (interleaved with more than one
    virtual stage), "zero_bubble" or "dualpipe". context: how context parallelism exchanges keys and values, "ring",
    "all_gather" or "all_to_all" (lesson 13).

    Ranks are numbered with tp changing fastest, then cp, dp, pp.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    micro_batch: int = 1
    virtual_stages: int = 1
    zero_stage: int = 1
    shard: int | None = None
    recompute: str = "none"
    sequence_parallel: bool = True
    schedule: str = "1f1b"
    context: str = "ring"
    recompute_modules: tuple[str, ...] = ()
    recompute_layers: int = 0
    offload_layers: int = 0
    etp: int = 1

    @property
    def gpus(self) -> int:
        """All ranks."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def data_ranks(self) -> int:
        """Ranks over which the gradients of ordinary weights are reduced."""
        return self.dp * self.cp

    @property
    def stage_between(self) -> int:
        """ZeRO's stage of what a rank holds between micro-batches.

        A pipeline has several under way, so its ZeRO-3 keeps weights gathered and gradients whole, as stage 1 does.
        """
        return 1 if self.zero_stage == 3 and self.pp > 1 else self.zero_stage

    @property
    def shards(self) -> int:
        """Ranks over which ZeRO shards ordinary weights."""
        return min(self.shard or self.data_ranks, self.data_ranks)

    @property
    def expert_data_ranks(self) -> int:
        """Ranks that hold the same experts, over which their gradients are reduced."""
        return max(1, self.data_ranks * self.tp // (self.ep * self.etp))

    def micro_batches(self, batch: int) -> int:
        """Micro-batches per replica and step, for a batch of so many sequences."""
        return batch // (self.dp * self.micro_batch)

    def __str__(self) -> str:
        axes = " ".join(f"{name} {getattr(self, name)}" for name in ("dp", "tp", "pp", "cp", "ep"))
        axes += f" etp {self.etp}" if self.etp > 1 else ""
        stages = counted(self.virtual_stages, "virtual stage")
        more = f"micro-batch {self.micro_batch}, {stages}, ZeRO-{self.zero_stage}"
        shard = f" over {self.shard}" if self.shard else ""
        again = self.recomputation
        return f"{axes}, {more}{shard}{', ' if again else ''}{again}"

    @property
    def recomputation(self) -> str:
        """What is recomputed and offloaded, in words; "" for nothing."""
        parts = [", ".join(self.recompute_modules)] if self.recompute_modules else []
        parts += [f"{self.recompute_layers} layers per rank"] if self.recompute_layers else []
        words = f"recomputes {' and '.join(parts)}" if parts else ""
        if not parts and self.recompute != "none":
            words = f"{self.recompute} recomputation"
        offload = f"offloads {self.offload_layers} layers per rank" if self.offload_layers else ""
        return ", ".join(part for part in (words, offload) if part)

    @property
    def complexity(self) -> tuple[float, ...]:
        """What breaks a tie: the smaller, the simpler to run."""
        split = sum(size > 1 for size in (self.tp, self.pp, self.cp, self.virtual_stages))
        again = (self.recompute != "none") + len(self.recompute_modules) + bool(self.recompute_layers)
        zero = {1: 0, 0: 1, 3: 2, 2: 3}[self.zero_stage] if self.data_ranks > 1 else self.zero_stage
        return (split, again + 2 * bool(self.offload_layers), zero, self.pp * self.virtual_stages, self.tp * self.cp)


def needed(layout: Layout) -> list[tuple[str, str]]:
    """What the layout needs of its program, of `planner.software.FEATURES`, and the field that needs it."""
    pipeline = layout.pp > 1
    needs = [
        ("tensor parallelism", "tp", layout.tp > 1),
        ("a pipeline", "pp", pipeline),
        ("interleaving", "virtual_stages", layout.virtual_stages > 1 and layout.schedule == "1f1b"),
        ("context parallelism", "cp", layout.cp > 1),
        ("ZeRO-1 without a pipeline", "zero_stage", layout.zero_stage == 1 and not pipeline and layout.data_ranks > 1),
        ("ZeRO-2", "zero_stage", layout.zero_stage == 2),
        ("ZeRO-3", "zero_stage", layout.zero_stage == 3),
        ("ZeRO-3 in a pipeline", "zero_stage", layout.zero_stage == 3 and pipeline),
        ("recompute_modules", "recompute_modules", len(layout.recompute_modules) > 0),
        ("recompute_layers", "recompute_layers", layout.recompute_layers > 0),
        ("offload_layers", "offload_layers", layout.offload_layers > 0),
        ("zero_bubble", "schedule", pipeline and layout.schedule == "zero_bubble"),
        ("dualpipe", "schedule", pipeline and layout.schedule == "dualpipe"),
    ]
    return [(feature, setting) for feature, setting, needs_it in needs if needs_it]


def broken_rules(
    model: Model,
    cluster: Cluster,
    layout: Layout,
    batch: int,
    gpus: int | None = None,
    precision: str = "bf16",
    software: Software | None = None,
) -> Iterator[LayoutError]:
    """Why this layout cannot run this model and batch at all: all hard rules are here. Memory is another question.

    gpus: how many there are, None for as many as the layout has. software: what runs it, None for a program that can do
    everything.
    """
    if precision not in PRECISIONS or PRECISIONS[precision][0] not in cluster.flops:
        known = [name for name in PRECISIONS if PRECISIONS[name][0] in cluster.flops]
        yield LayoutError(f"{cluster.name} has no {precision!r}; it has {', '.join(known)}", "precision")
    for name in SIZES:
        value = getattr(layout, name)
        if not isinstance(value, int) or value < 1:
            yield LayoutError(f"{name} is {value!r}; it must be a whole number of at least 1", name)
    if any(getattr(layout, name) < 1 for name in SIZES):
        return
    for name, words in (("recompute", RECOMPUTE), ("schedule", SCHEDULES), ("context", CONTEXT)):
        if getattr(layout, name) not in words:
            yield LayoutError(f"{name} is {getattr(layout, name)!r}; it must be one of {', '.join(words)}", name)
    if layout.zero_stage not in (0, 1, 2, 3):
        yield LayoutError(f"zero_stage is {layout.zero_stage!r}; ZeRO has stages 0 to 3", "zero_stage")
    if gpus is not None and layout.gpus != gpus:
        product = f"dp {layout.dp} x tp {layout.tp} x pp {layout.pp} x cp {layout.cp} = {counted(layout.gpus, 'rank')}"
        there = f"there {'is' if gpus == 1 else 'are'} {counted(gpus, 'GPU')}"
        yield LayoutError(f"{product}, but {there}; make the product equal", "gpus")
    if model.document is not None and model.document > model.sequence:
        longer = f"documents of {model.document} tokens are longer than sequences of {model.sequence}"
        yield LayoutError(f"{longer}; choose shorter documents, or longer sequences", "document")
    # A rank of context parallelism has two pieces of each sequence, so that all have as many pairs to compute.
    pieces = 2 * layout.cp if layout.cp > 1 else 1
    for what, whole, parts, axis, setting in (
        ("query heads", model.heads, layout.tp, "tp", "tp"),
        ("columns of an MLP", model.ffn, layout.tp, "tp", "tp"),
        ("sequences", batch, layout.dp * layout.micro_batch, "dp x micro_batch", "batch"),
        ("tokens per sequence", model.sequence, pieces, "2 cp", "cp"),
        ("tokens of a rank", model.sequence // layout.cp, layout.tp if layout.sequence_parallel else 1, "tp", "tp"),
    ):
        if whole % parts:
            yield LayoutError(f"{axis} = {parts} does not divide {whole} {what}; choose a divisor", setting)
    if model.kv_heads % layout.tp and layout.tp % model.kv_heads:
        heads = f"{model.kv_heads} heads of keys and values"
        yield LayoutError(f"tp = {layout.tp} divides {heads} no more than they divide it; choose a divisor", "tp")
    yield from stage_rules(model, layout, batch, software)
    if layout.shard is not None:
        if layout.zero_stage != 3:
            why = "but only ZeRO-3 shards over a part of the ranks; leave it out"
            yield LayoutError(f"shard is {layout.shard}, {why}", "shard")
        if layout.data_ranks % layout.shard:
            yield LayoutError(f"shard = {layout.shard} does not divide {layout.data_ranks} ranks (dp x cp)", "shard")
    yield from recomputation_rules(model, layout)
    yield from expert_rules(model, layout)
    if layout.context == "all_to_all" and layout.cp > 1 and model.kv_heads % (layout.cp * layout.tp):
        heads = f"cp x tp = {layout.cp * layout.tp} does not divide {model.kv_heads} heads of keys and values"
        yield LayoutError(f"{heads}, as context parallelism by all-to-all needs; use the ring", "cp")
    if software is not None:
        for feature, setting in needed(layout):
            if feature not in software.features:
                other = "choose another layout, or other software"
                yield LayoutError(f"{software.name} has no {feature}; {other}", setting)


def check(
    model: Model,
    cluster: Cluster,
    layout: Layout,
    batch: int,
    gpus: int | None = None,
    precision: str = "bf16",
    software: Software | None = None,
) -> None:
    """The first of `broken_rules`, a LayoutError with one line, if there is one."""
    for broken in broken_rules(model, cluster, layout, batch, gpus, precision, software):
        raise broken


def stage_rules(model: Model, layout: Layout, batch: int, software: Software | None) -> Iterator[LayoutError]:
    """`broken_rules`, of a pipeline's stages and chunks. Embedding and output layer may stand for a layer each."""
    chunks, micro_batches = layout.pp * layout.virtual_stages, layout.micro_batches(batch)
    if chunks > model.layers + 2:
        stages = f"pp {layout.pp} x {counted(layout.virtual_stages, 'virtual stage')}"
        yield LayoutError(f"{stages} need more than the model's {model.layers} layers; choose fewer", "pp")
    if layout.virtual_stages == 1:
        return
    if layout.pp == 1:
        yield LayoutError(
            f"virtual_stages is {layout.virtual_stages}, but there is no pipeline; set it to 1", "virtual_stages"
        )
    even = not all((model.layers + model.predicted_ahead + extra) % chunks for extra in range(EXTRA_LAYERS + 1))
    if not even and not (software and "uneven chunks" in software.features):
        what = f"{model.layers} layers, even with embedding and output layer as layers"
        other = "choose other virtual stages"
        yield LayoutError(f"pp x virtual_stages = {chunks} does not divide {what}; {other}", "virtual_stages")
    if layout.schedule == "1f1b" and micro_batches % layout.pp:
        runs = f"interleaving needs micro-batches in runs of pp = {layout.pp}, and {micro_batches} is no multiple"
        yield LayoutError(f"{runs}; choose another batch, or 1 virtual stage", "virtual_stages")


def recomputation_rules(model: Model, layout: Layout) -> Iterator[LayoutError]:
    """`broken_rules`, of what is recomputed and offloaded."""
    needs = {"moe_act": model.experts > 0, "moe": model.experts > 0, "mla_up_proj": model.latent is not None}
    for name in layout.recompute_modules:
        if name not in MODULES:
            yield LayoutError(f"recompute_modules has {name!r}; it may have {', '.join(MODULES)}", "recompute_modules")
        if not needs.get(name, True):
            why = "but the model has nothing of the kind"
            yield LayoutError(f"recompute_modules has {name!r}, {why}", "recompute_modules")
    if layout.recompute_modules and layout.recompute_layers:
        other = "programs recompute one or the other; set one of them to nothing"
        yield LayoutError(f"recompute_modules and recompute_layers are both set: {other}", "recompute_layers")
    against = {"full": ("recompute_modules", "recompute_layers", "offload_layers"), "selective": ("recompute_layers",)}
    for name in against.get(layout.recompute, ()):
        if getattr(layout, name):
            yield LayoutError(f"recompute is {layout.recompute!r}, which leaves nothing to {name}; set one alone", name)
    layers = layers_of_fullest_stage(model, layout)
    for name in ("recompute_layers", "offload_layers"):
        if not 0 <= getattr(layout, name) <= layers:
            yield LayoutError(f"{name} is {getattr(layout, name)}, but a rank has {layers} layers", name)


def expert_rules(model: Model, layout: Layout) -> Iterator[LayoutError]:
    """`broken_rules`, of expert parallelism."""
    if layout.ep == layout.etp == 1:
        return
    ranks = layout.data_ranks * layout.tp
    if not model.experts:
        axis = "ep" if layout.ep > 1 else "etp"
        yield LayoutError(f"{axis} is {getattr(layout, axis)}, but the model has no experts; set it to 1", axis)
    if model.experts and model.expert_ffn % layout.etp:
        columns = f"{model.expert_ffn} columns of an expert"
        yield LayoutError(f"etp = {layout.etp} does not divide {columns}; choose a divisor", "etp")
    if model.experts % layout.ep:
        yield LayoutError(f"ep = {layout.ep} does not divide {model.experts} experts; choose a divisor", "ep")
    if ranks % (layout.ep * layout.etp):
        stage = f"the {ranks} ranks of a pipeline stage (dp x cp x tp)"
        split = f"ep = {layout.ep}" if layout.etp == 1 else f"ep x etp = {layout.ep * layout.etp}"
        yield LayoutError(f"{split} does not divide {stage}; choose a divisor", "ep")


def layers_of_fullest_stage(model: Model, layout: Layout) -> int:
    """Layers of the stage with most of them."""
    return math.ceil(model.layers / layout.pp)
