"""Lesson 17: the loop computes what one process computes, sees what breaks it, and resumes as if it had never stopped.

The oracle is a model of its own kind in this process: the notebook's given model, trained by torch's Adam on the
batches of all ranks together. What the student's loop is built from is always the reference solution's, whatever the
notebook says, unless a check breaks a piece on purpose to see whether the loop notices. Bounds are those that were
measured over seeds: losses 1e-5, norms of the gradient 1e-4 of themselves, parameters 1e-4. Whatever is resumed,
or rolled back and replayed, must be equal to the bit.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import json
import math
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from autograder.checking import stage
from autograder.checking.check import check
from autograder.checking.expect import as_array, expect_close, expect_raises, fail
from autograder.checking.stage import call_inside
from autograder.lessons import notebook

LESSON = "17_capstone"
TOKENS, NUMEL = 64, 29_888
LOSS_ERROR, NORM_ERROR, PARAMETER_ERROR = 1e-5, 1e-4, 1e-4
#: So many of the parameters may be further off.
STRAYS = 10
#: The loss falls by at least so much in every step: measured over seeds and learning rates.
MARGIN = 0.01
LISTS = ("steps", "losses", "grad_norms", "norms", "hashes", "state_bytes", "seconds")

#: Ranks that wait for one another are seen at once; a busy machine may be slow.
run_ranks = functools.partial(stage.run_ranks, timeout=90.0)


def _load_pieces() -> Any:
    """The reference pieces, from the solutions' folder and nowhere else."""
    path = notebook.SOLUTIONS / LESSON / "pieces.py"
    spec = importlib.util.spec_from_file_location("autograder.checks.capstone_pieces", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


#: Loaded here, so that the ranks, which are forked from a process that has imported this module, need not.
PIECES = _load_pieces()


def _equip(subject: Any, **instead: Any) -> dict:
    """Inside a rank: the notebook's names for the pieces mean the reference ones, or what takes their place."""
    functions = [subject] if callable(subject) and not isinstance(subject, type) else vars(subject).values()
    names = next(f.__globals__ for f in functions if hasattr(f, "__globals__"))
    names.update({name: getattr(PIECES, name) for some in PIECES.PIECES.values() for name in some})
    names.update(instead)
    return names


def _said(action: Callable[[], Any]) -> tuple[str, str]:
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


# ---- the oracle ----


@functools.cache
def _build_model() -> Callable[[int], nn.Module]:
    return notebook.functions(LESSON)["build_model"]


def _window(corpus: np.ndarray, step: int, rank: int, world_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Rank `rank`'s batch, index by index."""
    start = ((step - 1) * world_size + rank) * 65
    tokens = np.array([corpus[(start + i) % len(corpus)] for i in range(65)])
    return tokens[:64].reshape(4, 16), tokens[1:].reshape(4, 16)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """As in a rank: for tensors this small more threads are slower, by far where others use the machine too."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@_one_thread()
def _alone(
    corpus: np.ndarray, world_size: int, steps: int, seed: int, lr: float = 3e-3, factors: dict | None = None
) -> dict[str, Any]:
    """One process, torch's Adam, the ranks' batches together; parameters[t] are those after step t."""
    model = _build_model()(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    run: dict[str, Any] = {"losses": [], "grad_norms": [], "parameters": [_flat(model)]}
    for step in range(1, steps + 1):
        parts = [_window(corpus, step, rank, world_size) for rank in range(world_size)]
        x, y = (torch.from_numpy(np.concatenate(part)) for part in zip(*parts, strict=True))
        loss = nn.functional.cross_entropy(model(x).reshape(-1, TOKENS), y.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        run["grad_norms"].append(math.sqrt(sum(p.grad.double().square().sum().item() for p in model.parameters())))
        optimizer.param_groups[0]["lr"] = lr * (factors or {}).get(step, 1.0)
        optimizer.step()
        run["losses"].append(loss.item())
        run["parameters"].append(_flat(model))
    return run


def _flat(model: nn.Module) -> np.ndarray:
    return np.concatenate([p.detach().numpy().reshape(-1) for p in model.parameters()])


def _bytes_of_state(world_size: int) -> int:
    return 12 * -(NUMEL // -world_size)


def _corpus(make_corpus: Any, seed: int) -> np.ndarray:
    return as_array(f"seed {seed}", make_corpus(seed, 64 * TOKENS), "the corpus")


# ---- 1 · corpus and batches ----


def _beside_a_state(make_corpus: Any, seed: int, total: int, noise: int) -> tuple[Any, bool]:
    """A corpus that is made while torch's global random state is some state, and whether it still is that one."""
    before = torch.get_rng_state()
    torch.manual_seed(noise)
    state = torch.get_rng_state()
    try:
        return make_corpus(seed, total), torch.equal(state, torch.get_rng_state())
    finally:
        torch.set_rng_state(before)


@check("17-ex1-batches")
def corpus_is_one_cycle_repeated(make_corpus, *, rng):
    """A permutation of the tokens, repeated; the seed alone decides which; wrong lengths are refused."""
    cycles = []
    for seed in (int(s) for s in rng.integers(0, 10**6, 3)):
        for total in (64, 192, 4096):
            case = f"seed {seed}, {total} tokens"
            got, same_state = call_inside(_beside_a_state, make_corpus, seed, total, int(rng.integers(10**6)))
            tokens = as_array(case, got, "the corpus")
            if not same_state:
                fail("the global random state was changed: use a torch.Generator", "global state", "global state")
            if tokens.shape != (total,) or not isinstance(got, torch.Tensor) or got.dtype != torch.int64:
                shown = [list(tokens.shape), str(getattr(got, "dtype", type(got).__name__))]
                fail(f"expected ({total},) of int64, got {shown[0]} of {shown[1]}", f"{total} tokens", shown)
            if sorted(tokens[:64]) != list(range(64)):
                fail("the first 64 tokens are not a permutation of 0 … 63", "one cycle", len(set(tokens[:64].tolist())))
            if not np.array_equal(tokens, np.resize(tokens[:64], total)):
                same = int(np.argmax(tokens != np.resize(tokens[:64], total)))
                fail(f"the cycle is not repeated: token {same} differs", f"{total} tokens", [total, same // 64])
            cycles.append((seed, np.roll(tokens[:64], -int(np.argmax(tokens[:64] == 0)))))
        if any(not np.array_equal(cycle, cycles[-1][1]) for other, cycle in cycles if other == seed):
            fail("the same seed gave another cycle", "same seed", "differs")
    if len({cycle.tobytes() for _, cycle in cycles}) < 3:
        fail("different seeds gave the same cycle", "different seeds", "same")
    for total in (0, -64, 63, 100):
        expect_raises(f"{total} tokens", make_corpus, 0, total, error=ValueError, mentions="total_tokens")


@check("17-ex1-batches")
def batches_are_windows_of_the_corpus(make_batch, *, rng):
    """x and y are the windows that the formula names, for any corpus, step, rank and number of ranks."""
    cases = [(4096, 1, 0, 1), (4096, 1, 0, 4), (4096, 1, 3, 4), (4096, 2, 0, 4), (4096, 7, 2, 3), (4096, 20, 1, 2)]
    cases += [(100, 3, 1, 2), (40, 5, 2, 3), (192, 10**6, 1, 4)]
    for length, step, rank, world_size in cases:
        case = f"a corpus of {length}, step {step}, rank {rank} of {world_size}"
        corpus = np.arange(length) * 3 + 5  # every place has a token of its own
        given = torch.from_numpy(corpus.copy())
        got = make_batch(given, step, rank, world_size)
        want = _window(corpus, step, rank, world_size)
        if not isinstance(got, (tuple, list)) or len(got) != 2:
            fail(f"expected (x, y), got {type(got).__name__}", case, type(got).__name__)
        for name, mine, expected in zip(("x", "y"), got, want, strict=True):
            expect_close(case, mine, expected, what=name, rtol=0.0, show_expected=False)
            if not isinstance(mine, torch.Tensor) or mine.dtype != torch.int64:
                fail(f"{name} should be an int64 tensor", case, str(getattr(mine, "dtype", type(mine).__name__)))
        if not np.array_equal(given.numpy(), corpus):
            fail("the corpus was changed", case, "changed")
    wrong = [((0, 0, 2), "step"), ((-3, 0, 2), "step"), ((1, 2, 2), "rank"), ((1, -1, 2), "rank")]
    for (step, rank, world_size), name in wrong:
        case = f"step {step}, rank {rank} of {world_size}"
        corpus = torch.arange(128)
        expect_raises(case, make_batch, corpus, step, rank, world_size, error=ValueError, mentions=name)


# ---- 2 · Trainer ----


def _drive_trainer(rank: int, world_size: int, trainer_class: Any, seed: int, cases: list[tuple]) -> list[dict]:
    """Inside a rank: for each (micro_batches, lr, factors) a trainer and some steps."""
    names = _equip(trainer_class)
    build, seeds = names["build_model"], []
    names["build_model"] = lambda number: seeds.append(number) or build(number)
    outcomes = []
    for micro_batches, lr, factors in cases:
        dist.barrier()
        seeds.clear()
        trainer = trainer_class(rank, world_size, seed, lr, micro_batches)
        rows, shapes = [], []
        got = {"seeds": list(seeds), "numel": trainer.numel, "start": _flat(trainer.model), "rows": rows}
        trainer.model.register_forward_pre_hook(lambda _, inputs, shapes=shapes: shapes.append(tuple(inputs[0].shape)))
        for step, factor in factors.items():
            trainer.gradients(step + 5)  # of a step that is then not made
            shapes.clear()
            dist.barrier()
            loss, grad_norm = trainer.gradients(step)
            unchanged = not rows or np.array_equal(rows[-1]["parameters"], _flat(trainer.model))
            norm, digest = trainer.update(factor)
            dist.barrier()
            row = {"loss": loss, "grad_norm": grad_norm, "norm": norm, "digest": digest, "shapes": list(shapes)}
            row |= {"parameters": _flat(trainer.model), "unchanged": unchanged}
            rows.append(row)
        got["lr"] = trainer.optimizer.param_groups[0]["lr"]
        got["corpus"] = trainer.corpus.numpy().copy()
        outcomes.append(got)
    return outcomes


@check("17-ex2-trainer")
def steps_follow_one_process(Trainer, make_corpus, *, rng):  # noqa: N803
    """Loss, gradient norm and parameters after each step are those of one process on all batches."""
    seed, usual = int(rng.integers(100)), {1: 1.0, 2: 3.0, 3: 1.0}
    corpus = _corpus(make_corpus, seed)
    plan = [(4, [(1, 3e-3, usual), (4, 2e-3, usual)]), (3, [(2, 3e-3, usual)]), (1, [(2, 3e-3, usual)])]
    plan[-1][1].append((1, 3e-3, {1: 1.0, 2: math.inf}))
    for world_size, cases in plan:
        results = run_ranks(_drive_trainer, world_size, (Trainer, seed, cases))
        for number, (micro_batches, lr, factors) in enumerate(cases):
            case = f"N = {world_size}, {micro_batches} micro-batches"
            _expect_trainer(case, [mine[number] for mine in results], corpus, seed, micro_batches, lr, factors)


def _expect_trainer(case, ours, corpus, seed, micro_batches, lr, factors) -> None:
    finite = all(map(math.isfinite, factors.values()))
    want = _alone(corpus, len(ours), len(factors), seed, lr, factors)
    for rank, mine in enumerate(ours):
        if mine["seeds"] != [seed + rank]:
            fail(
                f"rank {rank} built its model under {mine['seeds']}, expected seed + rank",
                case,
                [number - seed for number in mine["seeds"]],
            )
        if mine["numel"] != NUMEL:
            fail(f"numel is {mine['numel']}", case, mine["numel"])
        if not np.array_equal(mine["start"], want["parameters"][0]):
            fail(f"rank {rank} does not start with rank 0's parameters", case, ["start", rank])
        if not np.array_equal(mine["corpus"], np.resize(corpus[:64], len(mine["corpus"]))):
            fail(f"rank {rank}'s corpus is not make_corpus(seed, …)", case, ["corpus", rank])
    for place in range(len(factors)):
        rows = [mine["rows"][place] for mine in ours]
        where = f"{case}, step {place + 1}"
        losses, norms = [row["loss"] for row in rows], [row["grad_norm"] for row in rows]
        if not all(isinstance(value, float) for value in losses + norms):
            fail("loss and grad_norm should be floats", where, [type(v).__name__ for v in (losses[0], norms[0])])
        if len(set(losses)) > 1 or len(set(norms)) > 1:
            fail(f"the ranks report other losses or norms: {losses}, {norms}", where, [losses, norms])
        if abs(losses[0] - want["losses"][place]) > LOSS_ERROR:
            fail(f"the loss is {losses[0]:.6f}, one process has {want['losses'][place]:.6f}", where, losses[0])
        if abs(norms[0] / want["grad_norms"][place] - 1) > NORM_ERROR:
            text = f"the norm of the mean gradient is {norms[0]:.6f}, one process has {want['grad_norms'][place]:.6f}"
            fail(text, where, norms[0])
        for rank, row in enumerate(rows):
            if not row["unchanged"]:
                fail("gradients changed the parameters", where, "changed")
            if row["shapes"] != [(4 // micro_batches, 16)] * micro_batches:
                fail(f"rank {rank}'s model saw batches of {row['shapes']}", where, [list(s) for s in row["shapes"]])
            if finite or place == 0:
                _expect_parameters(where, rank, row["parameters"], want["parameters"][place + 1])
            _expect_described(where, rank, row["parameters"], row["norm"], row["digest"])
    rates = [mine["lr"] for mine in ours]
    if rates != [lr] * len(ours):
        fail(f"afterwards the learning rate is {rates[0]}, not {lr}", case, rates)


def _expect_parameters(case: str, rank: int, got: np.ndarray, want: np.ndarray) -> None:
    """All but a few numbers are one process's.

    Where a gradient is as small as its rounding error, Adam's first steps are that error divided by itself: of 29,888
    numbers one or two may go another way, for some seeds. A mistake moves thousands.
    """
    if np.sum(~(np.abs(got - want) <= PARAMETER_ERROR)) > STRAYS:
        bound = {"what": f"rank {rank}'s flat vector of parameters", "rtol": 0.0, "atol": PARAMETER_ERROR}
        expect_close(case, got, want, **bound)


def _expect_described(case: str, rank: int, parameters: np.ndarray, norm: Any, digest: Any) -> None:
    """The norm and the digest are those of these parameters."""
    true = float(np.linalg.norm(parameters.astype(np.float64)))
    if not isinstance(norm, float):
        fail(f"the norm should be a float, it is a {type(norm).__name__}", case, ["norm", type(norm).__name__])
    if not math.isclose(norm, true, rel_tol=1e-5) and math.isfinite(true):
        fail(f"rank {rank}: the norm of the parameters is {true:.6f}, got {norm:.6f}", case, ["norm", norm])
    if digest != hashlib.sha256(parameters.tobytes()).hexdigest():
        fail(f"rank {rank}: the digest is not the SHA-256 of the parameters' bytes", case, ["digest", rank])


@check("17-ex2-trainer")
def steps_send_the_gradient_once(Trainer, *, rng):  # noqa: N803
    """One reduce-scatter and one all-gather a step; everything else is small."""
    cases = [(4, 3e-3, {1: 1.0, 2: 1.0}), (1, 3e-3, {1: 1.0})]
    results = run_ranks(_drive_trainer, 3, (Trainer, 0, cases))
    for rank in range(3):
        parts = results.ledger.of(rank).between_barriers()
        sent = [[m.call for m in part if m.bytes > 1024] for part in (parts[2], parts[4], parts[7])]
        kinds = [sorted(call.split("_single")[0].split("_tensor")[0] for call in calls) for calls in sent]
        for calls, kind in zip(sent, kinds, strict=True):
            if len(kind) != 2 or not kind[0].startswith("all_gather") or not kind[1].startswith("reduce_scatter"):
                fail(f"rank {rank} sent in one step: {calls}", "communication of a step", kinds)


@check("17-ex2-trainer")
def trainer_refuses_odd_micro_batches(Trainer, *, rng):  # noqa: N803
    """A number that does not divide the batch is a ValueError that names it, on every rank, before any message."""
    results = run_ranks(_refuse, 2, (Trainer, [3, 0, -2, 8], "trainer"))
    _expect_refused(results, "micro_batches")


def _refuse(rank: int, world_size: int, subject: Any, values: list, kind: str) -> list[tuple]:
    _equip(subject)
    if kind == "trainer":
        return [(f"micro_batches = {v}", *_said(lambda v=v: subject(rank, world_size, 0, 3e-3, v))) for v in values]
    return [
        (
            f"{name} = {value}",
            *_said(lambda more=more: subject(rank, world_size, more.pop("steps", 2), None, None, **more)),
        )
        for name, value in values
        for more in [{name: value}]
    ]


def _expect_refused(results: Any, *names: str) -> None:
    for rank, rows in enumerate(results):
        for case, kind, text in rows:
            name = case.split(" =")[0]
            if kind != "ValueError" or name not in text:
                said = f"{kind}: {text}" if kind else "nothing"
                fail(f"expected a ValueError that names {name} on rank {rank}, got {said}", case, [kind, name in text])
    if any(results.ledger):
        fail("something was sent before the ValueError", "messages", "sent")


# ---- 3 · invariants ----


def _drive_check_step(rank: int, world_size: int, check_step: Any, cases: list[dict]) -> list[tuple]:
    outcomes = []
    for case in cases:
        mine = {name: value[rank] if isinstance(value, tuple) else value for name, value in case.items()}
        mine["losses"] = list(mine["losses"])
        dist.barrier()
        outcomes.append(_said(lambda mine=mine: check_step(rank, world_size, **mine)))
    dist.barrier()
    return outcomes


@check("17-ex3-invariants")
def step_invariants_are_told_by_all_ranks(check_step, *, rng):
    """What does not hold is a RuntimeError on every rank, with the invariant, the rank and the step."""
    numel, step = int(rng.integers(100, 1000)) * 4 + 1, int(rng.integers(11, 99))
    held, nan = 12 * (numel // 4 + 1), math.nan
    good = {
        "step": step,
        "losses": [4.2, 4.0, 3.9],
        "norm": 13.25,
        "digest": "ab" * 32,
        "state_bytes": held,
        "numel": numel,
    }
    cases: list[tuple[str, dict, str, int | None]] = [
        ("all is well", {}, "", None),
        ("the loss stays as it is", {"losses": [4.2, 4.0, 4.0]}, "loss", None),
        ("the loss rises a little", {"losses": [4.0, 4.0000001]}, "loss", None),
        ("the loss is nan", {"losses": [4.2, 4.0, nan]}, "loss", None),
        ("the loss after a nan", {"losses": [4.2, nan, 4.0]}, "loss", None),
        ("an earlier rise", {"losses": [4.2, 4.5, 4.4]}, "", None),
        ("a single loss", {"losses": [4.2]}, "", None),
        ("a rise where falling is off", {"losses": [4.2, 5.0], "falling": False}, "", None),
        ("the norm of rank 2 differs", {"norm": (13.25, 13.25, 13.250001, 13.25)}, "parameters", 2),
        ("the digests of ranks 1 and 3 differ", {"digest": ("a", "b", "a", "c")}, "parameters", 1),
        ("rank 0 differs from all others", {"digest": ("x", "y", "y", "y")}, "parameters", 1),
        ("the norm is nan on all ranks", {"norm": nan}, "", None),
        ("the norm is nan on rank 3", {"norm": (1.0, 1.0, 1.0, nan)}, "parameters", 3),
        ("rank 3 holds 4 bytes more", {"state_bytes": (held, held, held, held + 4)}, "bytes", 3),
        ("rank 1 holds no moments", {"state_bytes": (held, held // 3, held, held)}, "bytes", 1),
        ("nobody shards", {"state_bytes": 12 * numel}, "bytes", 0),
        ("rank 2 does not round up", {"state_bytes": (held, held, held - 12, held)}, "bytes", 2),
        ("loss and bytes", {"losses": [1.0, 2.0], "state_bytes": 0}, "loss", None),
        (
            "parameters of 2 and bytes of 1",
            {"digest": ("a", "a", "b", "a"), "state_bytes": (held, 0, held, held)},
            "parameters",
            2,
        ),
    ]
    results = run_ranks(_drive_check_step, 4, (check_step, [{**good, **change} for _, change, _, _ in cases]))
    for number, (case, _, word, culprit) in enumerate(cases):
        _expect_told(case, [mine[number] for mine in results], word, culprit, step)
    one = [{**good, "numel": 7, "state_bytes": 84}, {**good, "numel": 7, "state_bytes": 28}]
    results = run_ranks(_drive_check_step, 1, (check_step, one))
    _expect_told("one rank, all is well", [results[0][0]], "", None, step)
    _expect_told("one rank without moments", [results[0][1]], "bytes", 0, step)


def _expect_told(case: str, said: list[tuple], word: str, culprit: int | None, step: int) -> None:
    """Every rank says nothing (no word), or a RuntimeError with the word, the rank (None: its own) and the step."""
    kinds = [kind for kind, _ in said]
    for rank, (kind, text) in enumerate(said):
        if not word and kind:
            fail(f"nothing is wrong, but rank {rank} raised {kind}: {text}", case, kinds)
        if word and kind != "RuntimeError":
            told = f"raised {kind}: {text}" if kind else "raised nothing"
            fail(f"every rank must raise a RuntimeError about the {word}; rank {rank} {told}", case, kinds)
    for rank, (_, text) in enumerate(said if word else []):
        wanted = [word, f"rank {rank if culprit is None else culprit}", f"step {step}"]
        missing = [part for part in wanted if part not in text]
        if missing:
            wrong = [[w for w in ("loss", "parameters", "bytes", "checkpoint") if w in t] for _, t in said]
            found = [part for part in wanted if part in text]
            fail(f"rank {rank} says {text!r}; it should name {missing}", case, [wrong, len(found)])


def _small_optimizer(rank: int) -> Any:
    """A ZeroOptimizer of 10 numbers after two steps."""
    w = nn.Parameter(torch.arange(10.0))
    optimizer = PIECES.ZeroOptimizer([w], torch.optim.Adam, lr=0.1)
    for _ in range(2):
        w.grad = torch.arange(10.0) - 4 + rank
        optimizer.step()
    return optimizer


def _spoil(state: dict, how: str) -> dict:
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


def _drive_save(rank: int, world_size: int, save_verified: Any, root: str, cases: list[tuple]) -> list[dict]:
    outcomes = []
    for number, (how, where, culprit) in enumerate(cases):

        def load(path, how=how, culprit=culprit, where=where):
            state, manifest = PIECES.load_sharded(path)
            return (_spoil(state, how) if where == "load" and rank == culprit else state), manifest

        def save(state, *arguments, how=how, culprit=culprit, where=where):
            return PIECES.save_sharded(_spoil(state, how) if where == "save" and rank == culprit else state, *arguments)

        _equip(save_verified, load_sharded=load, save_sharded=save)
        optimizer, entries = _small_optimizer(rank), []
        dist.barrier()
        step = 3 if how == "again" else 3 + number
        said = _said(lambda s=step, o=optimizer, e=entries: e.append(save_verified(o, root, s)))
        mine = hashlib.sha256(b"".join(_tensor_bytes(optimizer.state_dict()))).hexdigest()
        entry = entries[0] if entries and isinstance(entries[0], dict) else {}
        plain = {name: value for name, value in entry.items() if isinstance(value, (str, int))}
        outcomes.append(
            {"said": said, "entry": plain, "sha256": mine, "kind": type(entries[0]).__name__ if entries else ""}
        )
    return outcomes


def _tensor_bytes(state: dict) -> list[bytes]:
    return [state[name].numpy().tobytes() for name in sorted(state) if isinstance(state[name], torch.Tensor)]


@check("17-ex3-invariants")
def checkpoints_are_read_back(save_verified, *, rng):
    """What was saved is loaded and compared; a difference on one rank stops all; CheckpointError passes through."""
    cases = [
        ("well", "", 0), ("one bit", "load", 2), ("a value", "load", 1), ("one bit", "save", 1),
        ("a name", "load", 0), ("a dtype", "load", 1), ("again", "", 0),
    ]  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="check-") as root:
        results = run_ranks(_drive_save, 3, (save_verified, root, cases))
        for number, (how, where, culprit) in enumerate(cases):
            rows = [mine[number] for mine in results]
            case = f"{how} differs on rank {culprit} after {where}" if where else how
            if how == "again":
                kinds = [row["said"][0] for row in rows]
                if kinds != ["CheckpointError"] * 3:
                    fail(f"step 3 is there already: expected the CheckpointError, got {kinds}", case, kinds)
            elif where:
                _expect_told(case, [row["said"] for row in rows], "checkpoint", culprit, 3 + number)
            else:
                _expect_told(case, [row["said"] for row in rows], "", None, 3)
                _expect_entry(case, rows, root)


def _expect_entry(case: str, rows: list[dict], root: str) -> None:
    for rank, row in enumerate(rows):
        if set(row["entry"]) != {"step", "path", "sha256"}:
            found = sorted(row["entry"]) or row["kind"]
            fail(f"rank {rank} returned {found}, expected step, path (a string) and sha256", case, ["keys", found])
        if row["entry"]["step"] != 3 or Path(row["entry"]["path"]) != Path(root, "step_00000003"):
            fail(f"step or path of {row['entry']} is wrong", case, ["place", row["entry"]["step"]])
        if row["entry"]["sha256"] != row["sha256"]:
            fail(
                f"rank {rank}: sha256 is not that of its own tensors, in the order of their names", case, ["sha", rank]
            )


# ---- 4 · train ----


def _drive_train(rank: int, world_size: int, train: Any, root: str, options: dict, steps: int, at: int | None) -> dict:
    """Inside a rank: an uninterrupted run and, if there is a checkpoint at step `at`, one that resumes from it."""
    _equip(train)
    whole = train(rank, world_size, steps, root if at else None, at, **options)
    rest = None
    if at and whole.get("checkpoints"):
        rest = train(rank, world_size, steps, root, None, resume_from=whole["checkpoints"][0]["path"], **options)
    return {"whole": whole, "rest": rest}


@check("17-ex4-train")
def training_follows_one_process(train, make_corpus, *, rng):
    """Every number of every step is one process's; what resumes is the run that never stopped."""
    plans = [
        (3, {"micro_batches": 2}, 8, 4),
        (2, {"lr": 2e-3}, 4, None),
        (1, {"micro_batches": 4}, 5, 3),
        (4, {}, 20, 16),
    ]
    for world_size, options, steps, at in plans:
        seed = int(rng.integers(8))  # those for which the margin was measured at every rate
        case = ", ".join([f"N = {world_size}", *(f"{name} = {value}" for name, value in options.items())])
        corpus = _corpus(make_corpus, seed)
        with tempfile.TemporaryDirectory(prefix="check-") as root:
            arguments = (train, root, {"seed": seed, **options}, steps, at)
            results = run_ranks(_drive_train, world_size, arguments)
            whole = [mine["whole"] for mine in results]
            lr = options.get("lr", 3e-3)
            _expect_run(case, whole, _alone(corpus, world_size, steps, seed, lr), steps, exact=lr <= 3e-3)
            if at:
                _expect_checkpoint(case, whole, corpus, seed, at, root)
                _expect_resumed(case, whole, [mine["rest"] for mine in results], at)
            elif any(mine["checkpoints"] for mine in whole):
                fail("without a checkpoint_dir there should be no checkpoint", case, "checkpoint")


def _expect_run(case: str, whole: list[dict], want: dict, steps: int, exact: bool) -> None:
    """All lists of all ranks are plain, long enough, equal where they must be, and right."""
    world_size = len(whole)
    keys = {*LISTS, "parameters", "numel", "checkpoints", "rollbacks"}
    for rank, mine in enumerate(whole):
        if not isinstance(mine, dict) or not keys <= set(mine):
            missing = sorted(keys - set(mine)) if isinstance(mine, dict) else "all"
            fail(f"what rank {rank} returned lacks {missing}", case, ["keys", missing])
        if list(mine["steps"]) != list(range(1, steps + 1)):
            fail(f"rank {rank}'s steps are {mine['steps']}", case, ["steps", list(mine["steps"])])
        for name in LISTS:
            kinds = {type(value) for value in mine[name]}
            if len(mine[name]) != steps or not kinds <= {int, float, str}:
                fail(f"{name} should be {steps} plain values", case, [name, len(mine[name]), len(kinds)])
    for name in ("losses", "grad_norms", "norms", "hashes"):
        for rank, mine in enumerate(whole):
            if mine[name] != whole[0][name]:
                place = next(i for i in range(steps) if mine[name][i] != whole[0][name][i])
                fail(f"{name} of rank {rank} differ from rank 0's at step {place + 1}", case, [name, rank])
    losses = whole[0]["losses"]
    for name, bound, relative in (("losses", LOSS_ERROR, False), ("grad_norms", NORM_ERROR, True)):
        for place, (ours, theirs) in enumerate(zip(whole[0][name], want[name], strict=True)):
            if exact and not abs(ours - theirs) <= bound * (theirs if relative else 1):
                text = f"{name} at step {place + 1}: {ours:.6f}, one process has {theirs:.6f}"
                fail(text, case, [name, list(whole[0][name])])
    for step in range(1, steps):
        if not losses[step - 1] - losses[step] >= MARGIN:
            fail(
                f"from step {step} to {step + 1} the loss goes from {losses[step - 1]} to {losses[step]}", case, losses
            )
    for rank, mine in enumerate(whole):
        if set(mine["state_bytes"]) != {_bytes_of_state(world_size)}:
            fail(f"rank {rank} reports {mine['state_bytes'][0]} bytes of state", case, ["bytes", mine["state_bytes"]])
        if not all(0 <= seconds < 60 for seconds in mine["seconds"]):
            fail(f"rank {rank}'s seconds are {mine['seconds']}", case, "seconds")
        parameters = mine["parameters"]
        if not isinstance(parameters, np.ndarray) or parameters.dtype != np.float32 or mine["numel"] != NUMEL:
            fail("parameters should be a float32 array, numel its length", case, ["parameters", str(type(parameters))])
        if exact:
            _expect_parameters(case, rank, parameters, want["parameters"][-1])
        _expect_described(case, rank, parameters, mine["norms"][-1], mine["hashes"][-1])
        if mine["rollbacks"] != []:
            fail(f"there was nothing to roll back: {mine['rollbacks']}", case, "rollbacks")


def _expect_checkpoint(case: str, whole: list[dict], corpus: np.ndarray, seed: int, at: int, root: str) -> None:
    """One checkpoint, of the state after step `at`, with the digests that were reported."""
    steps = [[entry.get("step") for entry in mine["checkpoints"]] for mine in whole]
    if steps != [[at]] * len(whole) or sorted(p.name for p in Path(root).iterdir()) != [f"step_{at:08d}"]:
        fail(f"expected one checkpoint, of step {at}; the ranks report {steps}", case, ["checkpoints", steps])
    path = Path(whole[0]["checkpoints"][0]["path"])
    manifest = json.loads((path / "manifest.json").read_bytes())
    masters = []
    for rank, mine in enumerate(whole):
        shard = manifest["shards"][rank]
        data = (path / shard["file"]).read_bytes()
        parts = {}
        for name, place in shard["tensors"].items():
            parts[name] = data[place["offset"] : place["offset"] + 4 * place["numel"]]
        digest = hashlib.sha256(b"".join(parts[name] for name in sorted(parts))).hexdigest()
        if mine["checkpoints"][0]["sha256"] != digest:
            fail(f"rank {rank}'s sha256 is not that of its tensors on the disk", case, ["sha256", rank])
        masters.append(np.frombuffer(parts["master"], np.float32))
    saved, after = np.concatenate(masters), _alone(corpus, len(whole), at, seed)["parameters"][at]
    if hashlib.sha256(saved.tobytes()).hexdigest() != whole[0]["hashes"][at - 1]:
        near = [bool(np.max(np.abs(saved - after)) < PARAMETER_ERROR), manifest["values"].get("step")]
        fail(f"the checkpoint of step {at} does not hold the parameters after step {at}", case, near)


def _expect_resumed(case: str, whole: list[dict], rest: list[dict], at: int) -> None:
    for rank, (mine, again) in enumerate(zip(whole, rest, strict=True)):
        if again["steps"] != mine["steps"][at:]:
            fail(f"resumed after step {at}, rank {rank} ran steps {again['steps']}", case, ["resumed", again["steps"]])
        for name in ("losses", "hashes", "grad_norms", "norms", "state_bytes"):
            for step, before, after in zip(again["steps"], mine[name][at:], again[name], strict=True):
                if before != after:
                    evidence = [name, step] if name == "hashes" else [name, step, again["losses"]]
                    fail(f"resumed, {name} at step {step} is {after}, without a stop {before}", case, evidence)
        if again["parameters"].tobytes() != mine["parameters"].tobytes():
            fail("resumed, the parameters at the end are others", case, "parameters")
        if again["checkpoints"] != []:
            fail("with checkpoint_step = None nothing should be saved", case, "saved")


class _Faulty(PIECES.ZeroOptimizer):
    """The reference optimizer with a fault in one of its steps; `kind`, `at` and `culprit` are set on subclasses."""

    kind, at, culprit, made = "", 0, 0, 0

    def step(self) -> None:
        super().step()
        self.made += 1
        mine = self.made == self.at and dist.get_rank() == self.culprit
        with torch.no_grad():
            if self.kind == "loss" and self.made == self.at:
                self.params[-1].mul_(-8)  # the head, on all ranks alike; the masters stay
            if self.kind == "parameters" and mine:
                self.params[3].view(-1)[0] += 1e-3
        if self.kind == "bytes" and mine:
            self.optimizer.state[self.master]["kept"] = torch.zeros(7)


def _faulty(kind: str, at: int, culprit: int) -> type:
    return type("ZeroOptimizer", (_Faulty,), {"kind": kind, "at": at, "culprit": culprit})


def _drive_faults(rank: int, world_size: int, train: Any, root: str, faults: list[tuple]) -> list[tuple]:
    outcomes = []
    for kind, at, culprit, options in faults:

        def load(path, culprit=culprit):
            state, manifest = PIECES.load_sharded(path)
            return (_spoil(state, "one bit") if rank == culprit else state), manifest

        instead = {"load_sharded": load} if kind == "checkpoint" else {"ZeroOptimizer": _faulty(kind, at, culprit)}
        _equip(train, **instead)
        dist.barrier()
        folder = f"{root}/{kind}-{at}"
        outcomes.append(_said(lambda o=options, f=folder: train(rank, world_size, 6, f, o.pop("save", None), **o)))
    return outcomes


@check("17-ex4-train")
def broken_invariants_stop_every_rank(train, *, rng):
    """A fault in a step ends the run in that step, on all ranks, with the invariant that it breaks."""
    faults = [
        ("loss", 4, 0, {}, "loss", None, 5),
        ("parameters", 3, 1, {}, "parameters", 1, 3),
        ("bytes", 2, 2, {}, "bytes", 2, 2),
        ("checkpoint", 2, 1, {"save": 2}, "checkpoint", 1, 2),
        ("loss", 3, 0, {"spike_step": 99}, "", None, 0),
        ("parameters", 6, 2, {"spike_step": 99}, "parameters", 2, 6),
    ]
    with tempfile.TemporaryDirectory(prefix="check-") as root:
        results = run_ranks(_drive_faults, 3, (train, root, [fault[:4] for fault in faults]))
    for number, (kind, at, culprit, options, word, named, step) in enumerate(faults):
        what = {"loss": "the loss rises", "parameters": f"rank {culprit}'s parameters change"}.get(kind, "")
        what = (
            what or {"bytes": f"rank {culprit} keeps a tensor", "checkpoint": f"rank {culprit} reads a wrong bit"}[kind]
        )
        case = f"{what} in step {at}" + (", with a spike_step" if "spike_step" in options else "")
        _expect_told(case, [mine[number] for mine in results], word, named, step)


@check("17-ex4-train")
def train_refuses_what_makes_no_sense(train, *, rng):
    """Steps below 1 and micro-batches that do not divide the batch, on every rank."""
    values = [("steps", 0), ("steps", -1), ("micro_batches", 3), ("micro_batches", 0)]
    _expect_refused(run_ranks(_refuse, 2, (train, values, "train")))


# ---- 5 · verify_resume ----


def _drive_verify(rank: int, world_size: int, verify_resume: Any, train: Any, root: str, cases: list[tuple]) -> dict:
    _equip(train)
    _equip(verify_resume)
    mine = train(rank, world_size, 7, root, 4)
    everyone: list[Any] = [None] * world_size
    dist.all_gather_object(everyone, mine)
    outcomes = []
    for _, changes in cases:
        told = [{**run, "parameters": run["parameters"].copy()} for run in everyone]
        for name in (*LISTS, "checkpoints"):
            for run in told:
                run[name] = [dict(entry) if isinstance(entry, dict) else entry for entry in run[name]]
        for culprit, change in changes:
            _change(rank, world_size, told, culprit, change, root)
        dist.barrier()
        verdicts: list[Any] = []
        said = _said(lambda t=told, v=verdicts: v.append(verify_resume(rank, world_size, t, 7)))
        verdict = verdicts[0] if verdicts and isinstance(verdicts[0], dict) else {}
        outcomes.append((said, {name: verdict.get(name, "missing") for name in ("ok", "first_difference")}))
    return {"outcomes": outcomes, "there": sorted(path.name for path in Path(root).iterdir())}


def _change(rank: int, world_size: int, told: list[dict], culprit: int | None, change: Any, root: str) -> None:
    """Change what is told of rank `culprit`'s run, or of everybody's (None)."""
    if change == "other checkpoint":  # whole, with a right digest, and of other parameters
        state, _ = PIECES.load_sharded(told[rank]["checkpoints"][0]["path"])
        state["master"] += 1e-3
        path = PIECES.save_sharded(state, f"{root}/other", 4)
        mine: Any = hashlib.sha256(b"".join(_tensor_bytes(state))).hexdigest()
        digests: list[Any] = [None] * world_size
        dist.all_gather_object(digests, mine)
        for run, digest in zip(told, digests, strict=True):
            run["checkpoints"] = [{"step": 4, "path": str(path), "sha256": digest}]
        return
    if change == "flipped byte":
        shutil.copytree(told[0]["checkpoints"][0]["path"], f"{root}/of-{rank}/step_00000004")
        dist.barrier()
        if rank == 1:
            file = Path(f"{root}/of-0/step_00000004/shard_00001.bin")
            data = bytearray(file.read_bytes())
            data[99] ^= 4
            file.write_bytes(data)
        for run in told:
            run["checkpoints"][0]["path"] = f"{root}/of-0/step_00000004"
        return
    for run in told if culprit is None else [told[culprit]]:
        name, place, value = change
        if name == "checkpoints":
            run[name] = value
        elif name == "sha256":
            run["checkpoints"][0]["sha256"] = value
        elif name == "parameters":
            run[name].view(np.int32)[place] ^= 1
        elif name == "steps":
            del run["steps"][place]
        else:
            run[name][place] = value(run[name][place])


def _nudge(value: float) -> float:
    return float(np.nextafter(value, 9.0))


def _replace(text: str) -> str:
    return ("0" if text[-1] != "0" else "1").join([text[:-1], ""])


def _more(value: int) -> int:
    return value + 4


@check("17-ex5-verify")
def resume_is_verified_or_the_difference_told(verify_resume, train, *, rng):
    """A faithful resume is verified; whatever differs, on whichever rank, is told there; nobody hangs or raises."""
    cases: list[tuple] = [
        ("an honest run", [], ((), (), ())),
        (
            "a loss of rank 1, a hash of rank 2",
            [(1, ("losses", 5, _nudge)), (2, ("hashes", 6, _replace))],
            ((), ("losses", "step 6"), ("hashes", "step 7")),
        ),
        (
            "rank 0's digest of the checkpoint, one bit of rank 1's parameters, rank 2's hash and later loss",
            [(0, ("sha256", 0, "0" * 64)), (1, ("parameters", 77, None)),
             (2, ("losses", 6, _nudge)), (2, ("hashes", 5, _replace))],
            (("sha256",), ("parameters",), ("hashes", "step 6")),
        ),
        (
            "a gradient norm, a norm, the bytes",
            [(0, ("grad_norms", 4, _nudge)), (1, ("norms", 6, _nudge)), (2, ("state_bytes", 5, _more))],
            (("grad_norms", "step 5"), ("norms", "step 7"), ("state_bytes", "step 6")),
        ),
        ("numbers before the checkpoint", [(0, ("losses", 2, _nudge)), (1, ("hashes", 3, _replace))], ((), (), ())),
        ("another checkpoint in its place", [(None, "other checkpoint")], (("step 5",),) * 3),
        ("steps that do not match on rank 1", [(1, ("steps", 6, None))], ((), ("steps",), ())),
        ("a flipped byte", [(None, "flipped byte")], (("checkpoint",),) * 3),
        ("no checkpoint", [(None, ("checkpoints", 0, []))], (("checkpoint",),) * 3),
    ]  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="check-") as root:
        arguments = (verify_resume, train, root, [case[:2] for case in cases])
        results = run_ranks(_drive_verify, 3, arguments)
    for number, (case, _, wanted) in enumerate(cases):
        rows = [mine["outcomes"][number] for mine in results]
        shown = [[said[0], str(verdict["ok"]), _words(verdict["first_difference"])] for said, verdict in rows]
        for rank, ((kind, text), verdict) in enumerate(rows):
            if kind:
                fail(f"rank {rank} raised {kind}: {text}", case, shown)
            ok, difference = verdict["ok"], verdict["first_difference"]
            if ok is not (not wanted[rank]) or (difference is None) != ok:
                fail(f"rank {rank} says ok: {ok}, first_difference: {difference!r}", case, shown)
            missing = [word for word in wanted[rank] if word not in str(difference)]
            if missing:
                fail(f"rank {rank}'s first_difference should name {missing}, it is {difference!r}", case, shown)
    kept = {"of-0", "of-1", "of-2", "other", "step_00000004"}
    for mine in results:
        if set(mine["there"]) - kept:
            fail(
                f"something was saved: {sorted(set(mine['there']) - kept)}", "files", sorted(set(mine["there"]) - kept)
            )


def _words(text: Any) -> list[str]:
    found = ("sha256", "checkpoint", "losses", "hashes", "grad_norms", " norms", "state_bytes", "parameters", "steps")
    return [word for word in (*found, *(f"step {n}" for n in range(1, 8))) if word in f" {text}"]


# ---- 6 · metrics and cadence ----


def _strict(line: str) -> Any:
    def refuse(constant: str) -> None:
        raise ValueError(constant)

    return json.loads(line, parse_constant=refuse)


@check("17-ex6-watch")
def metrics_are_strict_json(append_metrics, *, rng):
    """One line a row, strict JSON, null for what is not finite; nothing lost, nothing changed."""
    rows = [
        {"step": 1, "loss": float(rng.uniform(1, 5)), "grad_norm": 0.5, "step_seconds": 1e-3},
        {"step": 2, "loss": math.nan, "grad_norm": math.inf, "step_seconds": 2.5e-7},
        {"event": "rollback", "step": 3, "to": 1, "loss": -math.inf},
        {"step": 2, "loss": 3.0, "grad_norm": None, "step_seconds": 0.0},
    ]
    wanted = [{k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()} for row in rows]
    with tempfile.TemporaryDirectory(prefix="check-") as folder:
        for path in (Path(folder, "a.jsonl"), f"{folder}/b.jsonl"):
            for number, row in enumerate(rows, start=1):
                given = dict(row)
                append_metrics(path, given)
                text, case = Path(path).read_text(), f"row {number}"
                if repr(given) != repr(row):
                    fail("the row was changed", case, "changed")
                if not text.endswith("\n") or text.count("\n") != number:
                    shown = [text.endswith("\n"), text.count("\n")]
                    fail(f"after {number} rows the file should hold as many lines", case, shown)
                try:
                    got = [_strict(line) for line in text.splitlines()]
                except ValueError as error:
                    fail(f"{text.splitlines()[-1]!r} is not strict JSON", case, str(error)[:20])
                if got != wanted[:number]:
                    fail(f"{row} was written as {text.splitlines()[-1]!r}", case, [str(one) for one in got])


def _drawn(plot_metrics: Any, path: Path) -> tuple[str, list[dict]]:
    """What kind of thing was drawn, and what there is to see on each of its axes."""
    import ranks

    figure = plot_metrics(path)
    if not isinstance(figure, ranks.Figure) or not str(figure.alt).strip():
        return type(figure).__name__, []
    axes = [
        {
            "lines": [[np.asarray(line.get_xdata(), float), np.asarray(line.get_ydata(), float)] for line in ax.lines],
            "labels": [ax.get_xlabel(), ax.get_ylabel()],
        }
        for ax in figure.axes
    ]
    return "", axes


@check("17-ex6-watch")
def plots_show_each_step_once(plot_metrics, *, rng):
    """Loss and gradient norm over the steps in order; the last line of a step counts; events are no steps."""
    rows = [
        (1, 4.0, 1.0),
        (2, 3.5, None),
        (3, 3.0, 0.5),
        "event",
        (2, 3.25, 2.0),
        (3, None, 0.75),
        (5, 2.5, 0.5),
        (4, 2.75, 1.5),
    ]
    wanted = {1: (4.0, 1.0), 2: (3.25, 2.0), 3: (math.nan, 0.75), 4: (2.75, 1.5), 5: (2.5, 0.5)}
    with tempfile.TemporaryDirectory(prefix="check-") as folder:
        path = Path(folder, "metrics.jsonl")
        names = ("step", "loss", "grad_norm", "step_seconds")
        event = {"event": "rollback", "step": 4, "to": 1, "loss": 99.0}
        lines = [event if row == "event" else dict(zip(names, (*row, 0.1), strict=True)) for row in rows]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        kind, axes = call_inside(_drawn, plot_metrics, path)
    case = "8 lines, 5 steps"
    if kind:
        fail("expected a ranks.Figure with an alt text", case, kind)
    if len(axes) < 2:
        fail(f"expected two axes, found {len(axes)}", case, len(axes))
    for place, (name, ax) in enumerate(zip(("loss", "grad_norm"), axes, strict=False)):
        drawn = ax["lines"]
        want = [np.array(sorted(wanted), float), np.array([wanted[step][place] for step in sorted(wanted)])]
        if not any(
            all(np.array_equal(a, b, equal_nan=True) for a, b in zip(line, want, strict=True)) for line in drawn
        ):
            shown = [[x.tolist(), y.tolist()] for x, y in drawn]
            fail(f"no line of axes {place} shows {name} against the steps 1 to 5", case, shown)
        if "step" not in ax["labels"][0] or not ax["labels"][1].strip():
            fail(f"axes {place} lack a label", case, ax["labels"])


def _drive_cadence(rank: int, world_size: int, cadence_class: Any, cases: list[tuple]) -> list[list[bool]]:
    _equip(cadence_class)
    outcomes = []
    for seconds, times in cases:
        now = [50.0 * rank]
        cadence, said = cadence_class(seconds, clock=lambda now=now: now[0]), []
        for time in times:
            now[0] = (
                time if rank == 0 else 50.0 * rank + {1: 0.0, 2: 10 * time}[rank]
            )  # one stands still, one runs ahead
            said.append(cadence.due())
        outcomes.append([value if isinstance(value, bool) else repr(value) for value in said])
        dist.barrier()
    outcomes.append([cadence_class(0).due(), cadence_class(1000).due()])
    return outcomes


@check("17-ex6-watch")
def one_clock_decides_for_all(Cadence, *, rng):  # noqa: N803
    """Rank 0's clock, from the construction or the last True, on all ranks alike."""
    start = float(rng.integers(1, 4))
    cases = [
        (5.0, [1, 4.5, 5, 6, 9, 10, 14, 15, 27, 28, 31.5, 32, 36], [0, 0, 1, 0, 0, 1, 0, 1, 1, 0, 0, 1, 0]),
        (start, [start / 2, start, start * 1.5, start * 3], [0, 1, 0, 1]),
        (0.0, [0, 0, 1, 1], [1, 1, 1, 1]),
    ]
    for world_size in (3, 1):
        results = run_ranks(_drive_cadence, world_size, (Cadence, [case[:2] for case in cases]))
        for number, (seconds, times, wanted) in enumerate([*cases, (0.0, [], [1, 0])]):
            case = f"N = {world_size}, every {seconds:g} s" if times else f"N = {world_size}, time.monotonic"
            got = [mine[number] for mine in results]
            for rank, said in enumerate(got):
                if said != [bool(value) for value in wanted]:
                    text = (
                        f"at {times} rank {rank} says {said}" if times else f"rank {rank}: 0 and 1000 s are due: {said}"
                    )
                    fail(text, "every 5 s" if number == 0 else case, got)


def _drive_watched(rank: int, world_size: int, train: Any, root: str) -> list[dict]:
    _equip(train)
    path, outcomes = f"{root}/metrics.jsonl", []
    often = train(rank, world_size, 4, f"{root}/often", 2, metrics_path=path, checkpoint_seconds=0)
    again = f"{root}/often/step_00000003"
    plans = [
        (6, None, 5, {"resume_from": again}),
        (6, f"{root}/seldom", 5, {"resume_from": again, "checkpoint_seconds": 1000}),
        (5, f"{root}/clock", None, {"resume_from": again, "checkpoint_seconds": 0}),
        (5, None, None, {"resume_from": again, "checkpoint_seconds": 0}),
        (5, None, None, {"resume_from": again, "spike_step": 4, "spike_factor": math.nan}),
    ]
    for steps, folder, at, options in plans:
        dist.barrier()
        outcomes.append(train(rank, world_size, steps, folder, at, metrics_path=path, **options))
    return [often, *outcomes]


@check("17-ex6-watch")
def training_is_watched_and_saved_by_the_clock(train, *, rng):
    """Rank 0 writes a line a step; with checkpoint_seconds a step is saved when it is due, or asked for."""
    with tempfile.TemporaryDirectory(prefix="check-") as root:
        results = run_ranks(_drive_watched, 2, (train, root))
        saved = [[entry["step"] for entry in run["checkpoints"]] for run in results[0]]
        wanted = [[1, 2, 3, 4], [], [5], [4, 5], [], []]
        names = (
            "every 0 s and step 2",
            "no folder",
            "every 1000 s and step 5",
            "every 0 s",
            "every 0 s, no folder",
            "no folder",
        )
        for case, got, want in zip(names, saved, wanted, strict=True):
            if got != want:
                fail(
                    f"saved after steps {got}, expected {want}", f"{case}, resumed" if case != names[0] else case, saved
                )
        path = Path(root, "metrics.jsonl")
        if not path.is_file():
            fail("metrics_path was not written", "metrics", "no file")
        lines = [_strict_or_fail(line) for line in path.read_text().splitlines()]
    steps = [line.get("step") for line in lines]
    want = [step for run in results[0] for step in run["steps"]]
    if steps != want:
        fail(f"the metrics hold the steps {steps}, expected {want}", "metrics", steps)
    values = {"loss": "losses", "grad_norm": "grad_norms", "step_seconds": "seconds"}
    rows = [{key: run[name][i] for key, name in values.items()} for run in results[0] for i in range(len(run["steps"]))]
    for line, row in zip(lines, rows, strict=True):
        row = {key: value if math.isfinite(value) else None for key, value in row.items()}
        if set(line) != {"step", *values} or any(line[key] != row[key] for key in ("loss", "grad_norm")):
            fail(f"the line {line} does not tell what train returned: {row}", "metrics", [sorted(line), line["step"]])
        if not isinstance(line["step_seconds"], (int, float)):
            fail(f"step_seconds is {line['step_seconds']!r}", "metrics", "seconds")


def _strict_or_fail(line: str) -> dict:
    try:
        return _strict(line)
    except ValueError as error:
        fail(f"{line!r} is not strict JSON", "metrics", str(error)[:20])


# ---- 7 · guard ----


def _drive_guard(rank: int, guard_class: Any, losses: list[float]) -> dict:
    """Inside a rank: a guard over a small optimizer that makes a step after each accepted loss."""
    _equip(guard_class)
    w = nn.Parameter(torch.arange(7.0))
    optimizer = PIECES.ZeroOptimizer([w], torch.optim.Adam, lr=0.1)
    early = _said(lambda: guard_class(optimizer).roll_back())
    guard, said, backs, states = guard_class(optimizer), [], [], {}
    step = 1
    for loss in losses:
        states[step - 1] = _state_bytes(optimizer, w)
        verdict = guard.accepts(step, loss)
        said.append(bool(verdict) if isinstance(verdict, (bool, np.bool_)) else repr(verdict))
        if verdict:
            w.grad = torch.full((7,), float(rank + 1 + step % 3))
            optimizer.step()
            step += 1
        elif len(backs) < 2:
            to = guard.roll_back()
            same = _state_bytes(optimizer, w) == states.get(step - 2) if step > 1 else False
            backs.append([to - (step - 2), same])
            step = int(to) + 1
        else:
            break
    _said(guard.roll_back)  # the third, where two were refused before
    return {"early": early, "said": said, "backs": backs, "fourth": _said(guard.roll_back)}


def _drive_guards(rank: int, world_size: int, guard_class: Any, sequences: list[list[float]]) -> list[dict]:
    return [_drive_guard(rank, guard_class, losses) for losses in sequences]


def _state_bytes(optimizer: Any, w: nn.Parameter) -> tuple:
    state = optimizer.state_dict()
    values = sorted((name, value) for name, value in state.items() if not isinstance(value, torch.Tensor))
    return (*_tensor_bytes(state), str(values), w.detach().numpy().tobytes())


def _verdicts(losses: list[float]) -> list[bool]:
    """What a guard must say of these losses, each refusal taking back the loss before it."""
    accepted: list[float] = []
    said, refused = [], 0
    for loss in losses:
        fine = math.isfinite(loss) and (not accepted or loss <= 1.5 * statistics.median(accepted[-5:]))
        said.append(fine)
        if fine:
            accepted.append(loss)
        elif refused < 2:
            accepted.pop()
            refused += 1
        else:
            break
    return said


@check("17-ex7-guard")
def guard_judges_by_the_median(Guard, *, rng):  # noqa: N803
    """Refused is what is not finite or above 1.5 × the median of the last five; what is restored is the step before."""
    sequences = {
        "a slow fall, then 1.6 times the median": [4.0, 3.9, 3.8, 3.7, 3.6, 6.0, 3.6, math.nan, 3.6, math.inf],
        "a single outlier below the limit": [4.0, 5.9, 2.0, 2.1, 2.0, 2.2, 3.2, 2.0, math.inf, 2.1, 8.0],
        "a long fall": [8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 6.2, 2.0, -math.inf, 2.0, 1.9, 3.5],
        "exactly 1.5 times": [2.0, 2.0, 3.0, 2.0, 3.0000001, 3.0, math.nan, 3.0, 5.0],
        "the second loss": [4.0, 6.5, 4.0, 6.5, 4.0, math.nan],
        "even numbers of losses": [4.0, 2.0, 4.6, 2.0, 1.0, math.nan, 1.0, 99.0],
    }  # fmt: skip
    results = run_ranks(_drive_guards, 2, (Guard, list(sequences.values())))
    for rank, outcomes in enumerate(results):
        everything = [got["said"] for got in outcomes]
        for (case, losses), got in zip(sequences.items(), outcomes, strict=True):
            want = _verdicts(losses)
            if got["said"] != want:
                text = f"of the losses {losses} rank {rank} accepts {got['said']}, expected {want}"
                fail(text, case, everything)
            if any(back != [0, True] for back in got["backs"]):
                off = next(back[0] for back in got["backs"] if back != [0, True])
                text = "the step returned is wrong" if off else "the state restored is not that of before the step"
                fail(f"rank {rank}: {text}", case, [got["backs"]])
            for when in ("early", "fourth"):
                kind, text = got[when]
                if kind != "RuntimeError" or "rollback" not in text:
                    why = "before any loss was accepted" if when == "early" else "the fourth time"
                    said = f"{kind}: {text}" if kind else "nothing"
                    fail(f"roll_back {why}: expected a RuntimeError about the rollback, got {said}", case, [when, kind])


def _drive_spikes(rank: int, world_size: int, train: Any, root: str, spikes: list[tuple], seed: int) -> dict:
    _equip(train)
    plain = train(rank, world_size, 5, f"{root}/plain", 2, seed=seed)
    clean = train(rank, world_size, 5, None, None, seed=seed, guard=True)
    runs = []
    for number, (at, factor) in enumerate(spikes):
        dist.barrier()
        options = {"seed": seed, "guard": True, "spike_step": at, "spike_factor": factor}
        runs.append(train(rank, world_size, 5, f"{root}/{number}", 2, metrics_path=f"{root}/{number}.jsonl", **options))
    return {"plain": plain, "clean": clean, "runs": runs}


@check("17-ex7-guard")
def spikes_are_taken_back(train, *, rng):
    """One rollback, seen at the step after the spike, and then the hashes and losses of the run without it."""
    spikes = [(2, 1000.0), (1, math.inf), (4, math.nan)]
    with tempfile.TemporaryDirectory(prefix="check-") as root:
        results = run_ranks(_drive_spikes, 2, (train, root, spikes, int(rng.integers(12))))
        logs = [Path(root, f"{number}.jsonl") for number in range(len(spikes))]
        lines = [
            [_strict_or_fail(line) for line in log.read_text().splitlines()] if log.is_file() else [] for log in logs
        ]
    for rank, mine in enumerate(results):
        plain, clean = mine["plain"], mine["clean"]
        if clean["rollbacks"] != [] or clean["hashes"] != plain["hashes"] or clean["losses"] != plain["losses"]:
            fail("a guard must leave a clean run alone", "a clean run", [len(clean["rollbacks"]), clean["losses"]])
        for (at, factor), run, log in zip(spikes, mine["runs"], lines, strict=True):
            case = f"a spike of {factor:g} in step {at}"
            _expect_taken_back(case, rank, at, plain, run, log)


def _expect_taken_back(case: str, rank: int, at: int, plain: dict, run: dict, log: list[dict]) -> None:
    told = [[entry.get("step", -99) - at, entry.get("to", -99) - at] for entry in run["rollbacks"]]
    if told != [[1, -1]]:
        steps = [(entry.get("step"), entry.get("to")) for entry in run["rollbacks"]]
        fail(f"expected one rollback, from step {at + 1} to {at - 1}; rank {rank} has {steps}", case, told)
    loss = run["rollbacks"][0].get("loss", 0.0)
    if math.isfinite(loss) and loss < 5:
        fail(f"the rollback's loss is {loss}", case, "loss")
    if run["steps"] != plain["steps"]:
        fail(f"rank {rank}'s steps are {run['steps']}", case, ["steps", [step - at for step in run["steps"]]])
    for name in ("losses", "hashes", "grad_norms", "norms", "state_bytes"):
        for step, ours, theirs in zip(run["steps"], run[name], plain[name], strict=True):
            if ours != theirs:
                evidence = [name, step - at]
                fail(f"{name} at step {step} is {ours}, without the spike {theirs}", case, evidence)
    saved = [[(entry["step"], entry["sha256"]) for entry in some["checkpoints"]] for some in (run, plain)]
    if saved[0] != saved[1]:
        fail("the checkpoint is not that of the run without a spike", case, ["saved", [step for step, _ in saved[0]]])
    events = [line for line in log if "event" in line]
    finite = loss if math.isfinite(loss) else None
    if events != [{"event": "rollback", "step": at + 1, "to": at - 1, "loss": finite}]:
        fail(f"the metrics tell of the rollback: {events}", case, ["events", len(events)])
    steps = [line["step"] for line in log if "event" not in line]
    if steps != [*range(1, at + 1), *range(at, 6)]:
        fail(f"the metrics hold the steps {steps}", case, ["logged", [step - at for step in steps]])


def _drive_hopeless(rank: int, world_size: int, train: Any) -> tuple[str, str]:
    names = _equip(train)
    build, forwards = names["build_model"], []

    def broken(seed):
        model = build(seed)
        model.register_forward_hook(
            lambda _, inputs, y: (forwards.append(1), y * (math.nan if len(forwards) > 4 else 1))[1]
        )
        return model

    names["build_model"] = broken
    return _said(lambda: train(rank, world_size, 8, None, None, guard=True))


@check("17-ex7-guard")
def a_hopeless_run_is_given_up(train, *, rng):
    """A loss that stays nan is rolled back three times and then ends the run, on every rank."""
    results = run_ranks(_drive_hopeless, 2, (train,))
    for rank, (kind, text) in enumerate(results):
        if kind != "RuntimeError" or "rollback" not in text:
            said = f"{kind}: {text}" if kind else "nothing"
            fail(
                f"rank {rank}: expected a RuntimeError about the rollbacks, got {said}",
                "the loss stays nan",
                list(results),
            )


# ---- 8 · tensor parallel ----


def _drive_split(rank: int, world_size: int, train_tensor_parallel: Any, steps: int, seed: int) -> Any:
    _equip(train_tensor_parallel)
    if world_size == 3:
        return _said(lambda: train_tensor_parallel(rank, world_size, steps, seed, 3e-3))
    return train_tensor_parallel(rank, world_size, steps, seed, 3e-3)


@check("17-ex8-tensor")
def split_attention_trains_alike(train_tensor_parallel, make_corpus, *, rng):
    """The losses are one process's on the same batches; two all-reduces a block and step."""
    seed, steps = int(rng.integers(100)), 5
    want = _alone(_corpus(make_corpus, seed), 1, steps, seed)["losses"]
    for world_size in (2, 4, 1):
        case = f"N = {world_size}"
        results = run_ranks(_drive_split, world_size, (train_tensor_parallel, steps, seed))
        for rank, losses in enumerate(results):
            if not isinstance(losses, list) or [type(loss) for loss in losses] != [float] * steps:
                fail(f"rank {rank} returned no list of {steps} floats", case, str(type(losses)))
            for step, (ours, theirs) in enumerate(zip(losses, want, strict=True), start=1):
                if not abs(ours - theirs) <= LOSS_ERROR:
                    fail(
                        f"rank {rank}, step {step}: the loss is {ours:.6f}, one process has {theirs:.6f}", case, losses
                    )
            sent = [(m.call, m.bytes) for m in results.ledger.of(rank)]
            if world_size > 1 and sent != [("all_reduce", 4 * 4 * 16 * 32)] * (4 * steps):
                kinds = sorted({call for call, _ in sent})
                text = (
                    f"rank {rank} sent {len(sent)} messages in {steps} steps: {kinds}; expected {4 * steps} all-reduces"
                )
                fail(text, case, [len(sent), kinds])
    for rank, (kind, text) in enumerate(run_ranks(_drive_split, 3, (train_tensor_parallel, 2, seed))):
        if kind != "ValueError" or "heads" not in text:
            fail(f"3 ranks cannot share 4 heads: rank {rank} should raise a ValueError about heads", "N = 3", kind)
