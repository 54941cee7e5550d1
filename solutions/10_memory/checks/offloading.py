"""Exercise 5: what a graph would keep, moved to a host whose memory is watched."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from autograder.checks import inputs
from autograder.checks.check import check
from autograder.checks.expect import expect_equal, fail
from autograder.checks.instruments.memory import LiveBytes
from autograder.checks.stage import run_ranks

from .layers import bits

OFFLOAD = "10-ex5-offload"


class _Parked:
    """A tensor on a host; its memory goes when nobody holds this object. The notebook's hosts have another class."""

    def __init__(self, host: _Host, tensor: torch.Tensor):
        self.host, self.tensor = host, tensor.detach().clone()
        self.bytes = self.tensor.untyped_storage().nbytes()
        host.alive += self.bytes

    def __del__(self) -> None:
        self.host.alive -= self.bytes


class _Host:
    """Another memory, with a list of what was put there."""

    def __init__(self) -> None:
        self.alive, self.sizes, self.gets = 0, [], 0

    def put(self, tensor: torch.Tensor) -> _Parked:
        self.sizes.append(tensor.numel() * tensor.element_size())
        return _Parked(self, tensor)

    def get(self, parked: _Parked) -> torch.Tensor:
        self.gets += 1
        return parked.tensor.clone()

    def nbytes(self) -> int:
        return self.alive


def _half(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Saves two views of one storage, and drops what it computed first: its memory is used again."""
    x.exp()
    both = (x @ w).exp()
    left, right = both.chunk(2, dim=1)
    return (left * right).sin() @ w[: left.shape[1]]


#: What runs inside offload: x (rows, 8), w (8, 8) → a tensor.
_FUNCTIONS: dict[str, Callable] = {
    "a chain": lambda x, w: ((x @ w).sin().sin() @ w).exp(),
    "two halves of one storage": _half,
    "temporaries that come and go": lambda x, w: sum((x * k).exp().sum() for k in range(1, 6)) + (x @ w).cos().sum(),
    "a transposed factor": lambda x, w: (x.t().exp() @ x.sin()) @ w.t(),
    "a part of w": lambda x, w: (x.view(-1, 4) @ w[4:]).exp(),
    "a mask and whole numbers": lambda x, w: (x * (x.detach() > 0))[torch.arange(0, len(x), 2)] @ w,
    "normalised": lambda x, w: nn.functional.layer_norm(x @ w, (8,)).softmax(-1),
}


def _saved(function: Callable, x: torch.Tensor, w: torch.Tensor) -> list[tuple[int, str]]:
    """(bytes, on whose storage it lies, "x", "w" or "") of each tensor that the graph saves."""
    seen, kept = [], []

    owners = {one.untyped_storage().data_ptr(): name for one, name in ((x, "x"), (w, "w"))}

    def pack(t: torch.Tensor) -> torch.Tensor:
        seen.append((t.numel() * t.element_size(), owners.get(t.untyped_storage().data_ptr(), "")))
        kept.append(t)
        return t.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        function(x, w)
    return seen


def _tensors(rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 8, generator=generator).requires_grad_(), torch.randn(
        8, 8, generator=generator
    ).requires_grad_()


def _two_backwards(y: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> list:
    """The gradients after one backward through y's graph, and after another one."""
    seen = []
    for again in (True, False):
        y.sum().backward(retain_graph=again)
        seen.append(bits([x.grad, w.grad]))
    return seen


#: What is ignored → on whose storages that is.
_IGNORED = {"": "", "a view of w": "w", "w": "w", "w and x": "wx", "x and w": "wx"}


def _observe(offload: Any, name: str, rows: int, seed: int, least: int, ignored: str) -> dict[str, Any]:
    """Where the submission runs: a forward in offload and two backwards outside of it."""
    (x, w), host = _tensors(rows, seed), _Host()
    options: dict[str, Any] = {"min_bytes": least} if least else {}
    if ignored:
        tensors = {"a view of w": w.detach()[2:4], "w": w.detach(), "x": x.detach()}
        options["ignore"] = [tensors[one] for one in ignored.split(" and ")]
    with offload(host, **options):
        y = _FUNCTIONS[name](x, w)
    puts, alive, gets = len(host.sizes), host.alive, host.gets
    backward, again = _two_backwards(y, x, w)
    left_in_graph, output = host.alive, bits([y])
    after = (x * 2).exp().sum()  # outside of `with` nothing is moved
    after.backward()
    outside = len(host.sizes) - puts
    del y, after
    if host.nbytes():
        gc.collect()  # an answer may hold its own parts in a circle
    return {
        "output": output,
        "backward": backward,
        "again": again,
        "sizes": sorted(host.sizes[:puts]),
        "alive": alive,
        "early": gets,
        "outside": outside,
        "freed": left_in_graph,
        "left": host.alive,
    }


def _expected(name: str, rows: int, seed: int, least: int, ignored: str) -> dict[str, Any]:
    """The same without offload; moved: the bytes of each tensor that should go to the host."""
    x, w = _tensors(rows, seed)
    saved = _saved(_FUNCTIONS[name], x, w)
    y = _FUNCTIONS[name](x, w)
    backward, again = _two_backwards(y, x, w)
    moved = sorted(size for size, owner in saved if size >= least and not (owner and owner in _IGNORED[ignored]))
    return {"output": bits([y]), "backward": backward, "again": again, "moved": moved, "saved": len(saved)}


#: Functions of which some saved tensors are as large as x, and some lie on w.
_LARGE = ("a chain", "two halves of one storage", "a part of w", "a mask and whole numbers", "normalised")


def _all(rows: int) -> list[tuple[str, str, int, int, str]]:
    """Everything goes: (what the case is called, then what `_observe` takes without the seed)."""
    return [(f"{name}, {rows} rows", name, rows, 0, "") for name in _FUNCTIONS]


def _limits(rows: int) -> list[tuple[str, str, int, int, str]]:
    """With `min_bytes`, at, above and below what x has."""
    limits = (32 * rows, 32 * rows + 1, 32 * rows - 4)
    return [(f"{name}, {rows} rows, min_bytes = {n}", name, rows, n, "") for name in _LARGE for n in limits]


def _ignored(rows: int) -> list[tuple[str, str, int, int, str]]:
    """With `ignore`."""
    return [(f"{name}, {rows} rows, {of} ignored", name, rows, 0, of) for name in _LARGE for of in _IGNORED if of]


def _drive(rank: int, world_size: int, offload: Any, cases: list[tuple]) -> list[dict[str, Any]]:
    return [_observe(offload, *case) for case in cases]


def _each(offload: Any, rng: Any, *kinds: Callable) -> list[tuple[str, dict, dict]]:
    """Each case, what was seen and what is expected. A process of its own: hooks that are never left would stay."""
    rows = 2 * int(rng.integers(20, 60))
    cases = [case for kind in kinds for case in kind(rows)]
    drawn = [(*how[:2], inputs.seed(rng), *how[2:]) for _, *how in cases]
    observed = run_ranks(_drive, 1, (offload, drawn))[0]
    wanted = [_expected(*how) for how in drawn]
    return [(case, seen, want) for (case, *_), seen, want in zip(cases, observed, wanted, strict=True)]


@check(OFFLOAD, veto=True)
def gradients_stay_bit_for_bit(offload, *, rng):
    """Output and gradients are those without offload, bit for bit, even in a second backward through the same graph."""
    observed = _each(offload, rng, _all, _limits, _ignored)
    words = {"output": "the output", "backward": "a gradient", "again": "a gradient of the second backward"}
    evidence = [[seen[what] == want[what] for what in words] for _, seen, want in observed]
    for case, seen, want in observed:
        for what, words_of_it in words.items():
            if seen[what] != want[what]:
                fail(f"{words_of_it} differs from that without offload", case, evidence)


def _expect_sizes(observed: list[tuple[str, dict, dict]]) -> None:
    """The tensors that should go to the host do, and no others."""
    evidence = [
        [len(seen["sizes"]), len(set(want["moved"]) - set(seen["sizes"])), seen["outside"]]
        for _, seen, want in observed
    ]
    for case, seen, want in observed:
        if seen["outside"]:
            fail("something was put to the host outside of `with offload(…)`", case, evidence)
        # A tensor that is saved twice may be put once.
        wanted, got = set(want["moved"]), set(seen["sizes"])
        if wanted - got:
            fail(f"a tensor of {max(wanted - got)} bytes was not put to the host", case, evidence)
        if got - wanted:
            fail(f"a tensor of {max(got - wanted)} bytes was put to the host and should have stayed", case, evidence)


@check(OFFLOAD, points=0.5)
def what_the_graph_saves_goes_to_the_host(offload, *, rng):
    """What the graph saves in `with` goes to the host, and nothing else does."""
    _expect_sizes(_each(offload, rng, _all))


@check(OFFLOAD, points=0.25)
def what_is_small_stays(offload, *, rng):
    """Tensors whose own elements have fewer than `min_bytes` bytes stay, and no others."""
    _expect_sizes(_each(offload, rng, _limits))


@check(OFFLOAD, points=0.25)
def what_is_ignored_stays(offload, *, rng):
    """Tensors that share a storage with one of those in `ignore` stay, whatever views they are, and no others."""
    _expect_sizes(_each(offload, rng, _ignored))


def _expect_moved(case: str, seen: dict, want: dict) -> None:
    """Something went to the host, if anything should have."""
    if want["moved"] and not seen["sizes"]:
        fail("nothing was put to the host", case, "nothing put")


@check(OFFLOAD, points=0.25)
def each_saved_tensor_is_put_once(offload, *, rng):
    """There is at most one `put` for a saved tensor, and no `get` before backward needs it."""
    for case, seen, want in _each(offload, rng, _all):
        _expect_moved(case, seen, want)
        evidence = [len(seen["sizes"]) > want["saved"], seen["early"] > 0]
        if len(seen["sizes"]) > want["saved"]:
            text = f"put was called {len(seen['sizes'])} times for {want['saved']} saved tensors"
            fail(text, case, evidence)
        expect_equal(case, seen["early"], 0, what="the number of calls of get before backward", evidence=evidence)


def _unused(rank: int, world_size: int, offload: Any, seed: int) -> int:
    """Where the submission runs: bytes on the host once a graph is gone that kept a result here and ran no backward."""
    (x, w), host = _tensors(16, seed), _Host()
    with offload(host, min_bytes=100):
        y = (x * (x @ w)).sum().exp() + 0
    del y
    gc.collect()
    return host.nbytes()


@check(OFFLOAD, points=0.25)
def the_host_is_empty_in_the_end(offload, *, rng):
    """`host.nbytes()` is 0 once the graph is gone."""
    for case, seen, want in _each(offload, rng, _all):
        _expect_moved(case, seen, want)
        if seen["left"]:
            fail(
                f"the host still holds {seen['left']} bytes though the graph is gone",
                case,
                [seen["left"], seen["freed"]],
            )
    left = run_ranks(_unused, 1, (offload, inputs.seed(rng)))[0]
    if left:
        case = "a result of 4 bytes stays, x and x @ w go, and no backward runs"
        fail(f"the host still holds {left} bytes though the graph is gone", case, "unused")


class _Doubling(_Host):
    """A host that gives back twice what was put there: what backward takes from it shows."""

    def get(self, parked: _Parked) -> torch.Tensor:
        return 2 * parked.tensor


def _doubled(rank: int, world_size: int, offload: Any, x: torch.Tensor) -> list:
    """Where the submission runs: the gradient of exp(x), whose graph keeps the result, twice of it on such a host."""
    x = x.clone().requires_grad_()
    with offload(_Doubling()):
        y = x.exp()
    y.sum().backward()
    return bits(x.grad)


def _alive(rank: int, world_size: int, offload: Any, rows: int, seed: int) -> tuple[list[int], int, list]:
    """Where the submission runs: bytes that are alive outside of the host, after forward and after a backward.

    The graph is retained. Also how many tensors went to the host, and the gradients, in whose place a graph that keeps
    nothing has none.
    """
    (x, w), host = _tensors(rows, seed), _Host()
    gc.collect()
    meter = LiveBytes()
    before = meter.now()
    with meter:
        with offload(host):
            y = _FUNCTIONS["a chain"](x, w)
        alive = [meter.now() - before - host.alive]
        y.sum().backward(retain_graph=True)
        gradients = bits([x.grad, w.grad])
        x.grad = w.grad = None
        alive.append(meter.now() - before - host.alive)
    return alive, len(host.sizes), gradients


def _grown(offload: Any, rng: Any) -> tuple[int, list[int]]:
    """The rows of x, and the bytes that `_alive` saw, of a graph that keeps what it needs."""
    rows, seed = 16 * int(rng.integers(40, 80)), inputs.seed(rng)
    alive, puts, gradients = run_ranks(_alive, 1, (offload, rows, seed))[0]
    if gradients != _expected("a chain", rows, seed, 0, "")["backward"]:
        fail("a gradient differs from that without offload", f"{rows} rows", "gradients")
    if not puts:
        fail("nothing was put to the host", f"{rows} rows", "nothing put")
    return rows, alive


@check(OFFLOAD, points=0.25)
def the_device_keeps_the_output_alone(offload, *, rng):
    """After forward, at most the output and 1 kB are alive outside of the host."""
    rows, (alive, _) = _grown(offload, rng)
    output = 4 * 8 * rows
    x = torch.from_numpy(rng.standard_normal(5))
    if run_ranks(_doubled, 1, (offload, x))[0] != bits(2 * x.exp()):
        case = "a host that gives back twice what was put there"
        fail("backward does not use what host.get returns, so it was kept elsewhere", case, "kept")
    if alive > output + 1024:
        text = f"{alive} bytes more are alive outside of the host, expected at most the {output} of the output"
        fail(text, f"{rows} rows, after forward", round(alive / output))


@check(OFFLOAD, points=0.25)
def what_backward_fetched_does_not_stay(offload, *, rng):
    """After a backward that retains the graph, no more than 1 kB is alive outside of the host that was not before."""
    rows, (before, after) = _grown(offload, rng)
    if after > before + 1024:
        text = f"{after - before} bytes more are alive outside of the host than before backward, expected at most 1024"
        fail(text, f"{rows} rows, a backward that retains the graph", round((after - before) / (32 * rows)))
