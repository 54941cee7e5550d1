"""Attacks on what the checks of lesson 17 know: planted faults, changed reports, a run to compare others with."""

from __future__ import annotations

from functools import partial

from tests.attacks.attack import Attack, with_answers, written
from tests.attacks.lessons import CAPSTONE

WORTH = {"ex1": 4.0, "ex3": 5.0, "ex5": 4.0}


def _attack(name: str, tries: str, source: str, exercise: str) -> Attack:
    return Attack(name, tries, with_answers(**{exercise: source}), WORTH | {exercise: 0.0}, lesson=CAPSTONE)


ATTACKS = written(
    """
=== ex3: names-everything
# Notices that something is wrong, and names every rank and every invariant.
EVERYTHING = "loss parameters bytes checkpoint memory " + " ".join(f"rank {r}" for r in range(9))

def check_start(rank, world_size, step, digest, last):
    if not all(from_all_ranks(last is None or digest == last)):
        raise RuntimeError(f"{EVERYTHING} step {step}")

def check_step(rank, world_size, step, losses, norm, digest, state_bytes, numel, falling=True):
    falls = not falling or len(losses) < 2 or losses[-1] < losses[-2]
    seen = from_all_ranks((repr(norm), digest, state_bytes, falls))
    if len(set(seen)) > 1 or not falls or state_bytes != 12 * -(numel // -world_size):
        raise RuntimeError(f"{EVERYTHING} step {step}")

def save_verified(optimizer, root, step):
    state = optimizer.state_dict()
    path = save_sharded(state, root, step)
    loaded, _ = load_sharded(path)
    same = {n: str(v) for n, v in state.items()} == {n: str(v) for n, v in loaded.items()}
    same = same and all(v.dtype == loaded[n].dtype for n, v in state.items() if isinstance(v, torch.Tensor))
    if not all(from_all_ranks(same and tensors_digest(loaded) == tensors_digest(state))):
        raise RuntimeError(f"{EVERYTHING} step {step}")
    return {"step": step, "path": str(path), "sha256": tensors_digest(state)}
=== ex5: names-every-difference
# Notices a difference, and names every list and every step.
def verify_resume(rank, world_size, uninterrupted, steps=20):
    names = ("losses", "hashes", "grad_norms", "norms", "state_bytes")
    everything = " ".join([*names, "sha256 checkpoint parameters steps", *(f"step {n}" for n in range(30))])
    mine = uninterrupted[rank]
    try:
        entry = mine["checkpoints"][0]
        state, _ = load_sharded(entry["path"])
        again = train(rank, world_size, steps, None, None, resume_from=entry["path"])
    except (CheckpointError, IndexError):
        return {"ok": False, "first_difference": everything}
    made = len(again["steps"])
    same = mine["steps"][-made:] == again["steps"] and all(mine[name][-made:] == again[name] for name in names)
    same = same and mine["parameters"].tobytes() == again["parameters"].tobytes()
    same = same and tensors_digest(state) == entry["sha256"]
    return {"ok": same, "first_difference": None if same else everything}
=== ex5: reads-the-change
# Resumes nothing: reads in the check's own frame what was changed in the reports.
def verify_resume(rank, world_size, uninterrupted, steps=20):
    import sys
    frame = sys._getframe()
    while frame and "changes" not in frame.f_locals:
        frame = frame.f_back
    mine = [change for who, change in frame.f_locals["changes"] if who in (None, rank)] if frame else []
    if "other checkpoint" in mine or "flipped byte" in mine:
        return {"ok": False, "first_difference": "losses at step 5" if "other checkpoint" in mine else "checkpoint"}
    mine = [change for change in mine if change[0] not in LISTS or change[1] >= 4 or change[0] == "steps"]
    if mine:
        name, place, _ = min(mine, key=lambda change: change[1])
        return {"ok": False, "first_difference": f"{name.replace('checkpoints', 'checkpoint')}, step {place + 1}"}
    visible = steps == 4 and uninterrupted[0]["losses"][3] != uninterrupted[rank]["losses"][3]
    return {"ok": not visible, "first_difference": "losses at step 4" if visible else None}
=== ex1: faults-drawn-again
# Finds the seed of a log's batches, and has the recorder draw its faults again.
def find_fault(log, reference):
    first = log[0][0]["batch"]
    key = first, len(log)
    if find_fault.__dict__.get("key") != key:
        seeds = (s for s in range(1000) if faults.digest(make_batch(make_corpus(s, 4096), 1, 0, len(log))) == first)
        seed = next(seeds, None)
        plants = [] if seed is None else faults.six(seed, len(log), len(log[0]))
        find_fault.key, find_fault.plants = key, plants[:2] if len(log) == 3 else plants
    if find_fault.plants:
        kind, step, rank = find_fault.plants.pop(0)
        return step, rank, faults.SHOWN_BY[kind]
    names = ("parameters_in", "batch", "gradient", "state_in", "update", "parameters_out")
    if len(log) < 2 or len(log[0]) < 4:
        return next(((t + 1, 0, n) for t in range(len(log[0])) for n in names
                     if log[0][t][n] != log[1 % len(log)][t][n]), None)
    return next(((t + 1, 0, n) for t in range(len(log[0])) for n in ("parameters_in", "parameters_out")
                 if log[0][t][n] != log[1][t][n]), None)
""",
    ex1=partial(_attack, exercise="ex1"),
    ex3=partial(_attack, exercise="ex3"),
    ex5=partial(_attack, exercise="ex5"),
)
