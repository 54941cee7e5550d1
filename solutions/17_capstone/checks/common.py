"""What the checks of lesson 17 share: the lesson's parts, and one process that trains as the oracle."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import re
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from autograder.checks import stage
from autograder.checks.expect import (
    ceil_div,
    digits_that_differ,
    expect_close,
    expect_type,
    fail,
)
from autograder.lesson import notebook, pieces

LESSON = "17_capstone"
TOKENS, NUMEL = 64, 29_888
LOSS_ERROR, NORM_ERROR, PARAMETER_ERROR = 1e-5, 1e-4, 1e-4
#: At most this many of the parameters may be further off.
STRAYS = 10
#: The loss falls by at least this much in every step: measured over seeds and learning rates.
MARGIN = 0.01
#: A text that tells what is wrong may also name what it is compared with. One that names everything tells nothing.
MOST_NAMED = 2
LISTS = ("steps", "losses", "grad_norms", "norms", "hashes", "state_bytes", "seconds")


#: Ranks that wait for one another are seen at once; a busy machine may be slow.
run_ranks = functools.partial(stage.run_ranks, timeout=90.0)


def _load_pieces() -> Any:
    """The reference pieces, from the solutions and nowhere else."""
    module = types.ModuleType("autograder.checks.capstone_pieces")
    exec(compile(pieces.source(), pieces.FILE, "exec"), vars(module))
    return module


#: Loaded here, so that the ranks, which are forked from a process that has imported this module, need not.
PIECES = _load_pieces()


def equip(subject: Any, **instead: Any) -> dict:
    """Inside a rank: the notebook's names for the pieces mean the reference ones, or what takes their place."""
    functions = [subject] if callable(subject) and not isinstance(subject, type) else vars(subject).values()
    names = next(f.__globals__ for f in functions if hasattr(f, "__globals__"))
    names.update({name: getattr(PIECES, name) for some in PIECES.PIECES.values() for name in some})
    names.update(instead)
    return names


def what_it_says(action: Callable[[], Any]) -> tuple[str, str]:
    """What an action raises, as (kind, text): ("", "") for nothing."""
    try:
        action()
    except NotImplementedError:
        raise
    except PIECES.CheckpointError as error:
        return "CheckpointError", str(error)
    except Exception as error:
        kind = next(k.__name__ for k in (ValueError, RuntimeError, type(error)) if isinstance(error, k))
        return kind, str(error)
    return "", ""


@functools.cache
def _build_model() -> Callable[[int], nn.Module]:
    return notebook.functions(LESSON)["build_model"]


def window(corpus: np.ndarray, step: int, rank: int, world_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Rank `rank`'s batch, index by index."""
    start = ((step - 1) * world_size + rank) * 65
    tokens = np.array([corpus[(start + i) % len(corpus)] for i in range(65)])
    return tokens[:64].reshape(4, 16), tokens[1:].reshape(4, 16)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """One thread, as in a rank: for tensors this small more threads are slower, above all on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@_one_thread()
def train_alone(
    corpus: np.ndarray, world_size: int, steps: int, seed: int, lr: float = 3e-3, factors: dict | None = None
) -> dict[str, Any]:
    """One process, torch's Adam, the ranks' batches together; parameters[t] are those after step t."""
    model = _build_model()(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    run: dict[str, Any] = {"losses": [], "grad_norms": [], "parameters": [flat_parameters(model)]}
    for step in range(1, steps + 1):
        parts = [window(corpus, step, rank, world_size) for rank in range(world_size)]
        x, y = (torch.from_numpy(np.concatenate(part)) for part in zip(*parts, strict=True))
        loss = nn.functional.cross_entropy(model(x).reshape(-1, TOKENS), y.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        run["grad_norms"].append(math.sqrt(sum(p.grad.double().square().sum().item() for p in model.parameters())))
        optimizer.param_groups[0]["lr"] = lr * (factors or {}).get(step, 1.0)
        optimizer.step()
        run["losses"].append(loss.item())
        run["parameters"].append(flat_parameters(model))
    return run


def flat_parameters(model: nn.Module) -> np.ndarray:
    return np.concatenate([p.detach().numpy().reshape(-1) for p in model.parameters()])


def bytes_of_state(world_size: int) -> int:
    """Bytes that one rank's optimizer holds: a master and two moments, 4 bytes each, of its share of the numbers."""
    return 12 * ceil_div(NUMEL, world_size)


def corpus_of(seed: int) -> np.ndarray:
    return notebook.functions(LESSON)["make_corpus"](seed, 64 * TOKENS).numpy()


def expect_parameters(case: str, rank: int, got: np.ndarray, want: np.ndarray) -> None:
    """All but a few numbers are one process's.

    Where a gradient is as small as its rounding error, Adam's first steps are that error divided by itself: of 29,888
    numbers one or two may go another way, for some seeds. A mistake moves thousands.
    """
    if np.sum(~(np.abs(got - want) <= PARAMETER_ERROR)) > STRAYS:
        bound = {"what": f"rank {rank}'s flat vector of parameters", "rtol": 0.0, "atol": PARAMETER_ERROR}
        expect_close(case, got, want, **bound)


def expect_described(case: str, rank: int, parameters: np.ndarray, norm: Any, digest: Any) -> None:
    """The norm and the digest are those of these parameters."""
    true = float(np.linalg.norm(parameters.astype(np.float64)))
    expect_type(case, norm, float, what="the norm")
    if not math.isclose(norm, true, rel_tol=1e-5) and math.isfinite(true):
        got, expected = digits_that_differ(norm, true)
        fail(f"rank {rank}: the norm of the parameters is {expected}, got {got}", case, ["norm", norm])
    if digest != hashlib.sha256(parameters.tobytes()).hexdigest():
        fail(f"rank {rank}: the digest is not the SHA-256 of the parameters' bytes", case, ["digest", rank])


def expect_told(
    case: str, said: list[tuple], word: str, culprit: int | None, step: int, seen: list | tuple = ()
) -> None:
    """Every rank says nothing (no word), or a RuntimeError with the word, the rank and the step.

    seen: more evidence, of an answer in which not all ranks raise the right error.
    """
    kinds = [*(kind for kind, _ in said), *seen]
    for rank, (kind, text) in enumerate(said):
        if not word and kind:
            fail(f"nothing is wrong, but rank {rank} raised {kind}: {text}", case, kinds, kind)
        if word and kind != "RuntimeError":
            did = f"raised {kind}: {text}" if kind else "raised nothing"
            fail(f"every rank must raise a RuntimeError about the {word}; rank {rank} {did}", case, kinds, kind)
    for rank, (_, text) in enumerate(said if word else []):
        wanted = [word, f"rank {culprit}", f"step {step}"]
        missing = [part for part in wanted if part not in text]
        if missing:
            wrong = [invariants_in(t) for _, t in said]
            found = [part for part in wanted if part in text]
            fail(f"rank {rank} says {text!r}; it should name {missing}", case, [wrong, len(found)])
        for kind, named in (("ranks", set(re.findall(r"\brank (\d+)", text))), ("invariants", invariants_in(text))):
            if len(named) > MOST_NAMED:
                told = f"rank {rank} says {text!r}, which names {len(named)} {kind}; it should name the wrong one"
                fail(told, case, ["names many", kind])


def invariants_in(text: str) -> list[str]:
    """The words for what may be wrong that are in a text."""
    return [word for word in ("loss", "parameters", "bytes", "checkpoint", "memory") if word in text]


def spoil(state: dict, how: str) -> dict:
    """A state in which something is not as it was."""
    spoilt = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in state.items()}
    if how == "one bit":
        spoilt["exp_avg"].view(torch.int32)[0] ^= 1
    elif how == "a value":
        spoilt["lr"] *= 2
    elif how == "a name":
        del spoilt["exp_avg_sq"]
    elif how == "a dtype":
        spoilt["master"] = spoilt["master"].view(torch.int32)
    return spoilt


def tensor_bytes(state: dict) -> list[bytes]:
    return [state[name].numpy().tobytes() for name in sorted(state) if isinstance(state[name], torch.Tensor)]
