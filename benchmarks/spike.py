"""Where does the loss spike in the warm-up of lesson 17's real run come from, and which remedy helps?

    python benchmarks/spike.py --out benchmarks/measured/spike.json     # some ten minutes of one core

One process trains the model of `examples/real_run/run.py` on the text of the book with torch's AdamW: with other
shuffles of the text, with a half and a quarter of the learning rate, and with twice the warm-up. At the first loss that
jumps, the next batches are judged at the same parameters, and the steps around it are made again in several ways, each
watched for five steps, in one shuffle for 25. Each step records the norm of Adam's update without the rate, and what
it would be if the clipped gradient were some factor larger.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import importlib
import json
import math
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "examples" / "real_run")]

real = importlib.import_module("run")

FACTORS = (2, 10, 1000)  # of a gradient after clipping
JUMP = 0.1  # bits per byte above the last loss: a spike
EARLIEST = 8  # the first step that can count as one
AFTERWARDS = (25, 5, 5, 5)  # by shuffle: steps for which each remedy is watched, from the spike's step on
REWIND, SKIPPED = 5, 10  # steps to go back, and batches to leave out from there on: those around the spike


class Run:
    """One process on the batches of all ranks."""

    def __init__(self, config: Any, texts: dict[str, Any], shuffle: int) -> None:
        self.config, self.ids, self.step = config, texts["train"], 0
        self.per_byte = len(self.ids) / texts["train_bytes"] / math.log(2)
        self.model = real.GPT(config, seed=0)
        parameters = list(self.model.parameters())
        groups = [
            {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": config.decay},
            {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=0.0, betas=real.BETAS)
        self.loader = real.Loader((len(self.ids) - config.context) // config.context, config.batch, 0, 1, seed=shuffle)

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The next batch's inputs and targets."""
        epoch = self.loader.place["epoch"]
        x, y = real.windows(self.ids, self.loader.next_batch(), self.config.context, epoch)
        return x, y

    def loss(self, x: torch.Tensor, y: torch.Tensor, backward: bool = False) -> float:
        """Bits per byte, in micro-batches; with `backward` the gradients of the mean are left in the model."""
        total, size = 0.0, int(self.config.micro_batch)
        with torch.set_grad_enabled(backward):
            for i in range(0, len(x), size):
                part = real.loss_sum(self.model, x[i : i + size], y[i : i + size]) / y.numel()
                if backward:
                    part.backward()
                total += part.item()
        return float(total * self.per_byte)

    def update_norm(self, factor: float) -> float:
        """The norm of Adam's update, without the rate, if the gradient were `factor` times as large."""
        total, (first, second) = 0.0, real.BETAS
        for p in self.model.parameters():
            state = self.optimizer.state.get(p) or {"exp_avg": 0.0, "exp_avg_sq": 0.0, "step": torch.zeros(())}
            g, t = factor * p.grad, state["step"].item() + 1
            m = (first * state["exp_avg"] + (1 - first) * g) / (1 - first**t)
            v = (second * state["exp_avg_sq"] + (1 - second) * g * g) / (1 - second**t)
            total += float((m / (v.sqrt() + 1e-8)).square().sum())
        return math.sqrt(total)

    def forward_backward(self) -> dict[str, Any]:
        """The next step up to its update, with the norms of its gradient and of the update that would follow."""
        self.step += 1
        self.optimizer.zero_grad()
        loss = self.loss(*self.batch(), backward=True)
        norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip))
        return {"step": self.step, "loss": loss, "norm": norm, "update": self.update_norm(1)}

    def update(self, factor: float = 1.0) -> None:
        """AdamW's step with `factor` times the scheduled rate."""
        rate = real.rate(self.step, self.config.steps, self.config.lr, self.config.warmup)
        for group in self.optimizer.param_groups:
            group["lr"] = factor * rate
        self.optimizer.step()

    def digest(self) -> str:
        """SHA-256 of the parameters."""
        return str(real.parameters_digest(self.model))

    def without_batches(self, count: int) -> Run:
        """A copy that leaves out the next `count` batches; its steps count on, and so does the schedule."""
        other = copy.deepcopy(self)
        for _ in range(count):
            other.batch()
        return other

    def next_losses(self, count: int) -> list[float]:
        """The losses of the batches to come, at the same parameters; the run itself stays where it is."""
        other = copy.deepcopy(self)
        return [other.loss(*other.batch()) for _ in range(count)]

    def losses(self, count: int, factor: float = 1.0) -> list[float]:
        """The losses of the next steps, trained with `factor` times the rate; the run itself stays where it is."""
        other, found = copy.deepcopy(self), []
        for _ in range(count):
            found.append(other.forward_backward()["loss"])
            other.update(factor)
        return found


def remedies(earlier: list[Run], at: Run, steps: int) -> dict[str, Any]:
    """What comes of each way to go on, as losses of the steps from the spike's on (after a rewind, from there on).

    earlier: at the start of each of the REWIND steps before the spike, oldest first; at: at the spike's start; steps:
    for so many each is watched. Only the longest watch has the rewind.
    """
    before = earlier[-1]
    again = copy.deepcopy(before)
    again.forward_backward()
    again.update()
    left_out, halved, unclipped = copy.deepcopy(before), copy.deepcopy(before), copy.deepcopy(at)
    left_out.forward_backward()  # the suspicious step's update is not made
    halved.forward_backward()
    halved.update(0.5)
    unclipped.config = replace(unclipped.config, clip=math.inf)
    found = {
        "go on": at.losses(steps),
        "go on without clipping": unclipped.losses(steps),
        "leave out the updates from here on": at.next_losses(steps),
        "make the update before again": again.losses(2),  # equal bits and equal losses: the rest is going on
        "the update made again has the same bits": again.digest() == at.digest(),
        "leave out the update before": left_out.losses(steps),
        "half the rate in the update before": halved.losses(steps),
        "half the rate from the update before on": before.losses(steps + 1, 0.5)[1:],
    }
    if steps == max(AFTERWARDS):
        found["rewind and skip the batches"] = earlier[0].without_batches(SKIPPED).losses(REWIND + steps)
    return found


def study(config: Any, texts: dict[str, Any], shuffle: int, steps: int, watched: int) -> dict[str, Any]:
    """Train so many steps; the rows, and where the first spike is, with what came of each remedy."""
    run = Run(config, texts, shuffle)
    rows: list[dict[str, Any]] = []
    found: dict[str, Any] = {}
    earlier: list[Run] = []
    while run.step < steps:
        here = copy.deepcopy(run) if not found else None
        row = run.forward_backward()
        row["larger"] = [run.update_norm(factor) for factor in FACTORS]
        if here is not None and row["step"] >= EARLIEST and row["loss"] > rows[-1]["loss"] + JUMP:
            found = {"step": row["step"], "loss_before": rows[-1]["loss"], "loss": row["loss"]}
            found["remedies"] = remedies(earlier, here, watched) if watched else {}
        run.update()
        rows.append(row)
        if here is not None:
            earlier = [*earlier, here][-REWIND:]
    norms = [row["update"] for row in rows]
    most = max(norms[i] / statistics.median(norms[max(0, i - 5) : i]) for i in range(2, steps))
    name = f"shuffle {shuffle}, peak {config.lr:g}, warm-up {config.warmup:g}"
    print(f"{name}: update / median of five at most {most:.2f}; {found or 'no spike'}")
    return {"spike": found, "rows": rows}


def cases() -> list[tuple[Any, int, int, int]]:
    """Each run's settings, shuffle, steps, and for how many steps the remedies are watched."""
    config = real.Config()
    half, quarter = (replace(config, lr=share * config.lr) for share in (0.5, 0.25))
    longer = replace(config, warmup=2 * config.warmup)  # half the peak's run until step 32; its warm-up ends in step 64
    found = [(config, shuffle, 20, steps) for shuffle, steps in enumerate(AFTERWARDS)]
    found += [(half, shuffle, 40, 0) for shuffle in range(4)]
    return [*found, (quarter, 0, 40, 0), (config, 0, 160, 0), (longer, 0, 72, 0)]


def main() -> None:
    """Make all runs, and write what they recorded."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "measured" / "spike.json")
    parser.add_argument("--root", type=Path, default=ROOT, help="the folder with the text: `book` in an older checkout")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    real.COURSE = arguments.root
    texts, _ = real.prepared(real.Config())
    found: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "conditions": f"one process, one thread, fp32, torch {torch.__version__}",
        "factors": FACTORS,
        "rewound_steps": REWIND,
        "skipped_batches": SKIPPED,
        "runs": [],
    }
    for config, shuffle, steps, watched in cases():
        case = {"shuffle": shuffle, "lr": config.lr, "warmup": config.warmup, "training_tokens": len(texts["train"])}
        found["runs"].append(case | study(config, texts, shuffle, steps, watched))
    arguments.out.write_text(json.dumps(_rounded(found)) + "\n")


def _rounded(value: Any) -> Any:
    """The same with six digits per number."""
    if isinstance(value, dict):
        return {name: _rounded(v) for name, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(v) for v in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main()
