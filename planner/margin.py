"""± of a prediction: how far predictions were from published runs like it, and what of it none of these had."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from planner.prediction import Prediction
from planner.software import Software
from ranks.cluster import OWN_SOURCE
from ranks.model import Model


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


def nearest(known: Mapping[str, Margin], prediction: Prediction, software: Software, trained: str) -> Margin:
    """The margin of a prediction of this program's speed, of those known by family (`planner.accuracy.margins`)."""
    words = kind(prediction.model)
    found = known.get(f"{software.name}, {words}") or known[words]
    new = {
        "LoRA": trained == "lora",
        "packed documents": prediction.model.document is not None,
        "this machine": prediction.cluster.source == OWN_SOURCE,
    }
    return replace(found, unlike=tuple([what for what, is_new in new.items() if is_new]))
