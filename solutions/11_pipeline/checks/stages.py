"""Stages that are watched, and the pipelines made of them."""

from __future__ import annotations

import math
import time
import weakref
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.profiler import record_function

from autograder.checking.expect import count_of_ranks


@dataclass
class Probe:
    """What one stage did: its forwards and backwards in order, by size, and how much it kept alive.

    alive, peak: saved activations, now and at most. inputs, most_inputs: the same of received inputs.
    """

    log: list[tuple[str, int]] = field(default_factory=list)
    alive: int = 0
    peak: int = 0
    inputs: int = 0
    most_inputs: int = 0

    def watch(self, received: torch.Tensor) -> None:
        """Count this input until nobody holds it, autograd included."""
        self.inputs += 1
        self.most_inputs = max(self.most_inputs, self.inputs)
        weakref.finalize(received, self._let_go)

    def _let_go(self) -> None:
        self.inputs -= 1


class _Token:
    """Stands for a tensor that a stage saved for its backward; autograd drops it when the tensor is let go."""

    def __init__(self, tensor: torch.Tensor, probe: Probe):
        self.tensor, self.probe = tensor, probe
        probe.alive += 1
        probe.peak = max(probe.peak, probe.alive)

    def __del__(self):
        self.probe.alive -= 1


class _Watched(torch.autograd.Function):
    """The identity; it saves one tensor, records when it runs, and may sleep."""

    @staticmethod
    def forward(ctx, h, probe, seconds):
        ctx.probe, ctx.seconds = probe, seconds
        ctx.save_for_backward(torch.ones(()))
        return h.clone()

    @staticmethod
    def backward(ctx, gradient):
        with record_function("B"):
            ctx.probe.log.append(("B", len(gradient)))
            (one,) = ctx.saved_tensors
            time.sleep(ctx.seconds)
            return gradient * one, None, None


class Stage(nn.Module):
    """A layer with tanh (or an embedding) whose activations are `hidden` in shape, watched by a probe."""

    def __init__(self, weights: dict[str, np.ndarray], hidden: tuple[int, ...], transposed: bool, sleep=(0.0, 0.0)):
        super().__init__()
        self.params = nn.ParameterDict({name: nn.Parameter(torch.tensor(w)) for name, w in weights.items()})
        self.hidden, self.transposed, self.sleep, self.probe = hidden, transposed, sleep, Probe()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x `(B, *hidden)`, or the first stage's input, to `(B, *hidden)`."""
        with record_function("F"):
            self.probe.log.append(("F", len(x)))
            if x.requires_grad:
                self.probe.watch(x)
            time.sleep(self.sleep[0])
            h = self.layer(x)
            probe = self.probe
            with torch.autograd.graph.saved_tensors_hooks(lambda t: _Token(t, probe), lambda token: token.tensor):
                h = _Watched.apply(h, self.probe, self.sleep[1])
            return h.transpose(1, 2).contiguous().transpose(1, 2) if self.transposed else h

    def layer(self, x: torch.Tensor) -> torch.Tensor:
        """The same without being watched."""
        if "table" in self.params:
            h = self.params["table"][x]
        else:
            h = x.reshape(len(x), -1) @ self.params["weight"] + self.params["bias"]
        return torch.tanh(h).reshape(len(x), *self.hidden)


@dataclass
class Case:
    """One step of one pipeline. Its micro-batches differ in size, which tells them apart."""

    name: str
    stages: list[dict[str, np.ndarray]]
    hidden: tuple[int, ...]
    schedule: list[list[tuple[str, int]]]
    batch: list[tuple[np.ndarray, np.ndarray]]
    transposed: bool = False
    sleep: tuple[float, float] = (0.0, 0.0)

    def build(self, stage: int) -> Stage:
        return Stage(self.stages[stage], self.hidden, self.transposed, self.sleep)

    def rows(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [(torch.tensor(x), torch.tensor(y)) for x, y in self.batch]


def loss_of(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Mean over examples of a squared distance; large enough for gradients of the order of 1."""
    return 4 * (output.reshape(len(output), -1) - y).square().sum(dim=1).mean()


def make_case(
    rng: np.random.Generator,
    name: str,
    schedule: list,
    count: int,
    hidden: tuple[int, ...],
    tokens=False,
    **more: Any,
) -> Case:
    """A pipeline of as many stages as the schedule has, with fresh weights and `count` micro-batches."""
    stages, width = len(schedule), math.prod(hidden)
    sizes = [int(n) for n in rng.permutation(np.arange(1, count + 1))]

    def numbers(*shape: int) -> np.ndarray:
        return rng.uniform(-1, 1, shape).astype(np.float32)

    weights = [{"weight": numbers(width, width) / math.sqrt(width) * 2, "bias": numbers(width)} for _ in range(stages)]
    weights[0] = {"table": numbers(7, width)} if tokens else {"weight": numbers(3, width), "bias": numbers(width)}
    weights = [{key: w.astype(np.float32) for key, w in mine.items()} for mine in weights]
    inputs = [rng.integers(0, 7, n) if tokens else numbers(n, 3) for n in sizes]
    batch = [(x, numbers(len(x), width)) for x in inputs]
    where = f"{count_of_ranks(stages)}, {count} micro-batches"
    return Case(f"{name}, {where}", weights, hidden, schedule, batch, **more)


def unsplit(case: Case) -> tuple[float, list[dict[str, np.ndarray]]]:
    """Loss and gradients, by stage, of the unsplit model on the whole batch."""
    stages = [case.build(s) for s in range(len(case.stages))]
    x, y = (torch.cat(parts) for parts in zip(*case.rows(), strict=True))
    for stage in stages:
        x = stage.layer(x)
    loss = loss_of(x, y)
    loss.backward()
    return loss.item(), [{name: p.grad.numpy() for name, p in stage.params.items()} for stage in stages]
