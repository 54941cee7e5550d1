"""Six faults that a training run survives, and a recorder of what each rank has before and after each part of a step.

    plants = faults.six(seed, world_size, steps)                      # six faults, another order for each seed
    log = ranks.run(faults.record, 4, (tools, seed, steps, plant))    # log[rank][step - 1] is a row
    reference = faults.alone(tools, 4, seed, steps)                   # the same, made by one process

`tools` holds what the notebook has, by name: build_model, make_corpus, make_batch, cross_entropy, ZeroOptimizer and
broadcast_parameters. A row is a dict. Its values are the first digits of SHA-256 digests (parameters_in, batch,
state_in, state_out, parameters_out) and numbers (loss, gradient, update). The reference has batch, loss, gradient and
update alone.
"""

import hashlib
import random

import torch

KINDS = ("bit", "batch", "gradient", "moments", "rate", "copy")
#: What shows each fault first.
SHOWN_BY = {
    "bit": "parameters_in",
    "batch": "batch",
    "gradient": "gradient",
    "moments": "state_in",
    "rate": "update",
    "copy": "parameters_out",
}
TOKENS, RATE = 4096, 3e-3


def six(seed, world_size, steps):
    """(kind, step, rank) of six faults, each kind once: the steps from 3 on, but not the last two."""
    draw = random.Random(seed)
    kinds = draw.sample(KINDS, len(KINDS))
    return [(kind, draw.randint(3, steps - 2), draw.randrange(world_size)) for kind in kinds]


def digest(tensors):
    """The first 12 hexadecimal digits of the SHA-256 of the tensors' bytes."""
    whole = hashlib.sha256()
    for tensor in tensors:
        whole.update(tensor.detach().contiguous().numpy().tobytes())
    return whole.hexdigest()[:12]


def state_of(optimizer):
    """The tensors of a rank's optimizer: its masters and moments."""
    state = optimizer.state_dict()
    return [state[name] for name in sorted(state) if isinstance(state[name], torch.Tensor)]


def norm_of(tensors):
    """The L2 norm of all numbers together."""
    return torch.cat([tensor.detach().double().flatten() for tensor in tensors]).norm().item()


def record(rank, world_size, tools, seed, steps, plant=None):
    """Train, with one fault if it is given, and return this rank's rows."""
    model, corpus = tools["build_model"](seed + rank), tools["make_corpus"](seed, TOKENS)
    tools["broadcast_parameters"](model)
    optimizer = tools["ZeroOptimizer"](model.parameters(), torch.optim.Adam, lr=RATE)
    group, rows = optimizer.param_groups[0], []
    for step in range(1, steps + 1):
        fault = plant[0] if plant is not None and plant[1:] == (step, rank) else None
        if fault == "bit":
            first = next(model.parameters())
            first.data.view(torch.int32).view(-1)[7] ^= 1 << 22  # one bit of one weight
        row = {"parameters_in": digest(model.parameters())}
        x, y = tools["make_batch"](corpus, step, (rank + (fault == "batch")) % world_size, world_size)
        row["batch"] = digest([x, y])
        optimizer.zero_grad()
        loss = tools["cross_entropy"](model(x), y)
        (loss * (2 if fault == "gradient" else 1)).backward()
        row |= {"loss": loss.item(), "gradient": norm_of([p.grad for p in model.parameters()])}
        if fault == "moments":
            optimizer.optimizer.state[optimizer.master]["exp_avg"].zero_()
        row["state_in"] = digest(state_of(optimizer))
        before = optimizer.master.detach().clone()
        group["lr"] = RATE * (2 if fault == "rate" else 1)
        optimizer.step()
        row |= {"update": norm_of([optimizer.master - before]), "state_out": digest(state_of(optimizer))}
        if fault == "copy":
            list(model.parameters())[-1].data.view(-1)[7] += 1e-3
        rows.append({**row, "parameters_out": digest(model.parameters())})
    return rows


def alone(tools, world_size, seed, steps):
    """The rows of one process that computes all ranks' gradients and makes the step with torch's Adam."""
    model, corpus = tools["build_model"](seed), tools["make_corpus"](seed, TOKENS)
    params, rows = list(model.parameters()), [[] for _ in range(world_size)]
    optimizer = torch.optim.Adam(params, lr=RATE)
    size = -(-sum(p.numel() for p in params) // world_size)
    for step in range(1, steps + 1):
        total = [torch.zeros_like(p) for p in params]
        for rank in range(world_size):
            x, y = tools["make_batch"](corpus, step, rank, world_size)
            loss = tools["cross_entropy"](model(x), y)
            gradients = torch.autograd.grad(loss, params)
            rows[rank].append({"batch": digest([x, y]), "loss": loss.item(), "gradient": norm_of(gradients)})
            total = [a + g / world_size for a, g in zip(total, gradients, strict=True)]
        before = torch.cat([p.detach().flatten() for p in params])
        for p, g in zip(params, total, strict=True):
            p.grad = g
        optimizer.step()
        moved = torch.cat([p.detach().flatten() for p in params]) - before
        for rank, shard in enumerate(moved.split(size)):
            rows[rank][-1]["update"] = norm_of([shard])
    return rows
