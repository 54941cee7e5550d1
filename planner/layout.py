"""A layout: which ranks split what, in which order, and with how much recomputation."""

from __future__ import annotations

from dataclasses import dataclass

from ranks.cluster import Cluster
from ranks.model import Model

RECOMPUTE = ("none", "selective", "full")
SCHEDULES = ("1f1b", "zero_bubble", "dualpipe")
CONTEXT = ("ring", "all_gather", "all_to_all")


class LayoutError(ValueError):
    """A layout that does not exist, or does not fit; the message is one line that says what to change."""


@dataclass(frozen=True)
class Layout:
    """How dp · tp · pp · cp ranks share a step (lesson 15).

    dp, tp, pp, cp, ep: ranks of data, tensor, pipeline, context and expert parallelism. ep divides the ranks of a
    pipeline stage, as in Megatron's parallel folding: experts use the ranks of tp, cp and dp. micro_batch: sequences
    per micro-batch and replica. virtual_stages: chunks of layers per rank of the pipeline (lesson 11). zero_stage: 0 to
    3 (lessons 08, 09). shard: ranks over which ZeRO shards, None for all of dp and cp; fewer is HSDP. recompute:
    "none", "selective" or "full" (lesson 10). sequence_parallel: tensor parallelism also splits norms and residuals
    (lesson 12). schedule: of the pipeline, "1f1b" (interleaved with more than one virtual stage), "zero_bubble" or
    "dualpipe". context: how context parallelism exchanges keys and values, "ring", "all_gather" or "all_to_all" (lesson
    13).

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

    @property
    def gpus(self) -> int:
        """All ranks."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def data_ranks(self) -> int:
        """Ranks over which the gradients of ordinary weights are reduced."""
        return self.dp * self.cp

    @property
    def shards(self) -> int:
        """Ranks over which ZeRO shards ordinary weights."""
        return min(self.shard or self.data_ranks, self.data_ranks)

    @property
    def expert_data_ranks(self) -> int:
        """Ranks that hold the same experts, over which their gradients are reduced."""
        return max(1, self.data_ranks * self.tp // self.ep)

    def micro_batches(self, batch: int) -> int:
        """Micro-batches per replica and step, for a batch of so many sequences."""
        return batch // (self.dp * self.micro_batch)

    def __str__(self) -> str:
        axes = " ".join(f"{name} {getattr(self, name)}" for name in ("dp", "tp", "pp", "cp", "ep"))
        more = f"micro-batch {self.micro_batch}, {self.virtual_stages} virtual stages, ZeRO-{self.zero_stage}"
        return f"{axes}, {more}, recompute {self.recompute}"


def check(model: Model, cluster: Cluster, layout: Layout, batch: int, gpus: int | None = None) -> None:
    """LayoutError with one line if this layout cannot run this model and batch at all; memory is another question."""
    for name in ("dp", "tp", "pp", "cp", "ep", "micro_batch", "virtual_stages"):
        value = getattr(layout, name)
        if not isinstance(value, int) or value < 1:
            raise LayoutError(f"{name} is {value!r}; it must be a whole number of at least 1")
    for name, known in (("recompute", RECOMPUTE), ("schedule", SCHEDULES), ("context", CONTEXT)):
        if getattr(layout, name) not in known:
            raise LayoutError(f"{name} is {getattr(layout, name)!r}; it must be one of {', '.join(known)}")
    if layout.zero_stage not in (0, 1, 2, 3):
        raise LayoutError(f"zero_stage is {layout.zero_stage!r}; ZeRO has stages 0 to 3")
    if gpus is not None and layout.gpus != gpus:
        product = f"dp {layout.dp} x tp {layout.tp} x pp {layout.pp} x cp {layout.cp} = {layout.gpus} ranks"
        raise LayoutError(f"{product}, but there are {gpus} GPUs; make the product equal")
    for what, whole, parts, axis in (
        ("query heads", model.heads, layout.tp, "tp"),
        ("sequences", batch, layout.dp * layout.micro_batch, "dp x micro_batch"),
        ("tokens per sequence", model.sequence, layout.cp, "cp"),
    ):
        if whole % parts:
            raise LayoutError(f"{axis} = {parts} does not divide {whole} {what}; choose a divisor")
    if layout.pp * layout.virtual_stages > model.layers + 2:  # embedding and output layer may stand for a layer each
        stages = f"pp {layout.pp} x {layout.virtual_stages} virtual stages"
        raise LayoutError(f"{stages} need more than the model's {model.layers} layers; choose fewer")
    if layout.ep > 1:
        if not model.experts:
            raise LayoutError(f"ep is {layout.ep}, but the model has no experts; set it to 1")
        if model.experts % layout.ep:
            raise LayoutError(f"ep = {layout.ep} does not divide {model.experts} experts; choose a divisor")
        if (layout.data_ranks * layout.tp) % layout.ep:
            ranks = f"the {layout.data_ranks * layout.tp} ranks of a pipeline stage"
            raise LayoutError(f"ep = {layout.ep} does not divide {ranks} (dp x cp x tp); choose a divisor")
    if layout.context == "all_to_all" and layout.cp > 1 and model.kv_heads % (layout.cp * layout.tp):
        heads = f"cp x tp = {layout.cp * layout.tp} does not divide {model.kv_heads} heads of keys and values"
        raise LayoutError(f"{heads}, as context parallelism by all-to-all needs; use the ring")
