"""Every hang that a beginner can build is explained within seconds, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import datetime
import os
import signal
import threading
import time
import warnings

import pytest
import torch
import torch.distributed as dist

import ranks
from ranks import launch, processes

# Imported before the ranks are forked: no rank is still at that while the others already wait for each other.
processes.PRELOAD.add(__name__)

LIMIT = 300.0  # seconds, on a busy machine, for a hang that the messages alone prove; the timeout would be 600


def everybody_receives_first(rank, world_size):
    buffer = torch.zeros(4)
    dist.recv(buffer, src=(rank - 1) % world_size)
    dist.send(buffer, dst=(rank + 1) % world_size)


def everybody_sends_first(rank, world_size):
    big = torch.zeros(4 * 2**20)
    dist.send(big, dst=(rank + 1) % world_size)
    dist.recv(big, src=(rank - 1) % world_size)


def one_rank_skips_a_collective(rank, world_size):
    x = torch.ones(2)
    dist.all_reduce(x)
    if rank != 2:
        dist.all_reduce(x)


def different_collectives(rank, world_size):
    x = torch.ones(2)
    if rank == 1:
        dist.broadcast(x, src=0)
    else:
        dist.all_reduce(x)


def different_roots(rank, world_size):
    dist.broadcast(torch.ones(2), src=rank % 2)


def a_reduce_of_one_rank(rank, world_size):
    if rank == 1:
        dist.reduce(torch.ones(2), dst=3)


def a_receive_without_a_send(rank, world_size):
    if rank == 0:
        dist.recv(torch.zeros(1), src=3)


def a_send_without_a_receive(rank, world_size):
    if rank == 1:
        dist.send(torch.zeros(1), dst=0)


def one_receive_too_many(rank, world_size):
    if rank == 0:
        for _ in range(3):
            dist.send(torch.zeros(1), dst=1)
    if rank == 1:
        for _ in range(4):
            dist.recv(torch.zeros(1), src=0)


def different_tags(rank, world_size):
    if rank == 0:
        dist.send(torch.zeros(1), dst=1, tag=1)
    if rank == 1:
        dist.recv(torch.zeros(1), src=0, tag=2)


def waits_for_an_isend(rank, world_size):
    work = dist.isend(torch.zeros(8), dst=(rank + 1) % world_size)
    work.wait()
    dist.recv(torch.zeros(8), src=(rank - 1) % world_size)


def receives_from_anybody(rank, world_size):
    if rank == 0:
        for _ in range(world_size):  # one more than there are others
            dist.recv(torch.zeros(1))
    else:
        dist.send(torch.zeros(1), dst=0)


def a_barrier_in_one_branch(rank, world_size):
    if rank == 0:
        dist.barrier()
    dist.all_reduce(torch.ones(1))


def collectives_in_another_order(rank, world_size):
    a, b = torch.ones(2), torch.ones(6)
    for x in (a, b) if rank else (b, a):
        dist.all_reduce(x)


def the_last_of_three_receives_first(rank, world_size):
    if rank == 0:
        dist.send(torch.zeros(1), dst=1)
    if rank == 1:
        works = [dist.irecv(torch.zeros(1), src=0) for _ in range(3)]
        for work in works[::-1]:
            work.wait()


def a_tag_that_nobody_sends(rank, world_size):
    if rank == 0:
        dist.send(torch.zeros(1), dst=1)
    if rank == 1:
        dist.recv(torch.zeros(1), src=0)
        dist.recv(torch.zeros(1), src=0, tag=5)


def a_group_that_one_member_forgets(rank, world_size):
    group = dist.new_group([0, 1, 2])
    if rank in (0, 1):
        dist.all_reduce(torch.ones(1), group=group)


def an_isend_that_is_dropped(rank, world_size):
    if rank == 0:
        dist.isend(torch.zeros(2), dst=1)
    if rank == 1:
        time.sleep(0.5)
        dist.recv(torch.zeros(2), src=0)


def handles_that_are_overwritten(rank, world_size):
    if rank == 0:
        time.sleep(0.5)  # what comes before the handle is overwritten does arrive
        for tag in range(2):
            dist.send(torch.ones(1), 1, tag=tag)
    if rank == 1:
        for tag in range(2):
            work = dist.irecv(torch.zeros(1), 0, tag=tag)
        work.wait()


def one_batch_more(rank, world_size):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    for _ in range(2 + (rank == 1)):
        model(torch.ones(1, 2)).sum().backward()


def only_one_asks_for_the_whole(rank, world_size):
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

    shards = distribute_tensor(torch.arange(4.0), init_device_mesh("cpu", (world_size,)), [Shard(0)])
    if rank == 2:
        shards.full_tensor().sum()


def groups_of_their_members_only(rank, world_size):
    members = [0, 3] if rank in (0, 3) else [1, 2]
    dist.barrier(group=dist.new_group(members))
    if members == [0, 3]:
        dist.recv(torch.zeros(1), src=1)  # on some runs both groups come about all the same


def a_group_that_one_rank_does_not_make(rank, world_size):
    dist.new_group([0, 1])
    if rank != 3:
        dist.new_group([1, 3])


#: worker → what the explanation must say, apart from the state of every rank.
HANGS = {
    an_isend_that_is_dropped: ["Rank 0's isend to rank 1 at", "dist.isend(torch.zeros(2), dst=1) was never waited for"],
    handles_that_are_overwritten: ["Rank 1's irecv from rank 0 at", "was never waited for", "may never arrive"],
    one_batch_more: ["rank 1 waits inside torch at", ".sum().backward()", "gradients of DistributedDataParallel"],
    only_one_asks_for_the_whole: ["rank 2 waits inside torch at", "full_tensor()", "is not recorded"],
    groups_of_their_members_only: ["The ranks diverge at group number 1", "ranks 1 and 2 called new_group([1, 2])"],
    a_group_that_one_rank_does_not_make: [
        "group number 2",
        "rank 3 called none: it has returned",
        "called new_group([1, 3])",
    ],
    everybody_receives_first: ["cycle of receives", "recv from rank 3", "dist.recv(buffer, src=(rank - 1)"],
    everybody_sends_first: ["cycle of sends", "send to rank 1 (16777216 bytes)"],
    one_rank_skips_a_collective: ["collective number 2", "rank 2 called none: it has returned"],
    different_collectives: ["collective number 1", "broadcast from rank 0", "ranks 0, 2 and 3 called all_reduce"],
    different_roots: ["collective number 1", "broadcast from rank 1"],
    a_reduce_of_one_rank: ["rank 1 called reduce to rank 3 (8 bytes)", "2 and 3 called none: each has returned"],
    a_receive_without_a_send: ["1st receive from rank 3", "send: rank 3 made no such send and has returned"],
    a_send_without_a_receive: ["1st send to rank 0", "receive: rank 0 made no such receive and has returned"],
    one_receive_too_many: ["4th receive from rank 0", "rank 0 made 3 such sends and has returned"],
    different_tags: ["recv from rank 0 (4 bytes, tag 2)", "send to rank 1 (4 bytes, tag 1)", "The tags differ"],
    waits_for_an_isend: ["cycle of sends", "work.wait()", "first receive what the others send"],
    receives_from_anybody: ["recv from any rank", "for the 4th time, but only 3 messages were sent to it"],
    the_last_of_three_receives_first: ["3rd receive from rank 0 has", "rank 0 made 1 such send and has returned"],
    a_tag_that_nobody_sends: ["1st receive from rank 0 with tag 5 has", "rank 0 made no such send and has returned"],
    a_barrier_in_one_branch: ["collective number 1", "rank 0 called barrier"],
    collectives_in_another_order: ["collective number 1", "8 bytes", "24 bytes"],
    a_group_that_one_member_forgets: ["of the group [0, 1, 2]", "rank 2 called none"],
}


@pytest.fixture(scope="module", autouse=True)
def server():
    """The fork server has imported torch before the first test measures a time."""
    ranks.run(rank_of, world_size=2)


@pytest.mark.parametrize("worker", HANGS, ids=lambda worker: worker.__name__)
def test_a_hang_is_explained_at_once(worker, no_leftovers):
    begin = time.monotonic()
    with pytest.raises(ranks.HangError) as caught:
        ranks.run(worker, world_size=4, timeout=600)
    assert time.monotonic() - begin < LIMIT
    text = str(caught.value)
    for expected in [*HANGS[worker], *(f"rank {rank} " for rank in range(4)), "test_hangs.py, line"]:
        assert expected in text, text
    assert len(caught.value.waits) == 4 and text.startswith(f"{caught.value.headline}\n")
    assert "wait forever" in caught.value.headline or "waits forever" in caught.value.headline
    assert ranks.run(rank_of, world_size=2) == [0, 1], "the next run works as before"


def rank_of(rank, world_size):
    return rank


def test_a_message_that_nobody_waited_for_explains_a_hang_before_the_barrier_that_it_keeps_ranks_from():
    def a_barrier_after_it(rank, world_size):
        an_isend_that_is_dropped(rank, world_size)
        dist.barrier()

    with pytest.raises(ranks.HangError) as caught:
        ranks.run(a_barrier_after_it, world_size=2, timeout=2)
    text = str(caught.value)
    assert "Rank 0's isend to rank 1 at" in text and "was never waited for" in text and "diverge" not in text, text


@pytest.mark.parametrize(
    ("worker", "says"),
    [
        (
            lambda rank, n: dist.send(torch.zeros(1), dst=1),
            "send to rank 1: there is no such rank, the last one is rank 0",
        ),
        (lambda rank, n: dist.recv(torch.zeros(1), src=0), "recv from rank 0, which is this rank itself"),
        (lambda rank, n: dist.send(torch.zeros(1), dst=0), "raised ValueError: Invalid destination rank"),  # torch's
    ],
)
def test_an_impossible_peer_is_reported_at_once(worker, says, no_leftovers):
    with pytest.raises(ranks.RankError) as caught:
        ranks.run(worker, world_size=1, timeout=600)
    assert says in str(caught.value)


def test_an_endless_loop_is_named_with_its_line(no_leftovers):
    def an_endless_loop(rank, world_size):
        while rank == 1: pass  # fmt: skip # noqa: E701 (one line, whichever half of it runs)
        dist.barrier()

    begin = time.monotonic()
    with pytest.raises(ranks.HangError) as caught:
        ranks.run(an_endless_loop, world_size=3, timeout=2)
    assert time.monotonic() - begin < 2 + LIMIT
    text = str(caught.value)
    assert "did not finish within 2 s" in text
    assert "computing at test_hangs.py, line" in text and "while rank == 1" in text
    assert "rank 0 waits in barrier for rank 1 at" in text, text


def test_an_endless_loop_that_calls_torch_is_named(no_leftovers):
    def an_endless_loop_in_torch(rank, world_size):
        x = torch.ones(300, 300)
        while rank == 0:
            x = x @ x / 300

    with pytest.raises(ranks.HangError, match=r"rank 0 is computing at test_hangs.py, line \d+: .*"):
        ranks.run(an_endless_loop_in_torch, world_size=2, timeout=1.5)


def test_a_rank_that_swallows_everything_is_ended(no_leftovers):
    def swallows_interrupts(rank, world_size):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            try:
                time.sleep(1)
            except BaseException:
                continue

    with pytest.raises(ranks.HangError):
        ranks.run(swallows_interrupts, world_size=2, timeout=1.5)


def test_a_rank_that_dies_is_the_one_that_is_blamed(no_leftovers):
    def one_rank_dies(rank, world_size):
        if rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()

    begin = time.monotonic()
    with pytest.raises(ranks.RankError) as caught:
        ranks.run(one_rank_dies, world_size=4, timeout=600)
    assert time.monotonic() - begin < LIMIT
    assert (caught.value.rank, "SIGKILL" in str(caught.value)) == (2, True), str(caught.value)


def a_message_longer_than_its_buffer(rank, world_size):
    if rank == 0:
        dist.send(torch.zeros(8), dst=1)
    if rank == 1:
        dist.recv(torch.zeros(4), src=0)


def collectives_of_different_sizes(rank, world_size):
    dist.all_reduce(torch.ones(4 if rank else 6))


@pytest.mark.parametrize(
    ("worker", "world_size", "kinds", "says"),
    [
        (a_message_longer_than_its_buffer, 2, ranks.RankError, ["sent 32 bytes", "holds 16 bytes"]),
        (collectives_of_different_sizes, 3, (ranks.HangError, ranks.RankError), ["24 bytes", "16 bytes"]),
    ],
)
def test_different_sizes_are_explained(worker, world_size, kinds, says, no_leftovers):
    with pytest.raises(kinds) as caught:
        ranks.run(worker, world_size, timeout=600)
    assert all(words in str(caught.value) for words in says), str(caught.value)


def test_a_rank_that_a_mismatch_kills_says_what_did_not_match(no_leftovers, monkeypatch):
    """gloo ends a process into which more comes than it expects, and says nothing that names a line."""

    def buckets_in_another_order(rank, world_size):
        sizes = (100_000, 1000) if rank else (1000, 100_000)
        works = [dist.all_reduce(torch.zeros(size), async_op=True) for size in sizes]
        for work in works:
            work.wait()

    monkeypatch.setattr(launch, "_LOOK_EVERY", 0.001)  # the mismatch is seen long before the process has ended
    with pytest.raises(ranks.RankError, match="was killed by SIGABRT: at collective number 1, rank 0 called") as caught:
        ranks.run(buckets_in_another_order, world_size=2, timeout=600)
    assert "4000 bytes" in str(caught.value) and "400000 bytes" in str(caught.value)
    assert "test_hangs.py" in str(caught.value)
    _, _, _, why = caught.value.evidence  # the same for the same mistake on another line of another notebook
    assert "400000 bytes" in why and "test_hangs.py" not in why and "line" not in why


def test_a_lost_connection_names_the_rank_that_ended_its_group(no_leftovers):
    def leaves_its_group(rank, world_size):
        if rank == 0:
            dist.destroy_process_group()
        else:
            time.sleep(0.5)
            dist.barrier()
        time.sleep(600)

    with pytest.raises(ranks.RankError, match=r"(?s)raised RuntimeError.*rank 0 had ended its group: .* at test_hangs"):
        ranks.run(leaves_its_group, world_size=2, timeout=600)


def waits_for_a_limited_time(rank, world_size):
    x = torch.zeros(1)
    if rank == 0:
        with contextlib.suppress(RuntimeError):
            dist.irecv(x, src=1).wait(datetime.timedelta(seconds=2))
        return "went on"


def waits_long_but_not_forever(rank, world_size):
    """For messages of a thread that has not yet communicated, while the main threads sleep."""
    x = torch.zeros(1)
    if rank == 0:
        thread = threading.Thread(target=lambda: time.sleep(5) or dist.send(torch.ones(1), 1))
        thread.start()
        dist.recv(x, src=1)
        thread.join()
    else:
        dist.recv(x, src=0)
        dist.send(x, 0)
    return x.item()


@pytest.mark.parametrize(
    ("worker", "results"), [(waits_for_a_limited_time, ["went on", None]), (waits_long_but_not_forever, [1.0, 1.0])]
)
def test_a_wait_that_ends_is_not_taken_for_a_hang(worker, results):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert ranks.run(worker, world_size=2, timeout=60) == results


def test_a_slow_run_is_not_taken_for_a_hang():
    def slow_but_fine(rank, world_size):
        x = torch.ones(2)
        if rank == 0:
            time.sleep(1.5)
        dist.all_reduce(x)
        if rank == 1:
            time.sleep(1.0)
            dist.send(x, dst=0)
        if rank == 0:
            dist.recv(x, src=1)
        return x.sum().item()

    assert ranks.run(slow_but_fine, world_size=3) == [6.0] * 3
