"""Published runs as rows of JSON: reading them, and holding a prediction against what was published."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from machines import cluster
from machines.cluster import Cluster
from machines.model import Latent, Model
from planner.layout import Layout
from planner.prediction import Prediction, counted_flops, predict
from planner.software import SOFTWARE, Software

#: Software → words in a row's name or source that tell it, where the row does not say. The first that fits counts.
WORDS = {
    "torchtitan async": ("async tp",),
    "torchtitan": ("torchtitan", "torchao"),
    "fms-fsdp": ("fms-fsdp",),
    "fsdp": ("pytorch fsdp", "tinyllama"),
    "olmo": ("olmo",),
    "nanotron": ("ultra-scale", "ultrascale", "nanotron", "smollm"),
    "llm-foundry": ("foundry", "mosaic"),
    "deepspeed": ("bloom", "bigscience", "deepspeed"),
    "meta": ("llama 3 report", "llama 3 herd", "2407.21783"),
    "megatron 2022": ("narayanan", "sc'21", "sc21", "korthikanti", "2205.05198", "2104.04473"),
    "hai-llm": ("h800", "isca'25"),
    "megatron 2024": ("24.01", "24.03", "24.05", "24.07", "24.09", "24.12"),
    "megatron 2025": ("25.02", "25.04", "25.07", "25.09", "25.11"),
    "megatron 26.06": ("26.06", "26.08", "26.10"),
}
#: The same, of Megatron-Bridge's performance recipes.
BRIDGES = {"megatron": "megatron bridge", "megatron 2025": "bridge 2025", "megatron 26.06": "bridge 26.06"}
#: Fields that a row must have; everything else has a default.
REQUIRED = ("name", "model", "cluster", "gpus", "layout", "precision", "published")
REQUIRED_OF_MODEL = ("layers", "hidden", "heads", "seq")
#: What a row's published value is called here, in the order in which one of several is taken.
PUBLISHED = ("tokens_per_gpu_per_second", "step_seconds", "tflops_per_gpu", "mfu")
#: The sizes of DeepSeek-V3's attention, which Kimi K2 shares; the row format has no fields for them.
DEEPSEEK_LATENT = Latent(query=1536, key_value=512, plain=128, rotary=64, value=128)
#: The nodes to which a token of DeepSeek-V3 goes at most (its report, section 2.1.2).
DEEPSEEK_NODES = 4
#: The part of a GPU's memory that a layout may fill, where the row leaves the layout open.
FILLED = 0.95


class RowError(ValueError):
    """A row that cannot be read; the message is one line that names the row and says what to change."""


@dataclass(frozen=True)
class Run:
    """A published run. layouts: one, or several where the source does not tell micro-batch or virtual stages."""

    name: str
    model: Model
    cluster: Cluster
    layouts: tuple[Layout, ...]
    batch: int
    precision: str
    software: Software
    counting: str
    published: Mapping[str, float]
    trained: str = "all"


@dataclass(frozen=True)
class Comparison:
    """What was predicted and what was published, in the published unit. error: of the throughput, + is too fast."""

    run: Run
    prediction: Prediction
    unit: str
    predicted: float
    published: float
    error: float


def read(row: Mapping[str, Any]) -> Run:
    """The run that a row describes, with every default filled in; RowError if that cannot be done."""
    name = str(row.get("name") or "a row without a name")
    if missing := [field for field in REQUIRED if row.get(field) is None]:
        raise RowError(f"{name}: the field {missing[0]!r} is missing; a row needs {', '.join(REQUIRED)}")
    try:
        return _read(name, row)
    except ValueError as error:
        raise RowError(f"{name}: {error}") from error
    except (AttributeError, KeyError, TypeError) as error:
        raise RowError(f"{name}: a field has the wrong type: {error}") from error


def _read(name: str, row: Mapping[str, Any]) -> Run:
    software = software_of(row)
    model = model_of(name, row["model"])
    gpus = whole(row, "gpus", 0)
    given = {key: value for key, value in row["layout"].items() if value is not None}
    sizes = {axis: whole(given, axis, 1) for axis in ("tp", "pp", "cp", "ep", "etp")}
    stage = sizes["tp"] * sizes["pp"] * sizes["cp"]
    dp = whole(given, "dp", max(1, gpus // stage))
    if dp * stage != gpus and dp * sizes["tp"] * sizes["pp"] == gpus:
        dp //= sizes["cp"]  # the source counts context parallelism as data parallelism
    if dp * stage != gpus:
        axes = " x ".join(f"{axis} {size}" for axis, size in {"dp": dp, **sizes}.items() if axis not in ("ep", "etp"))
        raise ValueError(f"{axes} = {dp * stage} ranks, but gpus is {gpus}; make the product equal")
    fixed = {
        **sizes,
        "dp": dp,
        "zero_stage": whole(given, "zero_stage", software.zero_stage, least=0),
        "shard": given["shard"] if isinstance(given.get("shard"), int) and given["shard"] > 1 else None,
        "recompute": given.get("recompute", "none"),
        "sequence_parallel": bool(given.get("sequence_parallel", software.sequence_parallel)),
        "schedule": given.get("schedule", "1f1b"),
        "context": given.get("context", "ring"),
        "recompute_modules": tuple(given.get("recompute_modules", ())),
        "recompute_layers": whole(given, "recompute_layers", 0, least=0),
        "offload_layers": whole(given, "offload_layers", 0, least=0),
    }
    micro = whole(given, "micro_batch", 0, least=0)
    batch = whole(row, "batch_sequences", dp * max(1, micro) * 4 * sizes["pp"])
    per_replica = max(1.0, batch / dp)
    micros = [micro] if micro else [
        b for b in (1, 2, 4, 8) if per_replica % b == 0 and per_replica / b >= sizes["pp"]
    ] or [1]  # fmt: skip
    per_stage = max(1, model.layers // sizes["pp"])
    open_stages = sizes["pp"] > 1 and "interleaving" in software.features
    stages = [whole(given, "virtual_stages", 1)] if given.get("virtual_stages") else [
        v for v in range(1, min(24, per_stage) + 1) if per_stage % v == 0 and (v == 1 or open_stages)
    ]  # fmt: skip
    layouts = tuple(Layout(micro_batch=b, virtual_stages=v, **fixed) for b in micros for v in stages)
    counting = row.get("flops_counting") or "causal_half"
    counted_flops(model, counting)  # fails for an unknown name
    published = {key: row["published"][key] for key in PUBLISHED if row["published"].get(key) is not None}
    if not published:
        raise ValueError(f"published has none of {', '.join(PUBLISHED)}")
    for key, value in published.items():
        if not isinstance(value, int | float) or not value > 0:
            raise ValueError(f"{key} is {value!r}; it must be a number above 0")
    found = software.machine(cluster.find(row["cluster"]))
    precision, trained = str(row["precision"]).lower(), row.get("trained", "all")
    return Run(name, model, found, layouts, batch, precision, software, counting, published, trained)


def whole(place: Mapping[str, Any], field: str, default: int, least: int = 1) -> int:
    """A whole number of a row; ValueError if it is something else.

    The default where it is missing or null, or 0 where that cannot be meant.
    """
    value = place.get(field)
    if value is None or (value == 0 and least > 0 and default > 0 and not isinstance(value, bool)):
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value) or value < least:
        raise ValueError(f"{field} is {value!r}; it must be a whole number of at least {least}")
    return int(value)


def software_of(row: Mapping[str, Any]) -> Software:
    """The row's software, or the one that its name and source tell; Megatron where nothing does."""
    text = f"{row['name']} {row.get('source') or ''} {row['cluster']}".lower()
    told = next((name for name, words in WORDS.items() if any(word in text for word in words)), "megatron")
    wanted = str(row.get("software") or told).lower()
    if wanted not in SOFTWARE or told.startswith(wanted):
        wanted = told
    if wanted == "torchtitan" and row["precision"] == "bf16" and not any(w in text for w in ("compile", "torchao")):
        wanted = "torchtitan eager"  # its configurations do not compile unless they are told to
    if "megatron-bridge" in text:
        wanted = BRIDGES.get(wanted, wanted)
    return SOFTWARE[wanted]


def model_of(name: str, given: Mapping[str, Any]) -> Model:
    """The model of a row; heads of keys and values, sizes of heads and so on have the usual defaults."""
    m = {key: value for key, value in given.items() if value is not None}
    if missing := [field for field in REQUIRED_OF_MODEL if field not in m]:
        raise ValueError(f"the model's field {missing[0]!r} is missing; it needs {', '.join(REQUIRED_OF_MODEL)}")
    sizes = {field: whole(m, field, 0) for field in REQUIRED_OF_MODEL}
    hidden, heads, experts = sizes["hidden"], sizes["heads"], whole(m, "experts", 0, least=0)
    ffn = whole(m, "ffn", 4 * hidden)
    window, windowed = m.get("window") or (None, 0.0)
    latent = DEEPSEEK_LATENT if experts and hidden == 7168 and heads in (64, 128) else None
    return Model(
        name=name,
        layers=sizes["layers"],
        hidden=hidden,
        heads=heads,
        kv_heads=whole(m, "kv_heads", heads),
        head_dim=whole(m, "head_dim", max(1, hidden // heads)),
        ffn=ffn,
        vocab=whole(m, "vocab", 50304),
        sequence=sizes["seq"],
        gated=bool(m.get("gated", True)),
        tied=bool(m.get("tied", False)),
        experts=experts,
        experts_per_token=whole(m, "experts_per_token", 1 if experts else 0, least=0),
        expert_ffn=whole(m, "expert_ffn", ffn),
        shared_experts=whole(m, "shared_experts", 0, least=0),
        dense_layers=whole(m, "dense_layers", 0, least=0) if experts else None,
        predicted_ahead=whole(m, "mtp", 0, least=0),
        latent=latent,
        window=window,
        windowed=windowed,
        nodes_per_token=DEEPSEEK_NODES if latent and experts == 256 else None,
    )


def compare(run: Run) -> Comparison:
    """The prediction against the first published number.

    Of layouts that the source leaves open, the fastest that runs and fits counts; if none fits, the smallest.
    """
    found, refused = [], []
    for layout in run.layouts:
        # A batch that does not divide is rounded: published sweeps have a few.
        whole = layout.dp * layout.micro_batch
        batch = max(1, math.floor(run.batch / whole + 0.5)) * whole
        try:
            found.append(
                predict(run.model, run.cluster, layout, batch, run.precision, run.software, False, run.trained)
            )
        except ValueError as error:
            refused.append(error)
    if not found:
        raise RowError(f"{run.name}: {refused[0]}") from refused[0]
    room = FILLED * run.cluster.memory
    fitting = [p for p in found if p.nbytes < room]
    best = min(fitting, key=lambda p: p.seconds / p.batch) if fitting else min(found, key=lambda p: p.nbytes)
    unit = next(unit for unit in PUBLISHED if unit in run.published)
    published = run.published[unit]
    predicted = {
        "tokens_per_gpu_per_second": best.tokens_per_gpu_per_second,
        "step_seconds": best.seconds * run.batch / best.batch,
        "tflops_per_gpu": best.flops_per_gpu_per_second(run.counting) / 1e12,
        "mfu": best.mfu(run.counting),
    }[unit]
    ratio = published / predicted if unit == "step_seconds" else predicted / published
    return Comparison(run, best, unit, predicted, published, ratio - 1)
