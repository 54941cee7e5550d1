"""Ranks that tell each other what they know by messages do the same again alone; ranks that do otherwise do not."""

import os
import sys
import time

import pytest
import torch
import torch.distributed as dist

from autograder.checks import replay
from autograder.checks.expect import CheckFailed
from autograder.checks.replay import Recording, Sent, expect_same_alone, run_recorded
from ranks.ledger import Ledger

N = 3


def passed_on(rank, world_size, inputs):
    """Along a chain: each rank adds its number to what it got."""
    total = inputs[rank].clone()
    if rank:
        got = torch.empty_like(total)
        dist.recv(got, rank - 1)
        total += got
    if rank + 1 < world_size:
        dist.send(total, rank + 1)
    return total


def with_everything_that_torch_has(rank, world_size, inputs):
    """A batch to the right, a receive from anybody, a message in a group with a tag."""
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    got = torch.empty_like(inputs[rank])
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, inputs[rank], right), dist.P2POp(dist.irecv, got, left)])
    for work in works:
        work.wait()
    group = dist.new_group([1, 2])
    if rank == 1:
        dist.send(got, 2, group=group, tag=5)
    if rank == 2:
        dist.recv(got, src=None)
        more = torch.empty_like(got)
        work = dist.irecv(more, 1, group=group, tag=5)
        work.wait()
        got += more
    if rank == 0:
        dist.isend(got, 2).wait()
    return got


def by_a_collective(rank, world_size, inputs):
    """Nothing is sent, and every rank knows all."""
    total = inputs[rank].clone()
    dist.group.WORLD.allreduce([total]).wait()
    return total


def by_looking(rank, world_size, inputs):
    """The driver's arguments hold all numbers."""
    passed_on(rank, world_size, inputs)
    return sum(inputs[: rank + 1])


def by_the_process(rank, world_size, inputs):
    """Sends what it has to, not what it was sent, but what it can find out about where it runs."""
    passed_on(rank, world_size, inputs)
    return inputs[rank] + os.getpid()


def past_the_ledger(rank, world_size, inputs):
    """Sends by the group itself."""
    if rank == 0:
        dist.group.WORLD.send([inputs[0]], 1, 0).wait()
    if rank == 1:
        dist.group.WORLD.recv([torch.empty_like(inputs[1])], 0, 0).wait()
    return inputs[rank]


def looks_ahead(rank, world_size, inputs):
    """Takes what it is yet to receive from the variables of whoever calls it."""
    frame = sys._getframe()
    while frame and "waiting" not in frame.f_locals:
        frame = frame.f_back
    if frame is None:
        return passed_on(rank, world_size, inputs)
    dist.send(inputs[rank] + frame.f_locals["waiting"][0][1].numbers, rank + 1)
    return inputs[rank]


def try_alone(worker):
    """Note a run for each rank, and have each do its part of its own run again. What all returned, then and now."""
    then, cases = [], []
    for rank in range(N):
        inputs, others = torch.randn(N, 100), torch.randn(N, 100)
        values, sent, ledger = run_recorded(worker, N, (inputs,))
        others[rank] = inputs[rank]
        cases.append(Recording(rank, (others,), sent, ledger))
        then.append(values[rank])
    return then, expect_same_alone(worker, N, cases)


class SlowToFill(torch.Tensor):
    """A tensor into which a message is copied as slowly as next to hundreds of busy processes."""

    def copy_(self, *args):
        time.sleep(1)
        return super().copy_(*args)


def receives_slowly(rank, world_size, count):
    """Rank 0 sends `count` messages to each other rank, which is told how many there will be."""
    told, got = torch.tensor([count]), torch.zeros(2)
    for other in range(1, world_size) if rank == 0 else ():
        dist.send(told, other)
        for _ in range(count):
            dist.send(got + 1, other)
    if rank:
        dist.recv(told, 0)
        for _ in range(int(told)):
            dist.recv(got.as_subclass(SlowToFill), 0)
    return got


def test_a_slow_receive_is_no_endless_one():
    """Each rank does its part of another case again, so that nothing that it receives has been sent by a neighbor."""
    cases = []
    for rank, count in enumerate([1, 3]):
        _, sent, ledger = run_recorded(receives_slowly, 2, (count,))
        cases.append(Recording(rank, (count,), sent, ledger))
    assert [value.tolist() for value in expect_same_alone(receives_slowly, 2, cases)] == [[0, 0], [1, 1]]


@pytest.mark.parametrize("worker", [passed_on, with_everything_that_torch_has])
def test_who_lives_on_messages_does_the_same_alone(worker):
    then, now = try_alone(worker)
    assert all(torch.equal(a, b) for a, b in zip(then, now, strict=True))


@pytest.mark.parametrize("worker", [by_a_collective, by_looking, by_the_process])
def test_who_does_not_gets_something_else(worker):
    then, now = try_alone(worker)
    assert not any(torch.equal(a, b) for a, b in zip(then[1:], now[1:], strict=True))


def two_at_once(rank, world_size, inputs):
    """Two receives that end in another order than they began; what was sent in between depends on the first end."""
    if rank == 0:
        dist.send(inputs[0], 1)
        dist.send(-inputs[0], 1)
        return dist.recv(inputs[0], 1)
    if rank == 1:
        first, second = torch.empty_like(inputs[1]), torch.empty_like(inputs[1])
        works = [dist.irecv(first, 0), dist.irecv(second, 0)]
        works[1].wait()
        dist.send(second + inputs[1], 0)
        works[0].wait()
        return first
    return 0


@pytest.mark.parametrize("most", [0, 1])
def test_messages_are_withheld_in_the_order_in_which_receives_ended(most, monkeypatch):
    inputs = torch.randn(N, 100)
    values, messages, ledger = run_recorded(two_at_once, N, (inputs,))
    case = Recording(1, (inputs,), messages, ledger)
    monkeypatch.setattr("secrets.randbelow", lambda count: most)
    withheld, given, sends = replay._withhold(case, replay._part(case))
    assert (given, sends) == (most, most)
    assert [one.numbers is None for _, one in withheld.incoming] == [True, not most]
    (value,) = expect_same_alone(two_at_once, N, [case])
    assert torch.equal(value, values[1])


def test_what_is_sent_past_the_ledger_is_noticed():
    with pytest.raises(CheckFailed, match="the ledger's 0 messages from rank 0 are not the 1 that it sent"):
        run_recorded(past_the_ledger, N, (torch.zeros(N, 1),))


def recorded_chain():
    """One run of the chain: its inputs, messages and ledger."""
    inputs = torch.randn(N, 100)
    _, messages, ledger = run_recorded(passed_on, N, (inputs,))
    return inputs, messages, ledger


@pytest.mark.parametrize(
    "worker, said",
    [
        (passed_on, r"rank 1 does not do the same when it runs again alone, .* 0 of the messages"),
        (looks_ahead, "NoneType"),
    ],
)
def test_who_says_that_it_sent_before_it_received_must_do_so(worker, said):
    inputs, messages, ledger = recorded_chain()
    for message in ledger.of(1).sends():
        message.posted = -1
    with pytest.raises(CheckFailed, match=said):
        expect_same_alone(worker, N, [Recording(1, (inputs,), messages, ledger)])


@pytest.mark.parametrize("change", ["other numbers", "one less", "to another"])
def test_other_messages_than_those_that_were_recorded_are_noticed(change):
    inputs, messages, ledger = recorded_chain()
    mine = messages[1][0]
    claimed = {
        "other numbers": [Sent(mine.to, mine.tag, mine.numbers + 1)],
        "one less": [],
        "to another": [Sent(0, mine.tag, mine.numbers)],
    }[change]
    messages[1] = claimed
    with pytest.raises(CheckFailed, match="alone"):
        expect_same_alone(passed_on, N, [Recording(1, (inputs,), messages, ledger)])


def test_who_waits_for_a_message_that_nobody_sent_is_told():
    inputs, messages, _ = recorded_chain()
    with pytest.raises(CheckFailed, match="rank 1 does not do the same"):
        expect_same_alone(passed_on, N, [Recording(1, (inputs,), [[], messages[1], []], Ledger(world_size=N))])


@pytest.mark.parametrize("nonsense", [lambda *_: 1, lambda *_: (1, [2]), lambda *_: (1, [Sent(0, 0, [1])])])
def test_nonsense_is_called_nonsense(nonsense, monkeypatch):
    monkeypatch.setattr("autograder.checks.replay.run_and_record", nonsense)
    with pytest.raises(CheckFailed, match="cannot be read"):
        run_recorded(passed_on, 2, (torch.zeros(2, 1),))
