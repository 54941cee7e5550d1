"""`plan`: all layouts of a number of GPUs, the fastest that fits, and why the others lose."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from planner import memory
from planner.arithmetic import Step
from planner.layout import RECOMPUTE, Layout, LayoutError, check
from planner.prediction import Prediction, predict
from planner.software import MEGATRON, Software
from ranks.cluster import GB, Cluster
from ranks.model import Model

#: The part of a GPU's memory that a plan fills: measured values are up to a quarter larger than predicted ones, and
#: runs close to the limit spend their time freeing memory (Ultra-Scale Playbook: 3 to 8 times slower above nine
#: tenths).
FILLED = 0.85
#: Sequences from this length on are worth splitting.
LONG = 32768


@dataclass(frozen=True)
class Plan:
    """What `plan` found. fitting: predictions, the fastest first. rejected: layouts that do not fit, by bytes."""

    fitting: tuple[Prediction, ...]
    rejected: tuple[tuple[Layout, float], ...]

    @property
    def best(self) -> Prediction:
        return self.fitting[0]

    def why_not(self, other: Prediction) -> str:
        """Why a layout loses: by how much, and the two terms that grew most against the best."""
        grown = {term: s - self.best.time.get(term, 0.0) for term, s in other.time.items()}
        largest = sorted((term for term in grown if grown[term] > 0), key=lambda term: -grown[term])[:2]
        parts = ", ".join(f"{term} +{grown[term]:.3g} s" for term in largest)
        return f"{other.seconds / self.best.seconds - 1:.1%} slower: {parts or 'the same'}"

    def alternatives(self, most: int = 8) -> list[Prediction]:
        """The best layout of each other combination of tensor, pipeline, context and expert parallelism."""
        found: dict[tuple[int, ...], Prediction] = {}
        for prediction in self.fitting:
            layout = prediction.layout
            found.setdefault((layout.tp, layout.pp, layout.cp, layout.ep), prediction)
        return list(found.values())[1 : most + 1]

    def __str__(self) -> str:
        best = self.best
        head = f"{best.layout}: {best.seconds:.3g} s, MFU {best.mfu():.1%}, {best.nbytes / GB:.0f} GB"
        lines = [head, *(f"  {other.layout}: {self.why_not(other)}" for other in self.alternatives())]
        if self.rejected:
            layout, nbytes = self.rejected[0]
            room = best.cluster.memory * FILLED / GB
            lines.append(f"  {len(self.rejected)} more do not fit {room:.0f} GB; {layout} needs {nbytes / GB:.0f}")
        return "\n".join(lines)


def powers_of_two(most: int) -> list[int]:
    """1, 2, 4, … up to `most`."""
    return [2**i for i in range(most.bit_length()) if 2**i <= most]


def layouts(model: Model, cluster: Cluster, gpus: int, batch: int, software: Software) -> Iterator[Layout]:
    """Every layout that `plan` tries: axes in powers of two besides dp, and all that a run chooses besides them."""
    contexts = powers_of_two(16) if model.sequence >= LONG else [1]
    for tp, pp, cp in itertools.product(powers_of_two(min(gpus, model.heads)), powers_of_two(model.layers), contexts):
        if gpus % (tp * pp * cp):
            continue
        dp = gpus // (tp * pp * cp)
        # Embedding and output layer may stand for a layer each, as in Llama 3's pipeline.
        even = [v for v in (1, 2, 4, 8) if not model.layers % (pp * v) or not (model.layers + 2) % (pp * v)]
        chunks = even if pp > 1 and software.interleaves else []
        shards = [None, *([cluster.domain // tp] if 1 < cluster.domain // tp < dp * cp else [])]
        stages = [(stage, None) for stage in (0, 1, 2)] + [(3, shard) for shard in shards]
        for ep in powers_of_two(model.experts) if model.experts else [1]:
            for micro, v, (stage, shard), recompute in itertools.product((1, 2, 4), chunks or [1], stages, RECOMPUTE):
                found = Layout(dp, tp, pp, cp, ep, micro, v, stage, shard, recompute)
                try:
                    check(model, cluster, found, batch, gpus)
                except LayoutError:
                    continue
                yield found


def plan(
    model: Model,
    cluster: Cluster,
    gpus: int,
    batch: int,
    precision: str = "bf16",
    software: Software = MEGATRON,
) -> Plan:
    """Search all layouts of `gpus` GPUs for steps of `batch` sequences. LayoutError if there is none that fits."""
    machine = software.machine(cluster)
    fitting, rejected = [], []
    for layout in layouts(model, cluster, gpus, batch, software):
        step = Step(model, machine, layout, software, precision)
        nbytes = sum(memory.terms(step, layout.micro_batches(batch)).values())
        if nbytes > FILLED * machine.memory:
            rejected.append((layout, nbytes))
        else:
            fitting.append(predict(model, cluster, layout, batch, precision, software, memory_limit=False))
    rejected.sort(key=lambda pair: pair[1])
    if not fitting and not rejected:
        raise LayoutError(f"no layout of {gpus} GPUs divides a batch of {batch} sequences; choose a multiple of dp")
    if not fitting:
        layout, nbytes = rejected[0]
        need, have = f"{nbytes / GB:.0f} GB", f"{FILLED * machine.memory / GB:.0f}"
        raise LayoutError(f"{model.name} does not fit {gpus} GPUs: {layout} needs {need} of {have}; use more GPUs")
    return Plan(tuple(sorted(fitting, key=lambda prediction: prediction.seconds)), tuple(rejected))
