"""`predict`: the memory and the seconds of a step, term by term."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from machines.cluster import GB, Cluster
from machines.model import Model, flops_per_token, parameters
from planner import arithmetic, communication, memory
from planner.arithmetic import Pair, Step
from planner.layout import Layout, LayoutError, check
from planner.software import LORA_RANK, MEGATRON, Software


@dataclass(frozen=True)
class Prediction:
    """What a step takes: seconds by term and in all, bytes of the fullest GPU by term; and what follows.

    time: seconds of a step by term, which add up to `seconds`. memory: bytes by term, which add up to `nbytes`.
    tokens_per_gpu_per_second; flops_per_token: as `machines.model.flops_per_token` counts them, attention causal.
    mfu: against the dense bf16 peak, whatever the precision.
    """

    model: Model
    cluster: Cluster
    layout: Layout
    batch: int
    time: Mapping[str, float]
    memory: Mapping[str, float]

    @property
    def seconds(self) -> float:
        return sum(self.time.values())

    @property
    def nbytes(self) -> float:
        return sum(self.memory.values())

    @property
    def tokens_per_gpu_per_second(self) -> float:
        return self.batch * self.model.sequence / self.seconds / self.layout.gpus

    def flops_per_gpu_per_second(self, counting: str = "causal_half") -> float:
        """FLOP/s of the model per GPU, in the way that a source counts them (`counted_flops`)."""
        return self.tokens_per_gpu_per_second * counted_flops(self.model, counting, self.layout.recompute)

    def mfu(self, counting: str = "causal_half") -> float:
        """FLOP/s of the model against the bf16 peak."""
        return self.flops_per_gpu_per_second(counting) / self.cluster.flops["bf16"]

    @property
    def largest_loss(self) -> str:
        """The term that takes most time, besides matrix multiplications and attention."""
        return max((term for term in self.time if term not in ("matmuls", "attention")), key=lambda t: self.time[t])


def counted_flops(model: Model, counting: str = "causal_half", recompute: str = "none") -> float:
    """FLOPs per token in the way that a source counts them.

    "causal_half": attention's pairs that the mask leaves; "full_square": all pairs, as PaLM does; "six_n": six per
    active parameter, no attention; "hardware": all pairs, and a third more with full recomputation.
    """
    if counting == "six_n":
        return 6.0 * parameters(model).active
    if counting == "causal_half":
        return flops_per_token(model)
    if counting not in ("full_square", "hardware"):
        raise ValueError(f"flops_counting is {counting!r}; known: causal_half, full_square, six_n, hardware")
    again = 4 / 3 if counting == "hardware" and recompute == "full" else 1
    return flops_per_token(model, "full") * again


#: (forward, backward) seconds of a layer, by term.
Terms = dict[str, Pair]


def layer_terms(step: Step, known: dict[tuple[object, ...], Terms] | None = None) -> Terms:
    """(forward, backward) seconds of one layer and micro-batch on one rank, by term.

    known: what was found before for the same model, machine, software and precision. Only this part of the layout
    counts, neither dp nor virtual stages nor ZeRO.
    """
    x = step.layout
    again = (x.recompute, x.recompute_modules, x.recompute_layers * x.pp)
    key = (step.moe, x.tp, x.cp, x.ep, x.etp, x.micro_batch, x.sequence_parallel, x.context, again)
    if known is not None and key in known:
        return known[key]
    found = {
        "matmuls": arithmetic.matmuls(step),
        "attention": arithmetic.attention(step),
        "elementwise": arithmetic.elementwise(step),
        "quantizing": arithmetic.quantizing(step),
        "adapters": arithmetic.adapters(step),
        "tensor": communication.tensor(step),
    }
    found["context"] = communication.context(step, found["attention"])
    computing = [sum(pair[i] for pair in found.values()) for i in (0, 1)]
    found["experts"] = communication.experts(step, (computing[0], computing[1]))
    found["recomputing"] = (0.0, arithmetic.recomputed(step, found))
    found["experts' overhead"] = arithmetic.experts_overhead(step, sum(f + b for f, b in found.values()))
    found["host"] = arithmetic.host(step, sum(f + b for f, b in found.values()))
    found = {term: pair for term, pair in found.items() if any(pair)}
    if known is not None:
        known[key] = found
    return found


def whole_terms(step: Step, known: dict[tuple[object, ...], Terms] | None = None) -> Terms:
    """(forward, backward) seconds of all layers and the logits for one micro-batch, by term."""
    model = step.model
    moe = model.moe_layers + (model.predicted_ahead if model.experts else 0)
    kinds = [(model.layers + model.predicted_ahead - moe, step), (moe, replace(step, moe=True))]
    whole: Terms = {"logits": arithmetic.logits(step)}
    for count, kind in kinds:
        for term, (forward, backward) in layer_terms(kind, known).items() if count else ():
            before = whole.get(term, (0.0, 0.0))
            whole[term] = (before[0] + count * forward, before[1] + count * backward)
    return whole


def slowest_stage(step: Step, layers: float, head: float) -> float:
    """Lesson 11, *Where to cut*: seconds of a micro-batch in the slowest stage; layers, head: of the whole model.

    Where layers do not divide evenly, embedding and output layer count as a layer each, as Llama 3 and BLOOM cut them.
    """
    m, p, v = step.model, step.layout.pp, step.layout.virtual_stages
    if p == 1:
        return layers + head
    one = layers / m.layers
    if step.software.balances_head:
        return min(max(last * one + head, math.ceil((m.layers - last) / (p - 1)) * one) for last in range(m.layers))
    if m.layers % p == 0:
        return layers / p + head
    extra = 1 if step.software.blocking else 2
    most = min(math.ceil((m.layers + extra) / (p * v)) * v, math.ceil(m.layers / p))
    return max((layers + head) / p, most * one)


def predict(
    model: Model,
    cluster: Cluster,
    layout: Layout,
    batch: int,
    precision: str = "bf16",
    software: Software = MEGATRON,
    memory_limit: bool = True,
    trained: str = "all",
    lora_rank: int = LORA_RANK,
) -> Prediction:
    """The prediction for a step of `batch` sequences. LayoutError if this layout cannot run it.

    memory_limit: nor may it need more memory than a GPU has. trained: "all" weights, or "lora": adapters of
    rank `lora_rank` only.
    """
    if trained not in ("all", "lora"):
        raise ValueError(f"trained is {trained!r}; it must be 'all' or 'lora'")
    check(model, cluster, layout, batch, precision=precision, software=software)
    found = added_up(Step(model, cluster, layout, software, precision, trained=trained, lora_rank=lora_rank), batch)
    if memory_limit and found.nbytes > cluster.memory:
        need = f"{found.nbytes / GB:.0f} GB, and a GPU of {cluster.name} has {cluster.memory / GB:.0f}"
        largest = max(found.memory, key=lambda term: found.memory[term])
        advice = "split the model over more GPUs" if largest == "states" else "split or recompute more"
        raise LayoutError(f"this layout needs {need}; most are {largest}: {advice}", "memory")
    return found


def added_up(step: Step, batch: int, known: dict[tuple[object, ...], Terms] | None = None) -> Prediction:
    """The prediction, whether the layout fits or not."""
    layout, micro_batches = step.layout, step.layout.micro_batches(batch)
    whole = whole_terms(step, known)
    forward, backward = (sum(pair[i] for pair in whole.values()) / layout.pp for i in (0, 1))
    mean, head = forward + backward, sum(whole["logits"])
    slowest = slowest_stage(step, layout.pp * mean - head, head)
    time = {term: micro_batches * sum(pair) / layout.pp for term, pair in whole.items()}
    time["imbalance"] = micro_batches * (slowest - mean)
    time["offloading"] = micro_batches * arithmetic.offloaded(step, memory.offloaded_bytes(step), forward, backward)
    time["bubble"] = communication.bubble(step, forward, backward, micro_batches)
    time["stages"] = communication.stages(step, micro_batches)
    time["data"] = communication.data(step, forward, backward, micro_batches)
    time["optimizer"] = communication.optimizer(step)
    time = {term: seconds for term, seconds in time.items() if seconds}
    return Prediction(step.model, step.cluster, layout, batch, time, memory.terms(step, micro_batches))
