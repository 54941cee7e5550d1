"""Record the profiler trace that the chapter on DistributedDataParallel reads.

    python book/traces/record.py [FILE]

Two gloo ranks on a CPU train four linear layers with torch's own wrapper, a layer a bucket. Torch's profiler watches
some steps, each by itself, and the one that the machine disturbed least is kept. The default FILE, ddp_gloo.json next
to this script, holds both ranks' events, without those that only prepare others, in the format of chrome://tracing and
https://ui.perfetto.dev.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

WIDTH, LAYERS, ROWS, WARM_UP, TRIES = 1024, 4, 256, 4, 20
#: The events that are kept begin with these.
KEPT = (
    "forward",
    "backward",
    "step",
    "aten::addmm",
    "AddmmBackward0",
    "torch::autograd::AccumulateGrad",
    "torch::distributed::reducer::mul_out",
    "c10d::allreduce_",
    "gloo:all_reduce",
    "torch.distributed.ddp.reducer::copy_bucket_to_grad",
)


def train(rank: int, folder: str) -> None:
    """In a rank: train a few steps, and write the traces of the later ones to the folder."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])
    # A layer has 4 MiB of weights and 4 KiB of biases.
    ddp = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=4)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    x = torch.randn(ROWS, WIDTH)

    def step() -> None:
        optimizer.zero_grad()
        with record_function("forward"):
            loss = ddp(x).square().mean()
        with record_function("backward"):
            loss.backward()
        with record_function("step"):
            optimizer.step()

    for _ in range(WARM_UP):
        step()
    for number in range(TRIES):
        dist.barrier()
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
            step()
        profiler.export_chrome_trace(f"{folder}/{number}-rank{rank}.json")
    dist.destroy_process_group()


def shortened(trace: dict, rank: int) -> list[dict[str, Any]]:
    """The kept events of a rank: name, ts and dur in microseconds, pid the rank, tid 0 for the thread that trains."""
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X" and event["name"].startswith(KEPT)]
    events.sort(key=lambda event: event["ts"])
    trains = next(event["tid"] for event in events if event["name"] == "forward")
    threads = [trains, *dict.fromkeys(event["tid"] for event in events if event["tid"] != trains)]
    kept = []
    for event in events:
        shape = event.get("args", {}).get("Input Dims", [[]])
        args = {"shape": shape[0]} if shape else {}
        kept.append({"name": event["name"], "ph": "X", "ts": event["ts"], "dur": event["dur"]})
        kept[-1] |= {"pid": rank, "tid": threads.index(event["tid"]), "args": args}
    return kept


def read(folder: str, number: int) -> list[dict[str, Any]]:
    """The kept events of both ranks in one of the steps."""
    traces = [json.loads(Path(folder, f"{number}-rank{rank}.json").read_text()) for rank in range(2)]
    return [event for rank, trace in enumerate(traces) for event in shortened(trace, rank)]


def ends(events: list[dict[str, Any]]) -> list[float]:
    """When each event was over, in microseconds."""
    return [event["ts"] + event["dur"] for event in events]


def main() -> None:
    """Record both ranks and write one file."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("ddp_gloo.json")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(train, (folder,), nprocs=2)
        tries = [read(folder, number) for number in range(TRIES)]
    events = min(tries, key=lambda events: max(ends(events)) - min(event["ts"] for event in events))
    begin = min(event["ts"] for event in events)
    for event in events:
        event["ts"], event["dur"] = round(event["ts"] - begin, 1), round(event["dur"], 1)
    lines = ",\n".join(json.dumps(event) for event in events)
    about = json.dumps({"torch": torch.__version__, "backend": "gloo", "device": "cpu"})
    target.write_text(f'{{"about": {about}, "traceEvents": [\n{lines}\n]}}\n')
    print(f"{target}: {len(events)} events")


if __name__ == "__main__":
    main()
