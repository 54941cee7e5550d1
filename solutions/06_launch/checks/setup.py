"""Lesson 06, exercise 2: join the group that the environment describes."""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from autograder.checking.check import check
from autograder.checking.expect import CheckFailed, expect_equal, fail
from autograder.checking.stage import run_ranks
from autograder.checks.launch.common import LAUNCHER, forget_launcher, meet_all, put_in_place

_init_process_group = dist.init_process_group


def name_of_attempt(store: dist.Store, rank: int, world_size: int) -> str:
    """A name for each attempt that is played here; the checker's own `fresh_name`."""
    return f"attempt {os.environ.get('CHECK_ATTEMPT')}"


def _in_a_running_group(rank: int, world_size: int, setup_ddp: Callable) -> dict:
    """A group is up and the environment is none: nothing may happen."""
    forget_launcher()
    before = dist.group.WORLD
    setup_ddp(rank, world_size)
    setup_ddp(0, 1)
    total = torch.ones(1)
    same = dist.group.WORLD is before
    dist.all_reduce(total)
    return {"same": same, "total": total.item()}


def _scenes(rank: int, world_size: int, setup_ddp: Callable, scenes: list[dict]) -> list[dict]:
    """Start from an environment, look, end the group; once a scene."""
    dist.destroy_process_group()
    put_in_place(setup_ddp, fresh_name=name_of_attempt)
    given = inspect.unwrap(setup_ddp).__globals__.get("check_environment")
    seen = []
    for scene in scenes:
        asked = _watch_backend(setup_ddp, given, scene.get("backend"))
        forget_launcher()
        with _busy_port() if scene.get("busy") else contextlib.nullcontext(scene.get("port") or _free_port()) as port:
            plain = {"RANK": rank, "WORLD_SIZE": world_size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            plain |= scene.get("environment", {})
            os.environ.update({name: str(value) for name, value in plain.items() if value is not None})
            seen.append(_look(setup_ddp, rank, world_size) | asked)
    return seen


def _watch_backend(setup_ddp: Callable, given: Callable | None, instead: str | None) -> dict:
    """How often check_environment is called from now on, and the backend that init_process_group is called with.

    instead: what check_environment says, whatever it finds; the group is one of gloo all the same.
    """
    asked: dict[str, Any] = {"checked": 0, "asked for": None}

    def check_environment(rank: int, world_size: int) -> str:
        assert given
        asked["checked"] += 1
        found = given(rank, world_size)
        return instead or found

    def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
        asked["asked for"] = backend and str(backend)
        _init_process_group("gloo", *args, **kwargs)

    put_in_place(setup_ddp, check_environment=check_environment)
    dist.init_process_group = init_process_group if instead else _init_process_group
    return asked


def _look(setup_ddp: Callable, rank: int, world_size: int) -> dict:
    """What one call of setup_ddp did, as plain data."""
    before, look = dict(os.environ), {"error": None}
    try:
        look["returned"] = type(setup_ddp(rank, world_size)).__name__
    except NotImplementedError:
        raise
    except (Exception, SystemExit) as error:
        if world_size > 1:  # the others may wait for this one: fail as a whole, with a text that is always the same
            text = str(error).replace(os.environ.get("MASTER_PORT", "?"), "…")
            raise RuntimeError(f"setup_ddp raised {type(error).__name__}: {text}") from None
        kinds = [kind.__name__ for kind in type(error).__mro__]
        look["error"] = {"kinds": kinds, "text": str(error), "lines": str(error).count("\n") + 1}
    look["changed"] = _changed(before)
    look["up"] = dist.is_initialized()
    if look["up"]:
        look["ranks"], look["backend"] = (dist.get_rank(), dist.get_world_size()), dist.get_backend()
        options = dist.group.WORLD._get_backend(torch.device("cpu")).options
        look["timeout"] = options._timeout.total_seconds()
        look |= _store_of_the_group()
        total = torch.ones(1)
        dist.all_reduce(total)
        look["total"] = total.item()
        if world_size == 1:  # more ranks play one scene only, and may leave the group as it is
            dist.destroy_process_group()
    return look


def _changed(before: dict[str, str]) -> list[str]:
    """What in the environment is not as it was; torch sets its own settings when it loads more of itself."""
    changed = {name for name in {*before, *os.environ} if before.get(name) != os.environ.get(name)}
    return sorted(name for name in changed if name in LAUNCHER or not name.startswith("TORCH"))


def _store_of_the_group() -> dict:
    """Where the group's store is, how long it waits, and the keys of the group that do not hold the attempt's name."""
    store = dist.distributed_c10d._get_default_store()
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    found = {"host": getattr(store, "host", ""), "patience": store.timeout.total_seconds()}
    with contextlib.suppress(RuntimeError, NotImplementedError):  # a kind of store that cannot list its keys
        found["bare"] = sorted(key for key in store.list_keys() if "//" in key and "attempt" not in key)
    return found


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


@contextlib.contextmanager
def _busy_port() -> Iterator[int]:
    """A port at which another program listens, on every address of this machine."""
    with socket.create_server(("", 0)) as taken:
        yield taken.getsockname()[1]


@check("06-ex2-setup-ddp", points=1)
def setup_starts_what_the_environment_describes(setup_ddp, *, rng):
    """A running group is left alone; else a group with the right ranks, a short timeout, the same environment."""
    for rank, seen in enumerate(run_ranks(_in_a_running_group, 2, (setup_ddp,))):
        if not seen["same"] or seen["total"] != 2:
            fail(f"on rank {rank} a group was up, and setup_ddp did not leave it alone", "a group is up", seen)
    for world_size in (1, 2):
        # Two ranks are each on a node of its own: both have the local rank 0. One rank is started by hand.
        environment: dict = {"DDP_BACKEND": "gloo"}
        environment |= {"LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1} if world_size > 1 else {}
        scene = {"environment": environment} | ({"port": _free_port()} if world_size > 1 else {})
        case = f"started by hand, {world_size} rank{'s' * (world_size > 1)}"
        try:
            results = run_ranks(_scenes, world_size, (setup_ddp, [scene]))
        except CheckFailed as failure:  # whichever of the ranks it was
            raise CheckFailed(failure.message, case, "did not start", (), failure.kind, failure.error) from failure
        for rank, (seen,) in enumerate(results):
            if seen["changed"]:
                text = f"setup_ddp changed {', '.join(seen['changed'])} in the environment, which the launcher has set"
                fail(text, case, seen["changed"])
            if seen["error"]:
                _fail_for_error(seen, rank, case)
            if not seen["up"]:
                fail(f"rank {rank} has no process group after setup_ddp", case, "no group")
            if seen["ranks"] != (rank, world_size) or seen["total"] != world_size:
                told = f"rank {seen['ranks'][0]} of {seen['ranks'][1]}"
                fail(f"rank {rank} of {world_size} became {told}", case, seen["ranks"])
            if not 0 < seen["timeout"] <= 60:
                text = f"the group's timeout is {seen['timeout']:g} s, at most 60 s were asked for"
                fail(text, case, f"timeout {seen['timeout']:g}")
            if not 0 < seen["patience"] <= 60:
                text = f"the store's timeout is {seen['patience']:g} s, at most 60 s were asked for"
                fail(text, case, f"patience {seen['patience']:g}")
            if seen["host"] not in ("127.0.0.1", ""):
                fail(f"the store is at {seen['host']}, MASTER_ADDR is 127.0.0.1", case, seen["host"])


def _fail_for_error(seen: dict, rank: int, case: str) -> None:
    error = seen["error"]
    text = error["text"].splitlines()[0] if error["text"] else ""
    fail(f"setup_ddp raised {error['kinds'][0]} on rank {rank}: {text}", case, error["kinds"][0], error["kinds"][0])


@check("06-ex2-setup-ddp", points=0.5)
def setup_refuses_what_cannot_work(setup_ddp, *, rng):
    """Each start that cannot work is an error of one line that names what is wrong; the backend is the given one."""
    other = int(rng.integers(2, 9))
    wanted = [
        ("MASTER_ADDR is not set", {"MASTER_ADDR": None}, "ValueError", "MASTER_ADDR"),
        ("MASTER_PORT is not set", {"MASTER_PORT": None}, "ValueError", "MASTER_PORT"),
        ("WORLD_SIZE is not set", {"WORLD_SIZE": None}, "ValueError", "WORLD_SIZE"),
        ("RANK is not set", {"RANK": None}, "ValueError", "RANK"),
        ("everything is right", {}, "", ""),
        ("WORLD_SIZE is another number", {"WORLD_SIZE": other}, "ValueError", "WORLD_SIZE"),
        ("RANK is another number", {"RANK": other - 1}, "ValueError", "RANK"),
        ("NCCL without a GPU", {"DDP_BACKEND": "nccl", "CUDA_VISIBLE_DEVICES": ""}, "ValueError", "nccl"),
        ("the port is in use", {}, "RuntimeError", "MASTER_PORT"),
    ]
    scenes = [
        {"environment": {"DDP_BACKEND": "gloo", **environment}, "busy": name == "the port is in use"}
        for name, environment, *_ in wanted
    ]
    for seen, (case, _, kind, mentions) in zip(run_ranks(_scenes, 1, (setup_ddp, scenes))[0], wanted, strict=True):
        error = seen["error"]
        if not kind and error:
            _fail_for_error(seen, 0, case)
        if not kind:
            expect_equal(case, seen.get("ranks"), (0, 1), what="(rank, world size) of the group")
            if seen["returned"] != "NoneType":
                fail("setup_ddp returns something, nothing was asked for", case, ["returned", seen["returned"]])
            continue
        if error is None:
            fail(f"setup_ddp raised no {kind}", case, "nothing raised")
        if kind not in error["kinds"]:
            got = error["kinds"][0]
            fail(f"setup_ddp should raise {kind}, it raised {got}", case, got, got)
        if not re.search(mentions, error["text"], re.IGNORECASE):
            told = error["text"].splitlines()[0] if error["text"] else ""
            fail(f"the {kind} should name {mentions}, but it says {told!r}", case, "not named")
        if error["lines"] > 1:
            text = f"the error's text has {error['lines']} lines; write one line that says what is wrong"
            fail(text, case, "many lines")
        if seen["up"]:
            fail("a group was started all the same", case, "started")
    case, by_hand = "2 ranks, started by hand", {"DDP_BACKEND": "gloo"}
    results = run_ranks(_scenes, 2, (setup_ddp, [{"environment": by_hand, "port": _free_port()}]))
    checked = [bool(seen["checked"]) for [seen] in results]
    if not all(checked):
        fail(f"check_environment was not called on rank {checked.index(False)}", case, ["checked", checked])
    case = "1 rank, check_environment returns 'nccl'"
    [seen] = run_ranks(_scenes, 1, (setup_ddp, [{"environment": by_hand, "backend": "nccl"}]))[0]
    if seen["error"]:
        _fail_for_error(seen, 0, case)
    expect_equal(case, seen["asked for"], "nccl", what="the backend given to init_process_group")


def _attempts(rank: int, world_size: int, setup_ddp: Callable) -> list[dict]:
    """Two attempts under a launcher whose store, here rank 0's, outlives them: what is in the store after each."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if rank == 0 else None
    told = [store and store.port]
    dist.broadcast_object_list(told)
    [port] = told
    dist.destroy_process_group()
    agent = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    found = []
    put_in_place(setup_ddp, fresh_name=name_of_attempt)
    for attempt in range(2):
        forget_launcher()
        os.environ.update(
            CHECK_ATTEMPT=str(attempt),
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(world_size),
            LOCAL_WORLD_SIZE=str(world_size),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
            DDP_BACKEND="gloo",
            TORCHELASTIC_RUN_ID="0123",
            TORCHELASTIC_RESTART_COUNT=str(rank),  # each node counts its own
            TORCHELASTIC_USE_AGENT_STORE="True",
        )
        before = dict(os.environ)
        setup_ddp(rank, world_size)
        changed = _changed(before)
        total = torch.ones(1)
        dist.all_reduce(total)
        meet_all(agent, f"joined {attempt}", world_size)
        keys = {key: agent.get(key).hex() for key in sorted(agent.list_keys()) if "//" in key}
        found.append({"total": total.item(), "keys": keys, "changed": changed})
        meet_all(agent, f"looked {attempt}", world_size)
        dist.destroy_process_group()
    agent.add("gone", 1)
    while rank == 0 and agent.add("gone", 0) < world_size:  # the store ends with this process
        time.sleep(0.002)
    return found


@check("06-ex2-setup-ddp", points=0.5)
def setup_gives_each_attempt_keys_of_its_own(setup_ddp, *, rng):
    """Under torchrun the ranks meet at the agent's store. No attempt, not even one by hand, uses the keys of another.

    One rank comes first. It connects to no other rank, so that what it finds in the store cannot make it fail.
    """
    for world_size in (1, 2, 3):
        first, second = run_ranks(_attempts, world_size, (setup_ddp,))[0]
        case = f"under torchrun, {world_size} rank{'s' * (world_size > 1)}"
        if first["total"] != world_size or second["total"] != world_size:
            totals = (first["total"], second["total"])
            fail(f"{world_size} ranks that each bring 1 add up to {totals}", case, str(totals))
        if not first["keys"]:
            text = "the ranks have not met at the store at MASTER_ADDR and MASTER_PORT, which the agent has opened"
            fail(text, case, "elsewhere")
        if first["changed"]:
            text = f"setup_ddp changed {', '.join(first['changed'])} in the environment, which the launcher has set"
            fail(text, case, ["changed", first["changed"]])
        fresh = set(second["keys"]) - set(first["keys"])
        touched = [key for key, value in first["keys"].items() if second["keys"].get(key) != value]
        if touched or not fresh:
            kept = sorted(first["keys"])
            text = f"the second attempt has used keys of the first, such as {kept[0]}: after a crash it would read"
            fail(f"{text} what dead ranks have left there", case, kept)
    # torchrun says so, too, where it was told to let rank 0 open the store.
    environment = {"DDP_BACKEND": "gloo", "TORCHELASTIC_USE_AGENT_STORE": "False"}
    environment |= {"TORCHELASTIC_RUN_ID": "0123", "TORCHELASTIC_RESTART_COUNT": "0"}
    case = "1 rank, TORCHELASTIC_USE_AGENT_STORE is False"
    try:
        [seen] = run_ranks(_scenes, 1, (setup_ddp, [{"environment": environment}]))[0]
    except CheckFailed:  # it still waits
        seen = {"error": "hang"}
    if seen["error"]:
        fail("no group was started: no agent has opened a store, so rank 0 has to", case, "no store")
    if seen.get("bare"):
        text = f"keys of the group do not begin with a fresh_name, such as {seen['bare'][0]}"
        fail(text, case, "bare keys")
