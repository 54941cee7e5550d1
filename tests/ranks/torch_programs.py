"""Programs that run in plain torch and under `ranks`, two ranks each: `run_all` says what came of each of them.

Those of DOCUMENTED use a call as its documentation in PyTorch 2.13 does; the others are usual programs, unusual
arguments, and what torch refuses. All are right on both ranks, or refused on both, so that the next one can follow.
"""

from __future__ import annotations

import contextlib
import copy
import io
import os
import pickle
import random
import re
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.checkpoint as dcp
import torch.distributed.nn.functional as dist_nn
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import _coalescing_manager
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817

DOCUMENTED, OTHERS = {}, {}


def documented(program):
    DOCUMENTED[program.__name__] = program


def other(program):
    OTHERS[program.__name__] = program


def ramp(rank, numel=4, dtype=torch.float32):
    return torch.arange(numel, dtype=dtype) + 10 * (rank + 1)


def net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def gradients(model):
    return [p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad for p in model.parameters()]


@documented
def all_reduce(rank, n):
    whole, part = ramp(rank, 2, torch.int64), torch.tensor([1 + 1j, 2 + 2j]) * (rank + 1)
    dist.all_reduce(whole, op=dist.ReduceOp.SUM)
    dist.all_reduce(part, op=dist.ReduceOp.SUM)
    return whole, part


@documented
def all_gather(rank, n):
    out, pairs = [torch.zeros(2) for _ in range(n)], [torch.zeros(2, dtype=torch.cfloat) for _ in range(n)]
    dist.all_gather(out, ramp(rank, 2))
    dist.all_gather(pairs, ramp(rank, 2).to(torch.cfloat) * 1j)
    return out, pairs


@documented
def all_gather_into_tensor(rank, n):
    joined = torch.zeros(2 * n)
    dist.all_gather_into_tensor(joined, ramp(rank, 2))
    return joined


@documented
def reduce_scatter_tensor(rank, n):
    out = torch.zeros(2)
    dist.reduce_scatter_tensor(out, ramp(rank))
    return out


@documented
def all_to_all_single(rank, n):
    out = torch.empty(4, dtype=torch.int64)
    dist.all_to_all_single(out, ramp(rank, 4, torch.int64))
    gives = [[1, 2], [3, 1]]
    uneven = torch.empty(gives[0][rank] + gives[1][rank])
    dist.all_to_all_single(uneven, ramp(rank, sum(gives[rank])), [gives[0][rank], gives[1][rank]], gives[rank])
    return out, uneven


@documented
def all_to_all(rank, n):
    out = list(torch.empty(4).chunk(n))
    dist.all_to_all(out, list(ramp(rank).chunk(n)))
    return out


@documented
def gather_and_scatter(rank, n):
    found = [torch.zeros(2) for _ in range(n)] if rank == 0 else None
    dist.gather(torch.ones(2) + rank, found, dst=0)
    got = torch.zeros(2)
    dist.scatter(got, [torch.ones(2), torch.full((2,), 5.0)] if rank == 0 else None, src=0)
    return found, got


@documented
def object_lists(rank, n):
    told, parts, gathered, all_of_them = ["a", 12, {1: 2}] if rank == 0 else [None] * 3, [None], [None] * n, [None] * n
    dist.broadcast_object_list(told, src=0, device=torch.device("cpu"))
    dist.scatter_object_list(parts, ["x", {"y": 1}] if rank == 0 else [None, None], src=0)
    dist.gather_object({"rank": rank}, gathered if rank == 0 else None, dst=0)
    dist.all_gather_object(all_of_them, ramp(rank))
    return told, parts, gathered, all_of_them


@documented
def object_lists_to_one_rank(rank, n):
    told = ["a", 12, {1: 2}] if rank == 0 else [None] * 3
    if rank == 0:
        dist.send_object_list(told, dst=1, device=torch.device("cpu"))
    else:
        dist.recv_object_list(told, src=0, device=torch.device("cpu"))
    return told


@documented
def batch_isend_irecv(rank, n):
    got = torch.zeros(2)
    send = dist.P2POp(dist.isend, ramp(rank, 2), (rank + 1) % n)
    receive = dist.P2POp(dist.irecv, got, (rank - 1 + n) % n)
    for request in dist.batch_isend_irecv([send, receive]):
        request.wait()
    return got


@documented
def monitored_barrier(rank, n):
    return dist.monitored_barrier(wait_all_ranks=True)


@documented
def subgroups(rank, n):
    mine, groups = dist.new_subgroups_by_enumeration([[0], [1]])
    x = ramp(rank)
    dist.all_reduce(x, group=mine)
    return x, len(groups), dist.get_process_group_ranks(mine), dist.get_rank(mine)


@documented
def a_work_and_its_future(rank, n):
    x = ramp(rank)
    work = dist.all_reduce(x, async_op=True)
    doubled = work.get_future().then(lambda future: [2 * t for t in future.value()])
    return isinstance(work, dist.Work), work.wait(), x, doubled.wait(), work.is_completed(), work.is_success()


@documented
def join_of_ddp(rank, n):
    model = DDP(net())
    with model.join():
        for _ in range(2 + rank):
            model(ramp(rank)[None]).sum().backward()
    return gradients(model)


@documented
def join_of_two(rank, n):
    model = DDP(net())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    with Join([model, optimizer]):
        for _ in range(2 + rank):
            model(ramp(rank)[None]).sum().backward()
            optimizer.step()
    return [p.detach() for p in model.parameters()]


@documented
def no_sync(rank, n):
    model = DDP(net())
    with model.no_sync():
        model(ramp(rank)[None]).sum().backward()
    model(ramp(rank)[None]).sum().backward()
    return gradients(model)


@documented
def a_hook_that_averages(rank, n):
    def average(group, bucket):
        sent = dist.all_reduce(bucket.buffer() / n, group=group, async_op=True)
        return sent.get_future().then(lambda future: future.value()[0])

    model = DDP(net())
    model.register_comm_hook(dist.group.WORLD, average)
    model(ramp(rank)[None]).sum().backward()
    return gradients(model)


@documented
def hooks_of_torch(rank, n):
    found = []
    for state, hook in (
        (None, default_hooks.fp16_compress_hook),
        (
            powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2),
            powerSGD_hook.powerSGD_hook,
        ),
    ):
        model = DDP(net())
        model.register_comm_hook(state, hook)
        for _ in range(3):
            model(ramp(rank)[None]).sum().backward()
        found += gradients(model)
    return found


@documented
def zero_optimizer(rank, n):
    model = DDP(net())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01)
    model(ramp(rank)[None]).sum().backward()
    optimizer.step()
    optimizer.consolidate_state_dict(to=0)
    return [p.detach() for p in model.parameters()], len(optimizer.state_dict()["state"]) if rank == 0 else None


@documented
def fsdp2(rank, n):
    model = net()
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=init_device_mesh("cpu", (n,)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(2):
        model(ramp(rank)[None]).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.full_tensor().detach() for p in model.parameters()]


@documented
def fsdp2_unshards_ahead(rank, n):
    """Without a wait of the worker's: FSDP2 waits by itself, if it is handed a Work."""
    torch.manual_seed(0)
    model = nn.Linear(700, 700, bias=False)
    fully_shard(model)
    model.unshard(async_op=True)
    ahead = model(torch.ones(1, 700))
    model.reshard()
    model.unshard(async_op=True).wait()
    return ahead.detach(), model(torch.ones(1, 700)).detach()


@documented
def dtensor(rank, n):
    mesh = init_device_mesh("cpu", (n,), mesh_dim_names=("x",))
    whole = torch.arange(12.0).reshape(4, 3)
    rows, columns = distribute_tensor(whole, mesh, [Shard(0)]), distribute_tensor(whole.t(), mesh, [Shard(1)])
    partial = DTensor.from_local(ramp(rank), mesh, [Replicate()])
    return (
        rows.to_local(),
        (columns @ rows).full_tensor(),
        rows.redistribute(mesh, [Shard(1)]).to_local(),
        partial.sum(),
    )


@documented
def tensor_parallel(rank, n):
    model = parallelize_module(net(), init_device_mesh("cpu", (n,)), {"0": ColwiseParallel(), "2": RowwiseParallel()})
    out = model(torch.ones(1, 4))
    out.sum().backward()
    return out.detach(), gradients(model)


@documented
def device_mesh(rank, n):
    mesh = init_device_mesh("cpu", (n, 1), mesh_dim_names=("dp", "tp"))
    x, y = ramp(rank), ramp(rank)
    dist.all_reduce(x, group=mesh.get_group("dp"))
    dist.all_reduce(y, group=mesh["tp"].get_group())
    return x, y, mesh.get_local_rank("dp"), mesh.get_coordinate(), mesh["dp"].size()


@documented
def checkpoints(rank, n):
    folder = shared_folder(rank)
    model = net()
    fully_shard(model)
    dcp.save({"model": model.state_dict(), "step": 7}, checkpoint_id=folder)
    other = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    fully_shard(other)
    state = {"model": other.state_dict(), "step": 0}
    dcp.load(state, checkpoint_id=folder)
    return state["step"], [t.full_tensor() for t in state["model"].values()], sorted(os.listdir(folder))


@documented
def an_asynchronous_checkpoint(rank, n):
    folder, weights = shared_folder(rank), torch.ones(1000)
    saved = dcp.async_save({"w": weights}, checkpoint_id=folder)
    weights.fill_(2.0)
    saved.result()
    dist.barrier()
    state = {"w": torch.zeros(1000)}
    dcp.load(state, checkpoint_id=folder)
    return state["w"], weights


def shared_folder(rank):
    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder, 0)
    return folder[0]


@documented
def functional_collectives(rank, n):
    group = dist.group.WORLD
    total = funcol.wait_tensor(funcol.all_reduce(ramp(rank), "sum", group))
    return (
        total,
        funcol.all_gather_tensor(ramp(rank), 0, group).sum(0),
        funcol.reduce_scatter_tensor(ramp(rank), "sum", 0, group).clone(),
    )


@documented
def autograd_through_collectives(rank, n):
    x = ramp(rank).requires_grad_()
    (dist_nn.all_reduce(x).sum() + torch.cat(dist_nn.all_gather(x * x)).sum()).backward()
    return x.grad


@other
def messages(rank, n):
    x, got, late = ramp(rank), torch.zeros(4), torch.zeros(4)
    sent, received = dist.isend(x, 1 - rank), dist.irecv(late, 1 - rank)
    both = isinstance(sent, dist.Work), isinstance(received, dist.Work)
    sent.wait(), received.wait()
    source = dist.send(x, 1) if rank == 0 else dist.recv(got)
    return both, late, got, source


@other
def whole_numbers_of_other_types(rank, n):
    found = []
    for one, zero, tag in ((np.int64(1), np.int32(0), np.uint8(3)), (torch.tensor(1), torch.tensor(0), True)):
        x = torch.zeros(1)
        dist.send(torch.ones(1), one, tag=tag) if rank == 0 else dist.recv(x, zero, tag=tag)
        y = ramp(rank)
        dist.broadcast(y, one)
        found += [x, y]
    return found


@other
def groups_of_other_types(rank, n):
    found = []
    for members in (list(np.arange(2)), np.arange(2), range(2), (1, 0), [np.int64(0), 1]):
        group, x = dist.new_group(members), ramp(rank)
        dist.all_reduce(x, group=group)
        found += [x, dist.get_process_group_ranks(group)]
    return found


@other
def keywords_in_another_order(rank, n):
    x, got = ramp(rank), torch.zeros(4)
    work = dist.isend(dst=1 - rank, tag=2, tensor=x)
    dist.recv(src=1 - rank, tensor=got, tag=2)
    work.wait()
    dist.all_reduce(op=dist.ReduceOp.MAX, tensor=x)
    return got, x


@other
def ranks_in_a_group(rank, n):
    group, x, got = dist.new_group([0, 1]), ramp(rank), torch.zeros(4)
    dist.broadcast(x, group=group, group_src=1)
    dist.send(x, group=group, group_dst=1) if rank == 0 else dist.recv(got, group=group, group_src=0)
    return x, got


@other
def a_group_without_this_rank(rank, n):
    group, x = dist.new_group([0]), ramp(rank)
    return dist.all_reduce(x, group=group), dist.all_reduce(x, group=group, async_op=True) is None, x


@other
def every_reduction(rank, n):
    found = []
    for name in ("SUM", "PRODUCT", "MIN", "MAX", "AVG"):
        x = ramp(rank)
        dist.all_reduce(x, getattr(dist.ReduceOp, name))
        found.append(x)
    for name in ("BAND", "BOR", "BXOR"):
        x = ramp(rank, dtype=torch.int32)
        dist.all_reduce(x, op=getattr(dist.ReduceOp, name))
        found.append(x)
    return found


@other
def every_dtype(rank, n):
    found = []
    for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.uint8, torch.bool, torch.complex64):
        x, out = ramp(rank).to(dtype), [torch.zeros(4).to(dtype) for _ in range(n)]
        dist.broadcast(x, 1)
        dist.all_gather(out, x)
        found += [x, *out]
    return found


@other
def everything_at_once(rank, n):
    """Asynchronous calls of each kind, waited for in another order."""
    a, b, c, d, e = ramp(rank), torch.zeros(8), torch.zeros(2), torch.zeros(4), ramp(rank)
    works = [
        dist.all_reduce(a, async_op=True),
        dist.all_gather_into_tensor(b, ramp(rank), async_op=True),
        dist.reduce_scatter_tensor(c, ramp(rank), async_op=True),
        dist.all_to_all_single(d, ramp(rank), async_op=True),
        dist.broadcast(e, 1, async_op=True),
        dist.barrier(async_op=True),
    ]
    for work in works[::-1]:
        work.wait()
    works[0].wait()
    return a, b, c, d, e, [isinstance(work, dist.Work) for work in works]


@other
def lists_asynchronously(rank, n):
    gathered, part, out = [torch.zeros(4) for _ in range(n)], torch.zeros(2), [torch.zeros(2), torch.zeros(2)]
    works = [
        dist.gather(ramp(rank), gathered if rank == 0 else None, async_op=True),
        dist.scatter(part, list(ramp(rank).chunk(n)) if rank == 0 else None, async_op=True),
        dist.all_to_all(out, list(ramp(rank).chunk(n)), async_op=True),
        dist.reduce_scatter(torch.zeros(2), list(ramp(rank).chunk(n)), async_op=True),
        dist.reduce(torch.zeros(1), 0, async_op=True),
    ]
    return [work.wait() for work in works], gathered, part, out


@other
def polled(rank, n):
    x = ramp(rank)
    work = dist.all_reduce(x, async_op=True)
    while not work.is_completed():
        pass
    return x, work.exception()


@other
def coalesced(rank, n):
    found = [ramp(rank), ramp(rank, 3)]
    dist.all_reduce_coalesced(found)
    dist.all_reduce_coalesced(found, async_op=True).wait()
    with _coalescing_manager():
        for x in found:
            dist.all_reduce(x)
    with _coalescing_manager(async_ops=True) as works:
        for x in found:
            dist.all_reduce(x, async_op=True)
    works.wait()
    return found


@other
def sparse(rank, n):
    x = torch.tensor([0.0, rank + 1.0, 0.0]).to_sparse()
    dist.all_reduce(x)
    return x.to_dense()


@other
def empty(rank, n):
    out = [torch.zeros(0) for _ in range(n)]
    dist.all_reduce(torch.ones(0)), dist.all_gather(out, torch.ones(0)), dist.broadcast(torch.ones(0), 0)
    return out


@other
def strided(rank, n):
    """What gloo makes of it: to the bit the same, although it is hardly what the worker wanted."""
    column, transposed = torch.zeros(3, 2), torch.arange(6.0).reshape(2, 3).t()
    column[:, 0] = ramp(rank, 3)
    dist.all_reduce(column[:, 0]), dist.broadcast(transposed, 1)
    shared = [torch.zeros(1)] * n
    dist.all_gather(shared, torch.tensor([rank + 1.0]))
    return column, transposed, shared


@other
def with_a_gradient(rank, n):
    x = ramp(rank).requires_grad_()
    y = (2 * x).detach()
    dist.all_reduce(y)
    return x, y, nn.Parameter(y)


@other
def a_subclass(rank, n):
    class Mine(torch.Tensor):
        pass

    x = ramp(rank).as_subclass(Mine)
    dist.all_reduce(x)
    return type(x).__name__, x.as_subclass(torch.Tensor)


@other
def compiled(rank, n):
    def step(x):
        y = x * 2
        dist.all_reduce(y)
        return y + 1

    return torch.compile(step, fullgraph=True, backend="eager")(ramp(rank))


@other
def ddp(rank, n):
    model = DDP(nn.Sequential(net(), nn.BatchNorm1d(2)), bucket_cap_mb=0.0001)
    for _ in range(3):
        model(torch.stack([ramp(rank), ramp(rank) ** 2])).square().sum().backward()
    return gradients(model), list(model.buffers())


@other
def fsdp2_with_two_dtypes(rank, n):
    model = net()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    fully_shard(model, mp_policy=policy, reshard_after_forward=False)
    for last in (False, True):
        model.set_requires_gradient_sync(last)
        model(ramp(rank)[None]).sum().backward()
    return gradients(model)


@other
def fsdp1(rank, n):
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(net(), device_id=torch.device("cpu"))
    model(ramp(rank)[None]).sum().backward()
    return gradients(model)


@other
def a_pipeline(rank, n):
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    torch.manual_seed(0)
    layer = [nn.Linear(4, 4), nn.Linear(4, 4)][rank]
    stage = PipelineStage(layer, rank, n, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=2, loss_fn=lambda a, b: ((a - b) ** 2).mean())
    schedule.step(torch.ones(4, 4)) if rank == 0 else schedule.step(target=torch.zeros(4, 4))
    return gradients(layer)


@other
def a_model_averager(rank, n):
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    layer = nn.Linear(2, 2)
    nn.init.constant_(layer.weight, float(rank))
    averager = PeriodicModelAverager(period=2)
    for _ in range(3):
        layer(torch.ones(1, 2)).sum().backward()
        averager.average_parameters(layer.parameters())
    return layer.weight.detach()


@other
def copies(rank, n):
    """What a script does with the functions: keep them, copy them, ask for their names."""
    reduce_all = dist.all_reduce
    x, buffer = ramp(rank), io.BytesIO()
    copy.deepcopy(reduce_all)(x)
    torch.save({"f": dist.barrier}, buffer)
    return x, reduce_all.__name__, reduce_all.__module__, len(buffer.getvalue()) > 0


@other
def a_caught_refusal(rank, n):
    """The calls after it must find their partners."""
    x = ramp(rank)
    for _ in range(3):
        with contextlib.suppress(TypeError):
            dist.broadcast([x], 0)
    dist.all_reduce(x)
    return x


@other
def random_numbers(rank, n):
    return torch.rand(2), np.random.rand(2), random.random()


#: What torch refuses: the class and the text of the exception must be torch's.
REFUSED = {
    "send None": lambda rank, n: dist.send(None, 1 - rank),
    "send a list": lambda rank, n: dist.isend([ramp(rank)], 1 - rank),
    "send to 1.0": lambda rank, n: dist.isend(ramp(rank), float(1 - rank)),
    "send to a text": lambda rank, n: dist.send(ramp(rank), str(1 - rank)),
    "send to nobody": lambda rank, n: dist.send(ramp(rank)),
    "send to oneself": lambda rank, n: dist.send(ramp(rank), rank),
    "send with a keyword too many": lambda rank, n: dist.send(ramp(rank), 1 - rank, color=1),
    "send without anything": lambda rank, n: dist.send(),
    "send a strided tensor": lambda rank, n: dist.send(torch.zeros(2, 2)[:, 0], 1 - rank),
    "send a sparse tensor": lambda rank, n: dist.send(ramp(rank).to_sparse(), 1 - rank),
    "receive a number": lambda rank, n: dist.recv(1.0, 1 - rank),
    "receive into numpy": lambda rank, n: dist.irecv(np.ones(3), 1 - rank),
    "reduce None": lambda rank, n: dist.all_reduce(None),
    "reduce a number": lambda rank, n: dist.all_reduce(1.0),
    "reduce numpy": lambda rank, n: dist.all_reduce(np.ones(3)),
    "reduce no gradient": lambda rank, n: dist.all_reduce(nn.Linear(1, 1).weight.grad),
    "reduce by a text": lambda rank, n: dist.all_reduce(ramp(rank), op="sum"),
    "reduce in a list of ranks": lambda rank, n: dist.all_reduce(ramp(rank), group=[0, 1]),
    "reduce without anything": lambda rank, n: dist.all_reduce(),
    "broadcast a list": lambda rank, n: dist.broadcast([ramp(rank)], 0),
    "broadcast from a text": lambda rank, n: dist.broadcast(ramp(rank), "a"),
    "broadcast from nobody": lambda rank, n: dist.broadcast(ramp(rank)),
    "broadcast from two": lambda rank, n: dist.broadcast(ramp(rank), src=0, group_src=1),
    "gather without a list": lambda rank, n: dist.gather(ramp(rank), None, dst=rank),
    "gather other dtypes": lambda rank, n: dist.all_gather([torch.zeros(4, dtype=torch.int8)] * n, ramp(rank)),
    "gather into a tensor": lambda rank, n: dist.all_gather(torch.zeros(n, 4), ramp(rank)),
    "gather into rows": lambda rank, n: dist.all_gather_into_tensor(torch.zeros(n, 2), ramp(rank, 2)),  # by gloo
    "scatter rows": lambda rank, n: dist.reduce_scatter_tensor(torch.zeros(2), ramp(rank).reshape(n, 2)),  # by gloo
    "scatter too few": lambda rank, n: dist.scatter(torch.zeros(1), [torch.zeros(1)], src=rank),
    "exchange strided tensors": lambda rank, n: dist.all_to_all_single(torch.zeros(4), torch.zeros(4, 2)[:, 0]),
    "batch of nothing": lambda rank, n: dist.batch_isend_irecv([]),
    "batch of collectives": lambda rank, n: dist.P2POp(dist.all_reduce, ramp(rank), 1 - rank),
    "group of a number": lambda rank, n: dist.new_group(5),
    "group of strangers": lambda rank, n: dist.new_group([0, 7]),
    "group of a rank twice": lambda rank, n: dist.new_group([0, 0]),
    "objects that pickle refuses": lambda rank, n: dist.all_gather_object([None] * n, lambda: None),
    "objects into too short a list": lambda rank, n: dist.gather_object(1, [], dst=rank),
}

PROGRAMS = {**DOCUMENTED, **OTHERS, **REFUSED}


def run_all(rank, n):
    """Name → what the program returned, or the class and text of its exception, as plain data."""
    found = {}
    warnings.simplefilter("ignore")
    for name, program in PROGRAMS.items():
        dist.barrier()
        torch.manual_seed(rank), np.random.seed(rank), random.seed(rank)
        try:
            found[name] = "returned", plain(program(rank, n))
        except Exception as error:
            found[name] = type(error).__name__, re.sub(r"0x[0-9a-f]+|\[F[^]]*\]", "…", str(error))
    dist.barrier()
    return found


def plain(value):
    """A value with the bytes of its tensors."""
    if isinstance(value, torch.Tensor):
        value = value.full_tensor() if isinstance(value, DTensor) else value
        return (
            str(value.dtype),
            tuple(value.shape),
            value.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes(),
        )
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    return value


def in_plain_torch(rank, n, folder):
    """A process of `torch.multiprocessing.spawn`: no `ranks` here. Write what came of the programs to `folder`."""
    if os.path.exists("/sys/class/net/lo"):
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", n), rank=rank, world_size=n)
    Path(folder, str(rank)).write_bytes(pickle.dumps(run_all(rank, n)))
    dist.barrier()
    os._exit(0)
