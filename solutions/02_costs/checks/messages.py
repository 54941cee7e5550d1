"""Exercises 1 and 2: all-reduces on one level and on two."""

from __future__ import annotations

from autograder.checks.cases import Call, close
from autograder.checks.check import check

from .common import draw_prices, halving_seconds, near, ratio, ring_seconds, two_level_seconds

ALL_REDUCES, TWO_LEVELS = "02-ex1-all-reduce-times", "02-ex2-two-level"
#: How exercise 1's algorithms work, for whoever gets another time.
HOW = {
    ring_seconds: "a ring passes on chunks of T/N bytes, in a reduce-scatter and then an all-gather",
    halving_seconds: "the messages are T/2, T/4, ... down to T/N bytes, and then the same in reverse",
}


def _times(function, oracle, calls):
    """The function takes as long as the rounds that the oracle plays. calls: (nbytes, n, alpha, beta) each."""
    for arguments in calls:
        yield Call(function, *arguments, gives=near(oracle(*arguments)), what="the time", because=HOW[oracle])


def _drawn(rng, sizes):
    """All-reduces of chunks of whole bytes, of which starting and sending cost about the same."""
    for n in sizes:
        nbytes = n * int(rng.integers(1, 1000)) * 1000
        yield nbytes, n, *draw_prices(rng, nbytes / n)


@check(ALL_REDUCES, points=0.75)
def ring_takes_as_long_as_its_rounds(ring_time, *, rng):
    """ring_time is the time of the rounds of both halves, for any number of ranks."""
    yield from _times(ring_time, ring_seconds, _drawn(rng, [5, 4, 2, 3, 7, 64, 1000, int(rng.integers(9, 999))]))


@check(ALL_REDUCES, points=0.75)
def halving_takes_as_long_as_its_rounds(halving_time, *, rng):
    """halving_time is the time of the rounds to halve and to double, for any power of two."""
    sizes = [4, 2, 8, 64, 1024, 2 ** int(rng.integers(4, 17))]
    yield from _times(halving_time, halving_seconds, _drawn(rng, sizes))


@check(ALL_REDUCES, points=0.25)
def chunks_are_exact(ring_time, halving_time, *, rng):
    """A chunk is T/N bytes, exactly, whether that is a whole number or not."""
    what = "the time, over that of 1,000 times as many bytes on links twice as fast,"
    how = {"gives": close(2e-3, rtol=1e-6), "what": what, "because": "chunks are not rounded"}
    for name, function in (("ring_time", ring_time), ("halving_time", halving_time)):
        for nbytes in (3, 8 * int(rng.integers(2, 99)) + 5):
            many, few = (1000 * nbytes, 8, 0.0, 1e-10), (nbytes, 8, 0.0, 2e-10)
            case = f"{name} of {nbytes} bytes on 8 ranks, without start-ups"
            yield Call(ratio, function, many, few, name=case, **how)


@check(ALL_REDUCES, points=0.25)
def nothing_is_sent_or_only_started(ring_time, halving_time, *, rng):
    """One rank takes 0 seconds, and 0 bytes still take their start-ups."""
    nbytes = int(rng.integers(1, 10**6))
    for name, function in (("ring_time", ring_time), ("halving_time", halving_time)):
        prices = draw_prices(rng, nbytes)
        yield Call(function, nbytes, 1, *prices, gives=near(0), what="the time", because="one rank sends nothing")
        how = {"what": "its time, over that of 10⁻⁹ bytes,", "because": "0 bytes have to be started, too"}
        for n in (2, 8):
            calls = [(size, n, *prices) for size in (1e-9, 0)]
            case = f"{name} of 0 bytes on {n} ranks"
            yield Call(ratio, function, *calls, gives=close(1.0, atol=1e-3), name=case, **how)


def _levels(function, calls):
    """The function takes as long as the three phases that are played. calls: arguments of `two_level_time`."""
    for arguments in calls:
        nbytes, _, gpus, _, inside, _ = arguments
        within, expected = ring_seconds(nbytes, gpus, *inside), two_level_seconds(*arguments)
        because = f"phases 1 and 3 take {float(within):.6g} s, phase 2 takes {float(expected - within):.6g} s"
        yield Call(function, *arguments, gives=near(expected), what="the time", because=because)


@check(TWO_LEVELS, points=1.5)
def bytes_cross_on_two_levels(two_level_time, *, rng):
    """Start-ups aside: inside a node the bytes of a ring, between nodes those of one ring per GPU, over all ports."""
    for nodes, gpus, ports in ((4, 8, 8), (3, 8, 2), (2, 6, 3), (int(rng.integers(4, 99)), 4, 1)):
        nbytes, slower = int(rng.integers(1, 1000)) * 1000 + 7, float(rng.uniform(2, 20))
        yield from _levels(two_level_time, [(nbytes, nodes, gpus, ports, (0.0, 2e-12), (0.0, slower * 2e-12))])


@check(TWO_LEVELS, points=0.75)
def every_round_is_started_once(two_level_time, *, rng):
    """Each round of each phase pays its alpha once, however many rings share a port."""
    for nodes, gpus, ports in ((4, 8, 8), (2, 8, 2), (3, 5, 1)):
        alphas = [float(10 ** rng.uniform(-6, -4)) for _ in range(2)]
        yield from _levels(two_level_time, [(0, nodes, gpus, ports, *((alpha, 1e-11) for alpha in alphas))])


@check(TWO_LEVELS, points=0.5)
def rings_share_the_ports_evenly(two_level_time, *, rng):
    """Ports need not divide the GPUs, and more ports than GPUs do not help."""
    how = {"what": "the time, over that with a single port,", "because": "the rings share all ports evenly"}
    for gpus, ports in ((8, 3), (8, 5), (3, 2), (4, 8), (1, 2)):
        nbytes, prices = int(rng.integers(1, 10**6)), ((0.0, 0.0), (0.0, 2e-11))
        arguments = [(nbytes, 4, gpus, number, *prices) for number in (1, ports)]
        case = f"4 nodes of {gpus} GPUs with {ports} ports, all prices 0 but the network's for a byte"
        gives = close(1 / min(gpus, ports), rtol=1e-9)
        yield Call(ratio, two_level_time, *arguments, gives=gives, name=case, **how)


@check(TWO_LEVELS, points=0.25)
def one_node_or_one_gpu_is_a_single_ring(two_level_time, *, rng):
    """On one node no byte leaves it; with one GPU per node there is nothing to do inside."""
    for gpus in (1, 4):
        nbytes = int(rng.integers(1, 1000)) * 1000
        yield from _levels(two_level_time, [(nbytes, 1, gpus, gpus, (2e-6, 3e-12), (1e-5, 2e-11))])
    how = {"what": "the time, over that with a slower NVLink,", "because": "a single GPU has nobody to send to inside"}
    for nodes in (2, 3):
        arguments = [(4000, nodes, 1, 1, (2e-6 * slower, 3e-12 * slower), (1e-5, 2e-11)) for slower in (10, 1)]
        case = f"{nodes} nodes with one GPU each"
        yield Call(ratio, two_level_time, *arguments, gives=close(1.0, rtol=1e-9), name=case, **how)
