"""± of a prediction: how far predictions were from published runs like it, and what of it none of these had."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from machines.cluster import OWN_SOURCE
from machines.model import Model
from planner.arithmetic import generation
from planner.huggingface import SEQUENCE
from planner.prediction import Prediction
from planner.software import Software


@dataclass(frozen=True)
class Margin:
    """± for a prediction: the median error of throughput, of so many published runs of this family.

    unlike: what of the prediction is in none of these runs.
    """

    error: float
    runs: int
    family: str
    unlike: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """What stands behind ±."""
        unlike = f"; none with {' or '.join(self.unlike)}" if self.unlike else ""
        return f"the median error of {self.runs} published runs ({self.family}{unlike})"


def kind(model: Model) -> str:
    """The kind of a model in words."""
    return "mixtures of experts" if model.experts else "dense models"


def length(prediction: Prediction) -> str:
    """The kind of its sequences in words; "" for those of at most `SEQUENCE` tokens, which most runs have."""
    context = " over several GPUs" if prediction.layout.cp > 1 else ""
    return f"long sequences{context}" if prediction.model.sequence > SEQUENCE else ""


def families(prediction: Prediction, precision: str, software: Software, trained: str) -> list[str]:
    """The families of runs to which a prediction belongs, the narrowest first."""
    words, chips = kind(prediction.model), {"A100": "Ampere", "H100": "Hopper", "B200": "Blackwell"}
    if trained == "lora":
        return [f"LoRA, {words}"]
    long = f", {length(prediction)}" if length(prediction) else ""
    alike = f"{words}, {chips[generation(prediction.cluster)]}, {precision}{long}"
    return [f"{software.name}, {alike}", alike, f"{words}{long}", words]


def nearest(
    known: Mapping[str, Margin], prediction: Prediction, precision: str, software: Software, trained: str
) -> Margin:
    """The margin of the narrowest of a prediction's families that is known (`planner.accuracy.margins`)."""
    words = kind(prediction.model)
    near = [name for name in families(prediction, precision, software, trained) if name in known]
    family = near[0] if near else words
    long = length(prediction)
    new = {
        "LoRA": trained == "lora" and not near,
        long: long != "" and long not in family,
        "packed documents": prediction.model.document is not None,
        "this machine": prediction.cluster.source == OWN_SOURCE,
    }
    return replace(known[family], unlike=tuple([what for what, is_new in new.items() if is_new]))
