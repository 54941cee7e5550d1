"""Wrong answers to lesson 07, exercise 5."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: F821

from __future__ import annotations

from autograder.answers.mutants import edit, right, tests_of

SERVER = "07-ex5-parameter-server"


# ---- 5 · parameter_server ----


@right(SERVER)
def _server():
    """Right: the base of the edits below."""

    def parameter_server(rank, world_size, weights, gradient, steps, lr, mode):
        if world_size < 2:
            raise ValueError(f"world_size must be at least 2, got {world_size}")
        if mode not in ("sync", "async"):
            raise ValueError(f"mode must be sync or async, got {mode!r}")
        if rank > 0:
            return work(rank, weights, gradient, steps)
        weights = weights.clone(memory_format=torch.contiguous_format)
        grad, log, workers = torch.empty_like(weights), [], range(1, world_size)
        if mode == "sync":
            for step in range(steps):
                total = torch.zeros_like(weights)
                for worker in workers:
                    dist.send(weights, dst=worker)
                for worker in workers:
                    dist.recv(grad, src=worker)
                    total += grad
                    log.append((worker, step, 0))
                weights -= lr * total / len(workers)
            return weights, log
        pushes, version = dict.fromkeys(workers, 0), dict.fromkeys(workers, 0)
        for worker in workers:
            dist.send(weights, dst=worker)
        for update in range(steps * len(workers)):
            worker = dist.recv(grad)
            log.append((worker, pushes[worker], update - version[worker]))
            weights -= lr * grad
            pushes[worker] += 1
            version[worker] = update + 1
            if pushes[worker] < steps:
                dist.send(weights, dst=worker)
        return weights, log


server_divides_by_all_ranks = edit(
    SERVER,
    """You divided by the number of ranks. The server is one of them and has no gradient: take the mean over the N − 1
    workers.""",
    ("total / len(workers)", "total / world_size"),
    base=_server,
    breaks=tests_of(SERVER),
)

server_logs_by_arrival = edit(
    SERVER,
    """In synchronous mode you logged the pushes as they arrived. The pushes of a round all belong to the same update:
    log them in the order of the workers' ranks.""",
    (
        "for worker in workers:\n                dist.recv(grad, src=worker)",
        "for _ in workers:\n                worker = dist.recv(grad)",
    ),
    base=_server,
    breaks=tests_of(SERVER),
)

server_updates_within_a_round = edit(
    SERVER,
    """In synchronous mode you sent each worker weights that already contained the gradients of earlier workers of the
    same round. All workers must get the same weights, and the update comes after all gradients have arrived.""",
    ("            total = torch.zeros_like(weights)\n", ""),
    (
        "                dist.send(weights, dst=worker)\n            for worker in workers:\n",
        "                dist.send(weights, dst=worker)\n",
    ),
    ("total += grad", "weights -= lr * grad / len(workers)"),
    ("            weights -= lr * total / len(workers)\n", ""),
    base=_server,
    breaks=tests_of(SERVER),
)

staleness_counts_the_own_update = edit(
    SERVER,
    """From a worker's second push on, your staleness is too large by one: you recorded the version before that worker's
    last push, but the weights it got already contain that push. A lone worker's gradients are never stale.""",
    ("update + 1", "update"),
    base=_server,
    breaks=tests_of(SERVER),
    fails=[
        "async_with_one_worker_is_one_process",
        "async_makes_no_worker_wait_for_another",
        "async_log_replays_to_the_weights",
    ],
)

staleness_counts_since_the_start = edit(
    SERVER,
    """You subtracted the worker's own pushes from the number of all updates. That counts the other workers' updates
    since the start, not only those since this worker's last pull. Remember which version you last sent to this
    worker.""",
    ("update - version[worker]", "update - pushes[worker]"),
    base=_server,
    breaks=tests_of(SERVER),
    fails=["async_makes_no_worker_wait_for_another", "async_log_replays_to_the_weights"],
)

staleness_counts_a_push_itself = edit(
    SERVER,
    """You counted the update that the push itself makes. Staleness counts the updates between the pull and the push;
    the push's own update comes afterwards.""",
    ("[worker], update - version[worker]", "[worker], update + 1 - version[worker]"),
    base=_server,
    breaks=tests_of(SERVER),
    fails=[
        "async_with_one_worker_is_one_process",
        "async_makes_no_worker_wait_for_another",
        "async_log_replays_to_the_weights",
    ],
)

server_answers_everybody = edit(
    SERVER,
    """After each push you sent the new weights to all workers. The other workers did not ask for them: at their next
    pull they find old weights in their queue, and the server sends N − 1 times as much as it must. Answer only the
    worker that pushed.""",
    (
        "pushes, version = dict.fromkeys(workers, 0), dict.fromkeys(workers, 0)",
        "works = []\n    pushes, version = dict.fromkeys(workers, 0), dict.fromkeys(workers, 0)",
    ),
    (
        "if pushes[worker] < steps:\n            dist.send(weights, dst=worker)",
        "for other in workers:\n            works.append(dist.isend(weights.clone(), dst=other))",
    ),
    base=_server,
    breaks=tests_of(SERVER),
    fails=["async_makes_no_worker_wait_for_another", "async_log_replays_to_the_weights"],
)

server_takes_turns = edit(
    SERVER,
    """In asynchronous mode you received from worker 1, then 2, then 3, so all workers wait for the slowest one again.
    Receive from any source; recv returns the rank of the sender.""",
    ("worker = dist.recv(grad)", "worker = workers[update % len(workers)]\n        dist.recv(grad, src=worker)"),
    base=_server,
    breaks=tests_of(SERVER),
    fails=["async_makes_no_worker_wait_for_another"],
)

server_is_never_asynchronous = edit(
    SERVER,
    """Your `mode="async"` did the same as "sync". In asynchronous mode a push is applied when it arrives, and no worker
    waits for another.""",
    ('if mode == "sync":', "if mode:"),
    base=_server,
    breaks=tests_of(SERVER),
    fails=["async_makes_no_worker_wait_for_another", "async_log_replays_to_the_weights"],
)

server_divides_single_pushes = edit(
    SERVER,
    """In asynchronous mode you divided each gradient by the number of workers. A push is one gradient and is applied by
    itself, with the whole learning rate.""",
    ("weights -= lr * grad", "weights -= lr * grad / len(workers)"),
    base=_server,
    breaks=tests_of(SERVER),
    fails=["async_makes_no_worker_wait_for_another", "async_log_replays_to_the_weights"],
)

server_trains_what_it_was_given = edit(
    SERVER,
    """Your server updated the tensor that the caller passed in. The caller's tensor must stay as it was: train a
    copy.""",
    ("    weights = weights.clone(memory_format=torch.contiguous_format)\n", ""),
    base=_server,
    breaks=tests_of(SERVER),
)

worker_starts_with_its_own_weights = edit(
    SERVER,
    """Your worker computed its first gradient from the weights it was called with, whose numbers may be anything. Only
    the server's weights count: begin every step with a pull.""",
    (
        "return work(rank, weights, gradient, steps)",
        "pulled = torch.empty_like(weights, memory_format=torch.contiguous_format)\n"
        "        for step in range(steps):\n"
        "            dist.recv(pulled, src=0)\n"
        "            dist.send(gradient(pulled if step else weights, rank, step).contiguous(), dst=0)\n"
        "        return None",
    ),
    base=_server,
    breaks=tests_of(SERVER),
)

server_by_broadcast = edit(
    SERVER,
    """You sent the weights by a broadcast. A broadcast is a collective in which all ranks take part together, and the
    workers of an asynchronous server cannot do that. Use only sends and receives.""",
    (
        "return work(rank, weights, gradient, steps)",
        'if mode == "async":\n'
        "            return work(rank, weights, gradient, steps)\n"
        "        for step in range(steps):\n"
        "            pulled = torch.empty_like(weights, memory_format=torch.contiguous_format)\n"
        "            dist.broadcast(pulled, 0)\n"
        "            dist.send(gradient(pulled, rank, step).contiguous(), dst=0)\n"
        "        return None",
    ),
    ("for worker in workers:\n                dist.send(weights, dst=worker)", "dist.broadcast(weights, 0)"),
    base=_server,
    breaks=tests_of(SERVER),
)

server_takes_any_mode = edit(
    SERVER,
    """You accepted a mode that does not exist. Raise a ValueError that names `mode`, on every rank.""",
    (
        '    if mode not in ("sync", "async"):\n'
        '        raise ValueError(f"mode must be sync or async, got {mode!r}")\n',
        "",
    ),
    base=_server,
    breaks=tests_of(SERVER),
    fails=["server_refuses_what_cannot_work"],
)

server_does_not_mind_capitals = edit(
    SERVER,
    """You accepted "Sync". Only "sync" and "async" are modes; report any other to the caller.""",
    ('mode not in ("sync", "async")', 'mode.lower() not in ("sync", "async")'),
    base=_server,
    breaks=tests_of(SERVER),
    fails=["server_refuses_what_cannot_work"],
)
