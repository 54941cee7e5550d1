"""Train a small GPT on the text of this book: predict, train on four ranks, lose one, resume, compare, sample.

    python examples/real_run/run.py --out run            # the whole story on this machine's cores
    python examples/real_run/run.py --out run --quick    # a small model and 40 steps: tests whether it still works
    torchrun --nproc-per-node 8 examples/real_run/run.py --out run     # training alone; on several nodes, and on GPUs

Under torchrun each process is one rank; those of several nodes need the same folder `--out`. A run goes on from the
newest checkpoint there, whatever number of ranks had saved it, so that `--max-restarts 3` survives as many deaths (set
TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, as lesson 06 says), and `--kill 2:24` is one: rank 2 dies, once, in step 24 or
later. The learning rate, the optimizer and the evaluation are lesson 17's solutions, the other parts come from lessons
05, 08 and 16.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import signal
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

options = argparse.ArgumentParser()
options.add_argument("--out", type=Path, default=Path("run"))
options.add_argument("--quick", action="store_true", help="a small model, for 40 steps")
options.add_argument("--kill", metavar="RANK:STEP", help="under torchrun: this rank dies once, in this step or later")
COURSE = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(COURSE), str(COURSE / "notebooks/17_capstone")]

import pieces  # noqa: E402

import ranks  # noqa: E402

LESSONS = {"__name__": "__main__"}  # so that what is defined there travels to the ranks by value
NEEDED = {"16_checkpoints": ("Loader", "checkpoints", "load_resharded"),
          "17_capstone": ("Cadence", "parameters_digest", "rate", "DecayedOptimizer", "bits_per_byte")}  # fmt: skip
for lesson, names in NEEDED.items():
    exec("\n\n".join(pieces.statements_for(COURSE / f"solutions/{lesson}/{lesson}.ipynb", names)), LESSONS)
Loader, checkpoints, load_resharded = (LESSONS[name] for name in NEEDED["16_checkpoints"])
Cadence, parameters_digest, rate, DecayedOptimizer, bits_per_byte = (LESSONS[name] for name in NEEDED["17_capstone"])

WORLD_SIZE, LONG = 4, 100_000  # ranks; seconds, more than any run takes
BETAS, STATE = (0.9, 0.95), ("master", "exp_avg", "exp_avg_sq")
HELD_OUT = ("06_launch.md", "12_tensor.md")  # every sixth chapter, chosen before any run


@dataclass(frozen=True)
class Config:
    """One run. tokens_per_step is that of all ranks and micro-batches together."""

    width: int = 128
    layers: int = 4
    steps: int = 320
    vocab: int = 1024
    context: int = 128
    batch: int = 48  # sequences per step, over all ranks
    micro_batch: int = 6  # sequences per forward pass of one rank
    lr: float = 4e-3
    warmup: float = 0.1  # part of the steps
    decay: float = 0.1
    clip: float = 1.0
    evaluate_every: int = 20
    save_seconds: float = 60.0

    @property
    def flops_per_token(self) -> float:
        """Forward and backward, attention counted causally: `machines.model.flops_per_token` for this model."""
        matrices = 12 * self.layers * self.width**2 + self.vocab * self.width
        return 6 * matrices + 6 * self.layers * self.width * self.context

    @property
    def flops_per_step(self) -> float:
        return self.batch * self.context * self.flops_per_token


SWEEP = (Config(48, 3, 200), Config(64, 3, 200), Config(96, 3, 200))  # half of the full run's FLOPs


def book(folder: Path) -> tuple[bytes, bytes]:
    """The book's pages but those held out, and those, as bytes."""
    pages = {path.name: path.read_bytes() for path in sorted(folder.rglob("*.md")) if "vendor" not in str(path)}
    return b"".join(t for n, t in pages.items() if n not in HELD_OUT), b"".join(pages[n] for n in HELD_OUT)


def train_bpe(text: bytes, vocab: int) -> list[tuple[str, str]]:
    """The merges of byte-pair encoding: (two tokens, new token), always of the pair that is most frequent.

    A token is a character, so that `str.replace` merges a pair from left to right; the first 256 are the bytes.
    """
    so_far, merges = text.decode("latin-1"), []
    for new in range(256, vocab):
        ids = np.frombuffer(so_far.encode("utf-16-le"), np.uint16).astype(np.int64)
        a, b = divmod(int(np.bincount(ids[:-1] * vocab + ids[1:]).argmax()), vocab)
        merges.append((chr(a) + chr(b), chr(new)))
        so_far = so_far.replace(*merges[-1])
    return merges


def encode(text: bytes, merges: list[tuple[str, str]]) -> torch.Tensor:
    """The text's tokens, 1-D, int64."""
    so_far = text.decode("latin-1")
    for pair, new in merges:
        so_far = so_far.replace(pair, new)
    return torch.tensor([ord(token) for token in so_far])


def decode(ids: torch.Tensor, merges: list[tuple[str, str]]) -> str:
    """The text that the tokens stand for."""
    text = "".join(map(chr, ids.tolist()))
    for pair, new in reversed(merges):
        text = text.replace(new, pair)
    return text.encode("latin-1").decode(errors="replace")


class Block(nn.Module):
    """Attention and MLP, each after a norm and with a residual connection around it: the capstone's block, wider."""

    def __init__(self, width: int):
        super().__init__()
        self.heads, self.norm1, self.norm2 = width // 32, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.fc, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attention(self, x: torch.Tensor) -> torch.Tensor:  # (B, T, C)
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # (B, T, C)
        x = x + self.proj(self.attention(self.norm1(x)))
        return x + self.out(functional.gelu(self.fc(self.norm2(x))))


class GPT(nn.Module):
    """The capstone's GPT, with sizes."""

    def __init__(self, config: Config, seed: int = 0):
        super().__init__()
        self.tokens = nn.Embedding(config.vocab, config.width)
        self.positions = nn.Embedding(config.context, config.width)
        self.blocks = nn.Sequential(*(Block(config.width) for _ in range(config.layers)))
        self.norm, self.head = nn.LayerNorm(config.width), nn.Linear(config.width, config.vocab, bias=False)
        generator = torch.Generator().manual_seed(seed)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                std = 0.02 / math.sqrt(2 * config.layers) if name.endswith(("proj.weight", "out.weight")) else 0.02
                nn.init.normal_(p, std=std, generator=generator)
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # (B, T) → (B, T, vocab)
        return self.head(self.norm(self.blocks(self.tokens(x) + self.positions.weight[: x.shape[1]])))


def loss_sum(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Nats, summed over all positions whose target is not -1."""
    return functional.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=-1, reduction="sum")


def windows(ids: torch.Tensor, samples: list[int], context: int, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets, each (len(samples), context). Each epoch cuts the text in other places."""
    starts = torch.tensor(samples, dtype=torch.int64) * context + epoch * 37 % context
    rows = ids[starts[:, None] + torch.arange(context + 1)]
    return rows[:, :-1], rows[:, 1:]


def gradients(model: nn.Module, x: torch.Tensor, y: torch.Tensor, global_count: int, micro_batch: int) -> float:
    """Backward in micro-batches, so that the mean over the ranks is the gradient of Σ loss / Σ count; own Σ loss."""
    total, starts = 0.0, range(0, len(x), micro_batch)  # none, if the batch has no sequence for this rank
    for rows, targets in [(x[i : i + micro_batch], y[i : i + micro_batch]) for i in starts]:
        loss = loss_sum(model, rows, targets)
        (loss * dist.get_world_size() / global_count).backward()
        total += loss.item()
    return total


def layout_of(optimizer: DecayedOptimizer) -> dict:
    """Which part of the flat state each rank has, as lesson 16 describes it: other numbers of ranks can load it."""
    tensors = {name: {"shape": [optimizer.numel], "cut": {"dp": 0}, "on": {}} for name in STATE}
    return {"mesh": {"dp": dist.get_world_size()}, "tensors": tensors}


def restore(optimizer: DecayedOptimizer, path: Path) -> tuple[int, dict]:
    """Load a checkpoint, of as many ranks or of others; the step after which it was saved, and the loader's place."""
    manifest = pieces.read_manifest(path)
    layout = layout_of(optimizer)
    state = pieces.together(lambda: load_resharded(path, layout, dist.get_rank()))[dist.get_rank()]
    values = {name: value for name, value in manifest["values"].items() if name not in ("layout", "loader")}
    optimizer.load_state_dict({**state, **values})
    return manifest["step"], manifest["values"]["loader"]


def train(
    rank: int, world_size: int, config: Config, texts: dict, out: Path | None, killed: tuple | None = None
) -> dict:
    """Train, from the newest checkpoint below `out` if there is one. killed: (rank, step from which on it dies)."""
    torch.set_num_threads(1)
    device = torch.get_default_device()
    with torch.device("cpu"):  # where the generator of the weights is
        model = GPT(config, seed=rank).to(device)
    pieces.broadcast_parameters(model)
    optimizer, done, place = DecayedOptimizer(model.parameters(), config.decay, lr=0.0, betas=BETAS), 0, None
    if out is not None and (saved := checkpoints(out / "checkpoints")):
        done, place = restore(optimizer, saved[-1])
    ids, held_out = (texts[name].to(device) for name in ("train", "held_out"))
    per_byte = len(ids) / texts["train_bytes"] / math.log(2)
    loader = Loader((len(ids) - config.context) // config.context, config.batch, rank, world_size, state=place)
    cadence, rows, saved_at = Cadence(config.save_seconds), [], done
    for step in range(done + 1, config.steps + 1):
        began, used = time.perf_counter(), time.process_time()
        if killed and rank == killed[0] and step >= max(killed[1], saved_at + 2) and not (out / "killed").exists():
            (out / "killed").touch()  # a step is lost, since the last checkpoint is two or more back
            os.kill(os.getpid(), signal.SIGKILL)
        epoch, dealt = loader.place["epoch"], min(config.batch, loader.samples - loader.place["position"])
        with torch.device("cpu"):
            samples = loader.next_batch()
        x, y = windows(ids, samples, config.context, epoch)
        optimizer.zero_grad()
        total = gradients(model, x, y, dealt * config.context, config.micro_batch)
        norm = optimizer.clip_grad_norm_(config.clip)
        optimizer.param_groups[0]["lr"] = rate(step, config.steps, config.lr, config.warmup)
        optimizer.step()
        sums = torch.tensor([total, time.process_time() - used], dtype=torch.float64)
        dist.all_reduce(sums)
        row = {"step": step, "loss": sums[0].item() / (dealt * config.context) * per_byte, "norm": float(norm),
               "lr": optimizer.param_groups[0]["lr"], "cpu": sums[1].item(), "seconds": time.perf_counter() - began,
               "epoch": epoch, "parameters": parameters_digest(model), "at": time.time()}  # fmt: skip
        if step % config.evaluate_every == 0 or step == config.steps:
            row["validation"] = bits_per_byte(model, held_out, texts["held_out_bytes"], config.context)
        rows.append(row)
        if out is not None and cadence.due():
            state = {name: v.cpu() if torch.is_tensor(v) else v for name, v in optimizer.state_dict().items()}
            state |= {"loader": loader.state(), "layout": layout_of(optimizer)}
            pieces.save_sharded(state, out / "checkpoints", step)
            row["saved"] = saved_at = step
        if rank == 0 and out is not None:
            with (out / "log.jsonl").open("a") as file:
                print(json.dumps(row), file=file, flush=True)
    return {"rows": rows, "state": {n: p.detach().cpu().numpy() for n, p in model.named_parameters()}}


def measured(rank: int, world_size: int, config: Config, texts: dict) -> dict:
    """FLOP/s per core of matrix multiplications and of the model, and the CPU seconds of a step's communication."""
    torch.set_num_threads(1)
    a, b = torch.randn(2, 512, 512)

    def cpu_seconds(action, times: int) -> float:
        action()
        dist.barrier()
        began = time.process_time()
        for _ in range(times):
            action()
        return (time.process_time() - began) / times

    model = GPT(config)
    x, y = windows(texts["train"], list(range(config.micro_batch)), config.context, 0)
    optimizer = DecayedOptimizer(model.parameters(), config.decay, lr=0.0, betas=BETAS)
    multiply = cpu_seconds(lambda: a @ b, 50)
    compute = cpu_seconds(lambda: loss_sum(model, x, y).backward(), 4)
    update = cpu_seconds(lambda: (optimizer.zero_grad(), optimizer.clip_grad_norm_(1.0), optimizer.step()), 4)
    return {"peak": 2 * 512**3 / multiply, "rate": x.numel() * config.flops_per_token / compute, "update": update}


def predict(config: Config, sweep: tuple[Config, ...], texts: dict) -> dict:
    """CPU seconds per step by the machine's rates, final bits per byte by small runs and a power law of their FLOPs."""
    machine = ranks.run(measured, WORLD_SIZE, (config, texts), timeout=LONG)
    rates = {key: sum(m[key] for m in machine) / WORLD_SIZE for key in ("peak", "rate", "update")}
    per_step = config.flops_per_step / rates["rate"] + WORLD_SIZE * rates["update"]
    points = []
    for small in sweep:
        small = replace(small, evaluate_every=small.steps)
        rows = ranks.run(train, WORLD_SIZE, (small, texts, None), timeout=LONG)[0]["rows"]
        points.append({**asdict(small), "flops": small.steps * small.flops_per_step, "bits": rows[-1]["validation"]})
    sys.path.append(str(COURSE / "book/figures"))
    from real_run import band  # which the chapter draws; under torchrun nothing is predicted

    low, high = band(points, config.steps * config.flops_per_step)
    return {
        **rates,
        "cpu_per_step": per_step,
        "points": points,
        "low": low,
        "high": high,
        "parameters": f"{sum(p.numel() for p in GPT(config).parameters()):,}",
    }


@torch.no_grad()
def generate(config: Config, state: dict, merges: list, prompt: bytes, count: int, temperature: float = 0.7) -> str:
    """`count` more tokens after the prompt, drawn with this temperature."""
    model, ids, generator = GPT(config), encode(prompt, merges), torch.Generator().manual_seed(1)
    model.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()})
    for _ in range(count):
        logits = model(ids[None, -config.context :])[0, -1] / temperature
        ids = torch.cat([ids, torch.multinomial(logits.softmax(0), 1, generator=generator)])
    return decode(ids, merges)


def prepared(config: Config) -> tuple[dict, list]:
    """The texts as tokens, with their numbers of bytes; and the merges."""
    text, held_out = book(COURSE / "book")
    merges = train_bpe(text, config.vocab)
    return {"train": encode(text, merges), "train_bytes": len(text),
            "held_out": encode(held_out, merges), "held_out_bytes": len(held_out)}, merges  # fmt: skip


def tell(out: Path, config: Config, sweep: tuple[Config, ...]) -> None:
    """The whole story on this machine, rank 2 being killed at 60 %."""
    torch.set_num_threads(1)  # two would wait for each other whenever other programs need the cores
    texts, merges = prepared(config)
    print(f"{texts['train_bytes']:,} bytes are {len(texts['train']):,} tokens", flush=True)
    prediction = predict(config, sweep, texts)
    (out / "prediction.json").write_text(json.dumps(prediction, indent=1))
    print(f"prediction: {config.steps * prediction['cpu_per_step']:.0f} CPU seconds, "
          f"{prediction['low']:.2f} to {prediction['high']:.2f} bits per byte", flush=True)  # fmt: skip
    try:
        ranks.run(train, WORLD_SIZE, (config, texts, out, (2, round(0.6 * config.steps))), timeout=LONG)
    except ranks.RankError as error:
        print(str(error).splitlines()[0], flush=True)
    before = {row["step"]: row for row in map(json.loads, (out / "log.jsonl").read_text().splitlines())}
    result = ranks.run(train, WORLD_SIZE, (config, texts, out), timeout=LONG)[0]
    same = [all(row[key] == before[row["step"]][key] for key in ("loss", "norm", "parameters"))
            for row in result["rows"] if row["step"] in before]  # fmt: skip
    print(f"{len(same)} steps ran twice, {sum(same)} of them alike to the last bit", flush=True)
    other, middle = out / "on_2_ranks", checkpoints(out / "checkpoints")[-2:][0]
    shutil.copytree(middle, other / "checkpoints" / middle.name)
    fewer = ranks.run(train, 2, (config, texts, other), timeout=LONG)[0]["rows"]
    apart = max(abs(a["loss"] - b["loss"]) for a, b in zip(fewer[::-1], result["rows"][::-1], strict=False))
    print(f"the last {len(fewer)} steps again on 2 ranks: losses at most {apart:.1e} bits per byte apart")
    prompts = (b"# Gradients on a ring\n\nAfter this chapter you can\n\n", b"### Exercise 1 ", b"Why does a rank wait?")
    samples = [generate(config, result["state"], merges, prompt, 160) for prompt in prompts]
    (out / "sample.txt").write_text("\n\n-----\n\n".join(samples))
    print(f"held-out text: {result['rows'][-1]['validation']:.3f} bits per byte")


def train_under_torchrun(out: Path, config: Config, kill: str | None) -> None:
    """Be one rank, on a GPU if there is one for it."""
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend)
    texts, _ = prepared(config)
    if backend == "nccl":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        torch.set_default_device("cuda")
    rank, killed = dist.get_rank(), tuple(map(int, kill.split(":"))) if kill else None
    rows = train(rank, dist.get_world_size(), config, texts, out, killed)["rows"]
    if rank == 0 and rows:
        print(f"step {rows[-1]['step']}: {rows[-1]['validation']:.3f} bits per byte of the held-out text")
    dist.destroy_process_group()


def main() -> None:
    """Train as this process's environment and its options say."""
    given = options.parse_args()
    config, sweep = Config(), SWEEP
    if given.quick:
        config = Config(width=64, layers=2, steps=40, context=64, micro_batch=6, save_seconds=0.5)
        sweep = tuple(replace(config, width=width, layers=1, steps=20) for width in (32, 64))
    given.out.mkdir(parents=True, exist_ok=True)
    if "RANK" in os.environ:
        train_under_torchrun(given.out, config, given.kill)
    else:
        tell(given.out, config, sweep)


if __name__ == "__main__":
    main()
