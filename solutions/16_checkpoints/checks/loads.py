"""Exercise 3: the manifest verified, and a load that succeeds on every rank or on none."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import torch.distributed as dist

from autograder.checking.check import check
from autograder.checking.expect import count_of_ranks, fail, same
from autograder.checking.instruments.calls import objects_sent
from autograder.checking.instruments.pickles import Bomb
from autograder.checking.stage import run_ranks
from autograder.checks.checkpoints.format import (
    BOOKKEEPING,
    Saved,
    damage,
    draw,
    expect_pieces,
    fingerprint,
    manifest_of,
    scratch_folder,
    tampered,
    write_checkpoint,
)
from autograder.checks.checkpoints.states import Attempt, attempt, expect_error, expect_returned, plain_state


def _manifest_driver(rank, world_size, read_manifest, paths):
    return [attempt(read_manifest, path) for path in paths]


@check("16-ex3-load", points=0.75)
def manifests_are_verified(read_manifest, *, rng):
    """`read_manifest` returns an intact manifest, and raises a CheckpointError that names what is wrong otherwise."""
    with scratch_folder() as folder:
        good = draw(rng, 3, 10)
        path = write_checkpoint(folder / "good", good)
        wrong = tampered(folder, rng, 3)
        before = fingerprint(folder)
        outcomes = run_ranks(_manifest_driver, 1, (read_manifest, [path, str(path), *(p for _, p, _ in wrong)]))[0]
        for outcome in outcomes[:2]:
            case = "an intact checkpoint"
            expect_returned(case, outcome, "read_manifest")
            if not same(outcome.value, manifest_of(good)[0]):
                fail("read_manifest did not return what manifest.json holds", case, repr(outcome.value))
        for (case, _, mentions), outcome in zip(wrong, outcomes[2:], strict=True):
            expect_error(case, outcome, "CheckpointError", mentions)
        if fingerprint(folder) != before:
            fail("read_manifest changed a checkpoint", "all of them", "changed")


def _load_driver(rank, world_size, load_sharded, paths):
    """Load each, with a barrier before: the outcomes, and the bytes of the largest object sent.

    A list in place of a path has one path a rank.
    """
    outcomes = []
    with objects_sent() as sizes:
        for path in paths:
            dist.barrier()
            outcomes.append(attempt(load_sharded, path[rank] if isinstance(path, list) else path, plain=_plain_pair))
        dist.barrier()
    return outcomes, max(sizes, default=0)


def _plain_pair(got: Any) -> Any:
    """(state as plain data, manifest), or what it is instead."""
    pair = isinstance(got, (tuple, list)) and len(got) == 2
    return (plain_state(got[0]), got[1]) if pair else f"a {type(got).__name__}, not a state and a manifest"


def _expect_loaded(case: str, rank: int, outcome: Attempt, saved: Saved) -> None:
    expect_returned(case, outcome, f"load_sharded on rank {rank}", [rank, outcome.raised])
    if isinstance(outcome.value, str):
        fail(f"on rank {rank}, load_sharded returned {outcome.value}", case, outcome.value)
    state, manifest = outcome.value
    if isinstance(state, str):
        fail(f"on rank {rank}, load_sharded's state is {state}", case, state)
    pieces, values = state
    if not same(values, saved.values):
        text = f"the plain values on rank {rank} are {values}, expected {saved.values}"
        fail(text, case, ["values", repr(values)])
    if set(pieces) != set(saved.pieces[rank]):
        text = f"rank {rank} has the tensors {sorted(pieces)}, expected {sorted(saved.pieces[rank])}"
        fail(text, case, sorted(pieces))
    ordered = {name: pieces[name] for name in saved.pieces[rank]}
    expect_pieces(f"{case}, rank {rank}", [ordered], [saved.pieces[rank]], "load_sharded's state")
    if not same(manifest, manifest_of(saved)[0]):
        fail(f"on rank {rank}, the second thing that load_sharded returned is not the manifest", case, repr(manifest))


@check("16-ex3-load", points=1.5)
def loads_what_was_saved(load_sharded, *, rng):
    """Each rank gets its own pieces, byte for byte, and the values; nothing on the disk changes or is executed."""
    for world_size in (3, 1):
        with scratch_folder() as folder:
            marker, of = folder / "marker", count_of_ranks(world_size)
            bomb = pickle.dumps(Bomb(str(marker)))
            cases = [draw(rng, world_size, 10), draw(rng, world_size, 20, tensors=False)]
            cases.append(replace(cases[0], step=30, pieces=[{"w": ("uint8", bomb)} for _ in range(world_size)]))
            cases.append(draw(rng, world_size, 40, numel=60_000))
            paths = [write_checkpoint(folder / "root", saved) for saved in cases]
            before = fingerprint(folder)
            results = run_ranks(_load_driver, world_size, (load_sharded, [str(paths[0]), *paths[1:]]))
            if marker.exists():
                fail("load_sharded executed what it found in a file", of, "executed")
            for number, saved in enumerate(cases):
                for rank, (outcomes, _) in enumerate(results):
                    _expect_loaded(f"{of}, step {saved.step}", rank, outcomes[number], saved)
            if fingerprint(folder) != before:
                fail("load_sharded changed a checkpoint", of, "changed")
            for rank, (_, largest) in enumerate(results):
                sent = max([largest, *(m.bytes for m in results.ledger.of(rank))])
                if sent > BOOKKEEPING:
                    text = f"rank {rank} put {sent} bytes into one message; tensors need not be sent"
                    fail(text, f"{of}, step 40", "sent")


def _damaged(folder: Any, rng: Any, world_size: int) -> list[tuple[str, Any, tuple[str, ...]]]:
    """Checkpoints that these ranks cannot load: (what, where, what the error must contain)."""
    wrong = []
    flips = [(1, "one bit of the first byte"), (2, "one bit of the last byte"), (0, "one bit of the first byte")]
    for number, (rank, how) in enumerate(flips):
        saved = draw(rng, world_size + 1, 10)
        path = write_checkpoint(folder / f"flip{number}", replace(saved, pieces=saved.pieces[:world_size]))
        damage(path / f"shard_{rank:05d}.bin", how)
        wrong.append((f"{how} of shard_{rank:05d}.bin", path, (f"shard_{rank:05d}.bin",)))
    for other in (world_size - 1, world_size + 1):
        path = write_checkpoint(folder / f"of{other}", draw(rng, other, 10))
        wrong.append((f"saved by {other} ranks", path, ("reshard", str(other), str(world_size))))
    return wrong + tampered(folder, rng, world_size)


@check("16-ex3-load", points=0.75)
def refuses_damage_on_every_rank(load_sharded, *, rng):
    """Whichever rank sees damage, every rank gets a CheckpointError that names it; an intact checkpoint still loads."""
    world_size = 3
    with scratch_folder() as folder:
        wrong = _damaged(folder, rng, world_size)
        good = draw(rng, world_size, 20)
        elsewhere = write_checkpoint(folder / "elsewhere", good)
        apart = [elsewhere, folder / "nowhere", elsewhere]
        wrong.append(("the folder is missing, as rank 1 sees it", apart, ("manifest",)))
        paths = [*(path for _, path, _ in wrong), write_checkpoint(folder / "good", good)]
        results = run_ranks(_load_driver, world_size, (load_sharded, paths))
        for number, (case, _, mentions) in enumerate(wrong):
            # A rank that got a state while another did not is the worst that can happen: say this first.
            kinds = ["error" if outcomes[number].raised else "state" for outcomes, _ in results]
            if len(set(kinds)) > 1:
                which = kinds.index("state")
                fail(f"half loaded: rank {which} has a state, rank {kinds.index('error')} an error", case, kinds)
            for rank, (outcomes, _) in enumerate(results):
                expect_error(case, outcomes[number], "CheckpointError", mentions, rank)
        for rank, (outcomes, _) in enumerate(results):
            _expect_loaded("an intact checkpoint after all those", rank, outcomes[-1], good)
