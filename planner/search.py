"""`plan`: all layouts of a number of GPUs, the simplest of the fastest that fit, and why the others lose."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from machines.cluster import GB, Cluster
from machines.model import Model
from planner import arithmetic, memory
from planner.arithmetic import Step
from planner.layout import EXTRA_LAYERS, Layout, LayoutError, check, counted, layers_of_fullest_stage
from planner.prediction import Prediction, Terms, added_up, layer_terms, whole_terms
from planner.software import LORA_RANK, MEGATRON, Software

#: The part of a GPU's memory that a plan fills: measured values are up to a quarter larger than predicted ones, and
#: runs close to the limit spend their time freeing memory (Ultra-Scale Playbook: 3 to 8 times slower above nine
#: tenths).
FILLED = 0.85
#: What it fills where nothing fits that: a tight plan, which may run out of memory.
TIGHT = 0.95
#: Layouts whose times differ by less than this part are equal, and the simpler one wins: no prediction is as exact.
TIE = 0.005
#: Combinations of axes that are slower than the best by more than this part are not looked into.
WORSE = 0.1
#: Tokens of a sequence that a rank of context parallelism has at least, and ranks that share a sequence at most.
LEAST_TOKENS, MOST_CONTEXT = 1024, 64
#: Sequences of a micro-batch that are tried.
MICRO_BATCHES = (1, 2, 3, 4, 6, 8, 16)
#: Bytes per second of a host's link from which on published recipes keep activations there: NVLink-C2C, not PCIe.
FAST_HOST = 100 * GB
#: The fields of a layout that may be fixed: the search chooses the others, and as little recomputation as fits.
FIXED = ("dp", "tp", "pp", "cp", "ep", "micro_batch", "virtual_stages", "zero_stage")
#: Tensor-parallel ranks from which on the planner is known to be too fast, and what was measured. No term explains it.
WIDE_TENSOR = 8
WIDE_TENSOR_COSTS = (
    "tp 8, or tp over a whole node, may cost more than predicted: tp 8 instead of 4 made a fine-tuning of Llama 3 70B "
    "28 percent slower, where 12 are predicted (Megatron-Bridge's skill perf-memory-tuning, benchmarks/README.md)"
)
#: The part of the host's memory that activations may fill.
HOST_FILLED = 0.8


@dataclass(frozen=True)
class Plan:
    """What `plan` found. fitting: predictions, the fastest first. rejected: layouts that do not fit, by bytes.

    filled: the part of a GPU's memory that they may fill; `tight` where it is more than `FILLED`.
    """

    fitting: tuple[Prediction, ...]
    rejected: tuple[tuple[Layout, float], ...]
    filled: float

    @property
    def best(self) -> Prediction:
        """The simplest of those that are as fast as the fastest."""
        equal = [found for found in self.fitting if found.seconds <= self.fitting[0].seconds * (1 + TIE)]
        return min(equal, key=lambda found: found.layout.complexity)

    @property
    def tight(self) -> bool:
        return self.filled > FILLED

    @property
    def room(self) -> float:
        """Bytes that a layout may fill."""
        return self.filled * self.best.cluster.memory

    def grown(self, other: Prediction) -> list[tuple[str, float]]:
        """The two terms that grew most against the best, and by how many seconds."""
        grown = {term: seconds - self.best.time.get(term, 0.0) for term, seconds in other.time.items()}
        return sorted([(term, more) for term, more in grown.items() if more > 0], key=lambda pair: -pair[1])[:2]

    def why_not(self, other: Prediction) -> str:
        """Why a layout loses, in words."""
        slower = other.seconds / self.best.seconds - 1
        share = "hardly" if abs(slower) < 5e-4 else f"{abs(slower):.1%}"
        if slower < 0:
            return f"{share} faster, a tie: less simple"
        parts = ", ".join(f"{term} +{more:.3g} s" for term, more in self.grown(other))
        return f"{share} slower: {parts or 'the same'}"

    def alternatives(self, most: int = 8) -> list[Prediction]:
        """A good layout of each other combination of tensor, pipeline, context and expert parallelism."""
        found: dict[tuple[int, ...], Prediction] = {}
        for prediction in (self.best, *self.fitting):
            layout = prediction.layout
            found.setdefault((layout.tp, layout.pp, layout.cp, layout.ep), prediction)
        return list(found.values())[1 : most + 1]

    def __str__(self) -> str:
        best = self.best
        tight = f", tight: more than {FILLED:.0%} of the memory" if self.tight else ""
        head = f"{best.layout}: {best.seconds:.3g} s, MFU {best.mfu():.1%}, {best.nbytes / GB:.0f} GB{tight}"
        lines = [head, *(f"  {other.layout}: {self.why_not(other)}" for other in self.alternatives())]
        if self.rejected:
            layout, nbytes = self.rejected[0]
            more = f"{len(self.rejected)} more do not fit {self.room / GB:.0f} GB"
            lines.append(f"  {more}; {layout} needs {nbytes / GB:.0f}")
        return "\n".join(lines)


def warnings(model: Model, cluster: Cluster, software: Software, layouts: list[Layout]) -> list[str]:
    """What to know before choosing one of these layouts, the best and those within its error: a line each."""
    found = []
    if any(layout.tp > 1 and layout.tp >= min(WIDE_TENSOR, cluster.domain) for layout in layouts):
        found.append(WIDE_TENSOR_COSTS)
    if model.sequence % 2 > 0:
        axes = "neither tp nor cp can" if software.sequence_parallel else "cp cannot"
        found.append(f"{model.sequence} tokens per sequence are odd, so {axes} split them")
    return found


def powers_of_two(most: int) -> list[int]:
    """1, 2, 4, … up to `most`."""
    return [2**i for i in range(most.bit_length()) if 2**i <= most]


def divisors(whole: int) -> list[int]:
    """All of them, the smallest first."""
    small = [d for d in range(1, math.floor(math.sqrt(whole)) + 1) if whole % d == 0]
    return sorted({*small, *(whole // d for d in small)})


def stage_counts(model: Model, ranks: int) -> list[int]:
    """Stages of a pipeline in so many ranks: powers of two, and what divides the layers."""
    even = {p for extra in range(EXTRA_LAYERS + 1) for p in divisors(model.layers + extra)}
    return [p for p in divisors(ranks) if p <= model.layers and (p in powers_of_two(p) or p in even)]


def chunk_counts(model: Model, pp: int) -> list[int]:
    """Virtual stages that give every chunk as many layers; 1 is none."""
    layers = model.layers + model.predicted_ahead
    even = [
        v
        for v in range(2, model.layers // pp + 1)
        if any((layers + e) % (pp * v) == 0 for e in range(EXTRA_LAYERS + 1))
    ]
    return [1, *(even if pp > 1 else [])]


def shardings(cluster: Cluster, layout: Layout) -> list[tuple[int, int | None]]:
    """(stage, shard) of ZeRO, where each can differ from a simpler one.

    Without other ranks there is nothing to shard. In a pipeline stage 3 holds what stage 1 does, which is simpler. HSDP
    shards over a domain, or a few of them.
    """
    ranks = layout.data_ranks
    if ranks == 1:
        return [(0 if layout.expert_data_ranks == 1 else 1, None)]
    found: list[tuple[int, int | None]] = [(0, None), (1, None), (2, None)]
    if layout.pp == 1:
        hybrid = [d for d in divisors(ranks) if 1 < d < ranks and d * layout.tp in (cluster.domain, 64, 128, 256, 512)]
        found += [(3, None), *((3, shard) for shard in hybrid)]
    return found


def layouts(model: Model, cluster: Cluster, gpus: int, batch: int, software: Software) -> Iterator[Layout]:
    """Every layout that `plan` tries, without recomputation: `least_recomputation` adds as little of it as fits."""
    tensor = powers_of_two(min(model.heads, cluster.domain))
    context = powers_of_two(min(max(1, model.sequence // LEAST_TOKENS), MOST_CONTEXT))
    expert = powers_of_two(max(1, model.experts))
    for tp, cp in itertools.product(tensor, context):
        for pp in stage_counts(model, gpus // (tp * cp)) if gpus % (tp * cp) == 0 else []:
            dp = gpus // (tp * pp * cp)
            micros = [micro for micro in MICRO_BATCHES if batch % (dp * micro) == 0]
            for ep, v, micro in itertools.product(expert, chunk_counts(model, pp), micros):
                base = Layout(dp, tp, pp, cp, ep, micro_batch=micro, virtual_stages=v, zero_stage=0)
                base = replace(base, sequence_parallel=software.sequence_parallel or tp == 1)
                if not runs(model, cluster, base, batch, software):
                    continue
                for stage, shard in shardings(cluster, base):
                    found = replace(base, zero_stage=stage, shard=shard)
                    if stage == 0 or runs(model, cluster, found, batch, software):
                        yield found


def runs(model: Model, cluster: Cluster, layout: Layout, batch: int, software: Software) -> bool:
    """Whether `check` accepts the layout."""
    try:
        check(model, cluster, layout, batch, software=software)
    except LayoutError:
        return False
    return True


def module_sets(step: Step) -> list[tuple[str, ...]]:
    """Sets of modules that recomputation may start with, the empty one first."""
    m, known = step.model, ["layernorm"]
    known += ["moe_act"] if m.experts else ["mlp"]
    known += ["mla_up_proj"] if m.latent is not None else []
    known += ["core_attn"] if step.software.attention == "unfused" else []
    most = len(known) if "recompute_modules" in step.software.features else 0
    return [tuple(chosen) for n in range(most + 1) for chosen in itertools.combinations(known, n)]


def held(step: Step, layout: Layout, micro_batches: int) -> float:
    """Bytes of the fullest GPU in this layout."""
    return sum(memory.terms(replace(step, layout=layout), micro_batches).values())


def with_layers(layout: Layout, field: str, number: int) -> Layout:
    """The layout with so many layers of a rank in this field, "recompute_layers" or "offload_layers"."""
    if field == "recompute_layers":
        return replace(layout, recompute_layers=number)
    return replace(layout, offload_layers=number)


def fewest(step: Step, field: str, most: int, micro_batches: int, room: float) -> Layout | None:
    """The step's layout with as few layers in this field as fit, by halving; None if `most` are too few.

    Of each virtual stage as many layers are recomputed, as in Megatron.
    """
    each = step.layout.virtual_stages if field == "recompute_layers" else 1
    if held(step, with_layers(step.layout, field, most), micro_batches) > room:
        return None
    low, high = 0, math.ceil(most / each)
    while low < high:
        middle = (low + high) // 2
        if held(step, with_layers(step.layout, field, min(most, middle * each)), micro_batches) <= room:
            high = middle
        else:
            low = middle + 1
    return with_layers(step.layout, field, min(most, low * each))


def least_recomputation(
    step: Step, micro_batches: int, room: float, offload: bool, known: dict[tuple[object, ...], Terms]
) -> Layout | None:
    """The layout with as little recomputation, or offloading, as fits `room`, by the seconds that it costs.

    It recomputes modules of every layer, or as few layers of a rank as fit in full. Megatron offloads only without a
    pipeline and without recomputation. None if nothing fits.
    """
    layout, features = step.layout, step.software.features
    everything = replace(layout, recompute="full")
    if held(step, layout, micro_batches) <= room:
        return layout
    if held(step, everything, micro_batches) > room:
        return None
    layers = layers_of_fullest_stage(step.model, layout)
    whole = replace(step, moe=bool(step.model.experts))
    terms = layer_terms(whole, known)
    left_out = ("experts' overhead", "host", "recomputing")
    forward = sum(pair[0] for name, pair in terms.items() if name not in left_out)
    found = [(layers * forward, everything)]
    for modules in module_sets(step):
        start = replace(layout, recompute="selective" if modules else "none", recompute_modules=modules)
        again = sum(arithmetic.module_seconds(whole, name, terms) for name in modules)
        most = layers if "recompute_layers" in features and not modules else 0
        chosen = fewest(replace(step, layout=start), "recompute_layers", most, micro_batches, room)
        if chosen is not None:
            full = chosen.recompute_layers
            found.append((full * forward + (layers - full) * again, chosen))
    selective = replace(layout, recompute="selective")
    if step.software.recomputed and held(step, selective, micro_batches) <= room:
        parts = {name: pair for name, pair in terms.items() if name not in left_out}
        found.append((layers * arithmetic.recomputed(replace(whole, layout=selective), parts), selective))
    if offload and layout.pp == 1 and "offload_layers" in features:
        each = memory.offloaded_bytes(replace(step, layout=replace(layout, offload_layers=1)))
        most = min(layers, math.floor(HOST_FILLED * step.cluster.host_memory / each))
        chosen = fewest(step, "offload_layers", most, micro_batches, room)
        if chosen is not None:
            moved = memory.offloaded_bytes(replace(step, layout=chosen))
            found.append((arithmetic.offloaded(step, moved, layers * forward, 2 * layers * forward), chosen))
    return min(found, key=lambda pair: (pair[0], pair[1].complexity))[1]


def plan(
    model: Model,
    cluster: Cluster,
    gpus: int,
    batch: int,
    precision: str = "bf16",
    software: Software = MEGATRON,
    trained: str = "all",
    filled: float | None = None,
    offload: bool | None = None,
    lora_rank: int = LORA_RANK,
    fixed: Mapping[str, object] | None = None,
) -> Plan:
    """Search all layouts of `gpus` GPUs for steps of `batch` sequences. LayoutError if there is none that fits.

    filled: the part of a GPU's memory that a layout may fill; None: `FILLED`, or `TIGHT` if nothing fits that. offload:
    activations may wait in the host's memory; None: where the host's link is faster than PCI Express, as in the
    published recipes that do so. fixed: fields of a layout, of `FIXED`, and the values that they must have.
    """
    start = Step(model, cluster, Layout(), software, precision, trained=trained, lora_rank=lora_rank)
    check(model, cluster, Layout(), batch, precision=precision)
    may_offload = cluster.host_link > FAST_HOST if offload is None else offload
    rejected: list[tuple[Layout, float]] = []
    part = TIGHT
    for part in (FILLED, TIGHT) if filled is None else (filled,):
        fitting, rejected = search(start, gpus, batch, part * cluster.memory, may_offload, fixed or {})
        if fitting:
            return Plan(tuple(fitting), tuple(rejected), part)
    if not rejected and fixed:
        named = ", ".join([f"{name}={value}" for name, value in fixed.items()])
        given = f"{counted(gpus, 'GPU')} and {counted(batch, 'sequence')}"
        raise LayoutError(f"no layout of {given} has {named}; fix other values, or fewer")
    if not rejected:
        whole = math.ceil(batch / gpus) * gpus
        given = f"{counted(gpus, 'GPU')} divides a batch of {counted(batch, 'sequence')}"
        raise LayoutError(f"no layout of {given}; choose another, as {whole}")
    layout, nbytes = rejected[0]
    room, have = f"{part * cluster.memory / GB:.0f}", f"{100 * part:.0f} percent of a GPU's {cluster.memory / GB:.0f}"
    need = f"{nbytes / GB:.0f} GB, and a plan may fill {room}, {have}"
    raise LayoutError(f"{model.name} does not fit {counted(gpus, 'GPU')}: {layout} needs {need}; use more GPUs")


def search(
    start: Step, gpus: int, batch: int, room: float, offload: bool, fixed: Mapping[str, object]
) -> tuple[list[Prediction], list[tuple[Layout, float]]]:
    """(layouts that fit `room`, the fastest first; layouts that do not, with their bytes).

    In the order of the seconds of a layout's micro-batches, without recomputation, bubble and data parallelism: a
    layout takes at least as long. Once one is found, those that take much longer are not looked into.
    """
    known: dict[tuple[object, ...], Terms] = {}
    least: dict[tuple[int, ...], float] = {}
    tried: list[tuple[float, Layout]] = []
    rejected: list[tuple[Layout, float]] = []
    for layout in layouts(start.model, start.cluster, gpus, batch, start.software):
        if any(getattr(layout, name) != value for name, value in fixed.items()):
            continue
        step = replace(start, layout=layout)
        states = memory.states(step)
        if states > room:
            rejected.append((layout, states))
            continue
        key = (layout.tp, layout.cp, layout.ep, layout.micro_batch)
        if key not in least:
            least[key] = sum(sum(pair) for pair in whole_terms(step, known).values())
        tried.append((least[key] * layout.micro_batches(batch) / layout.pp, layout))
    tried.sort(key=lambda pair: pair[0])
    fitting: list[Prediction] = []
    best = math.inf
    best_of: dict[tuple[int, ...], float] = {}
    for at_least, layout in tried:
        axes = (layout.tp, layout.pp, layout.cp, layout.ep)
        # Interesting is what may tie with the best, or is the best of its axes and not much worse.
        enough = max(best * (1 + TIE), min(best * (1 + WORSE), best_of.get(axes, math.inf)))
        if at_least > enough:
            continue
        step, micro_batches = replace(start, layout=layout), layout.micro_batches(batch)
        found = added_up(step, batch, known)
        if found.seconds > enough:
            continue
        chosen = least_recomputation(step, micro_batches, room, offload, known)
        if chosen is None:
            rejected.append((layout, found.nbytes))
            continue
        if chosen != layout:
            found = added_up(replace(start, layout=chosen), batch, known)
        best = min(best, found.seconds)
        best_of[axes] = min(found.seconds, best_of.get(axes, math.inf))
        fitting.append(found)
    fitting.sort(key=lambda found: found.seconds)
    rejected.sort(key=lambda pair: pair[1])
    return fitting, rejected
