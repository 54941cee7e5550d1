"""What the capstone takes from the lessons before it, with whatever that needs.

Made from the solutions by `make notebooks`; not to be edited. Where each part comes from:

    05_ddp,          broadcast_parameters
    08_zero1,        ZeroOptimizer
    12_tensor,       ColumnParallelLinear, RowParallelLinear
    16_checkpoints,  CheckpointError, save_sharded, load_sharded

`own_pieces` reads the same parts from your own finished notebooks instead.
"""

# ruff: noqa: B905

import ast
import datetime
import hashlib
import json
import os
import shutil
import symtable
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

# ---- lesson 05_ddp: broadcast_parameters, and what they need ----


def broadcast_parameters(module: nn.Module, src: int = 0) -> None:
    """Copy rank `src`'s parameters and buffers of `module` to every rank, in place.

    module: the same on all ranks but for its numbers; any dtypes and shapes, contiguous.
    """
    for tensor in [*module.parameters(), *module.buffers()]:
        dist.broadcast(tensor.detach(), src)


# ---- lesson 08_zero1: ZeroOptimizer, and what they need ----


def shard_bounds(numel: int, rank: int, world_size: int) -> tuple[int, int]:
    """(start, end) of rank `rank`'s real numbers in a flat vector cut into equal shards of ⌈numel/N⌉.

    Both ends are clipped to `numel`.
    """
    size = -(-numel // world_size)  # rounded up
    return min(rank * size, numel), min((rank + 1) * size, numel)


def flatten(tensors: list[torch.Tensor]) -> torch.Tensor:
    """The numbers of all tensors end to end: 1-D, float32, fresh memory, without a gradient."""
    if not tensors:
        return torch.zeros(0)
    return torch.cat([t.detach().reshape(-1).to(torch.float32) for t in tensors])


def unflatten_into(tensors, flat):
    """Write the numbers of `flat` into the tensors, in place, rounded to their dtypes."""
    with torch.no_grad():
        for t, piece in zip(tensors, flat.split([t.numel() for t in tensors])):
            t.copy_(piece.view(t.shape))


class ShardedGradient:
    """The mean gradient of all ranks, of which each rank has one shard."""

    def __init__(self, params):
        """params: parameters, equal on all ranks; the trainable ones are kept, each once."""
        self.params = [p for p in dict.fromkeys(params) if p.requires_grad]
        self.numel = sum(p.numel() for p in self.params)
        self.size = -(-self.numel // dist.get_world_size())
        self.gradient = None

    def reduced_gradient(self) -> torch.Tensor:
        """This rank's shard of the mean gradient, float32, (⌈P/N⌉,); reduced once a step, then kept."""
        if self.gradient is None:
            world_size = dist.get_world_size()
            full = torch.zeros(self.size * world_size)
            full[: self.numel] = flatten([torch.zeros_like(p) if p.grad is None else p.grad for p in self.params])
            self.gradient = torch.empty(self.size)
            dist.reduce_scatter_single(self.gradient, full)
            self.gradient /= world_size
        return self.gradient

    def zero_grad(self) -> None:
        """Given: forget the parameters' gradients, and what was reduced of them."""
        for p in self.params:
            p.grad = None
        self.gradient = None


class ShardedOptimizer(ShardedGradient):
    """A PyTorch optimizer of which every rank holds, and steps, one shard (ZeRO stage 1)."""

    def __init__(self, params, optimizer_class=torch.optim.Adam, **kwargs):
        """params: parameters, equal on all ranks. kwargs go to `optimizer_class`."""
        super().__init__(params)
        start, end = shard_bounds(self.numel, dist.get_rank(), dist.get_world_size())
        self.master = nn.Parameter(torch.zeros(self.size))
        self.master.data[: end - start] = flatten(self.params)[start:end]
        self.optimizer = optimizer_class([self.master], **kwargs)

    @property
    def param_groups(self) -> list[dict]:
        """Dicts with the options: a rate that is changed here is used by the next step."""
        return self.optimizer.param_groups

    def step(self) -> None:
        """Reduce-scatter the gradients, step the master shard, all-gather the parameters."""
        self.master.grad = self.reduced_gradient()
        self.optimizer.step()
        self.master.grad = self.gradient = None
        self.gather_parameters()

    def gather_parameters(self) -> None:
        """Write all ranks' masters into the parameters."""
        full = torch.empty(self.size * dist.get_world_size())
        dist.all_gather_single(full, self.master.detach())
        unflatten_into(self.params, full[: self.numel])

    def state_bytes(self) -> int:
        """Bytes of the master shard and of the optimizer's state for it, without 0-dim tensors."""
        held = [self.master, *self.optimizer.state[self.master].values()]
        return sum(t.nbytes for t in held if isinstance(t, torch.Tensor) and t.dim())


class ClippingOptimizer(ShardedOptimizer):
    """A sharded optimizer that can clip the gradient by its global norm."""

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Scale the mean gradient down to norm `max_norm` where it is longer; returns its norm before."""
        gradient = self.reduced_gradient()
        norm = gradient.square().sum()
        dist.all_reduce(norm)
        norm = norm.sqrt()
        gradient *= torch.clamp(max_norm / (norm + 1e-6), max=1.0)
        return norm


class ZeroOptimizer(ClippingOptimizer):
    """A sharded optimizer whose state can be saved, a shard per rank, and restored."""

    def state_dict(self) -> dict:
        """This rank's state: copies of the unpadded 1-D shards, and plain numbers."""
        start, end = shard_bounds(self.numel, dist.get_rank(), dist.get_world_size())
        state = {"master": self.master.detach(), **self.optimizer.state[self.master]}
        saved = {"lr": self.param_groups[0]["lr"]}
        for name, value in state.items():
            if isinstance(value, torch.Tensor):
                saved[name] = value[: end - start].clone() if value.dim() else value.item()
            elif value is not None:
                saved[name] = value
        return saved

    def load_state_dict(self, state: dict) -> None:
        """Restore what `state_dict` returned and gather the parameters. ValueError for a wrong length."""
        start, end = shard_bounds(self.numel, dist.get_rank(), dist.get_world_size())
        if state["master"].shape != (end - start,):
            raise ValueError(f"master must have {end - start} numbers, got shape {tuple(state['master'].shape)}")
        restored = {name: self._restored(value) for name, value in state.items() if name != "lr"}
        self.master.data.copy_(restored.pop("master"))
        self.optimizer.state[self.master] = restored
        self.param_groups[0]["lr"] = state["lr"]
        self.gradient = None
        self.gather_parameters()

    def _restored(self, value):
        if not isinstance(value, torch.Tensor):
            return torch.tensor(float(value))  # as torch keeps its step counts
        padded = torch.zeros(self.size)
        padded[: len(value)] = value
        return padded


# ---- lesson 12_tensor: ColumnParallelLinear, RowParallelLinear, and what they need ----


class Copy(torch.autograd.Function):
    """f, where a split region begins: x forward, the sum over the ranks of the gradients backward."""

    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> torch.Tensor:
        total = grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total


class Reduce(torch.autograd.Function):
    """g, where a split region ends: the sum over the ranks of x forward, the gradient itself backward."""

    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> torch.Tensor:
        return grad


class ColumnParallelLinear(nn.Module):
    """This rank's outputs of a linear layer.

    linear: the unsplit layer, equal on all ranks. Its weight (out, in) becomes (out/N, in), its bias (out/N,).
    Source: Shoeybi et al. 2019, section 3.
    """

    def __init__(self, linear: nn.Linear):
        super().__init__()
        rank, world_size = dist.get_rank(), dist.get_world_size()
        self.weight = nn.Parameter(linear.weight.detach().chunk(world_size)[rank].clone())
        self.bias = None
        if linear.bias is not None:
            self.bias = nn.Parameter(linear.bias.detach().chunk(world_size)[rank].clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x (…, in), equal on all ranks → (…, out/N)."""
        return functional.linear(Copy.apply(x), self.weight, self.bias)


class RowParallelLinear(nn.Module):
    """A linear layer of which this rank has some inputs; the ranks' partial sums of the output are added up.

    linear: the unsplit layer, equal on all ranks. Its weight (out, in) becomes (out, in/N); its bias stays whole.
    Source: Shoeybi et al. 2019, section 3.
    """

    def __init__(self, linear: nn.Linear):
        super().__init__()
        rank, world_size = dist.get_rank(), dist.get_world_size()
        self.weight = nn.Parameter(linear.weight.detach().chunk(world_size, dim=1)[rank].clone())
        self.bias = None if linear.bias is None else nn.Parameter(linear.bias.detach().clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x (…, in/N), this rank's part → (…, out), on every rank."""
        y = Reduce.apply(functional.linear(x, self.weight))
        return y if self.bias is None else y + self.bias


# ---- lesson 16_checkpoints: CheckpointError, save_sharded, load_sharded, and what they need ----


SCHEMA = 1  # of the manifests that this code writes and reads
TEMPORARY = ".tmp_"  # begins the names of folders that are no checkpoints (yet, or any more)
KINDS = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
         torch.uint8, torch.bool)
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in KINDS}  # name in the manifest → dtype


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written, or must not be loaded. The text says what is wrong and what to do."""


def step_name(step: int) -> str:
    """The name of a step's folder."""
    return f"step_{step:08d}"


def new_manifest(step: int, values: dict, shards: list[dict]) -> dict:
    """What `manifest.json` holds; `shards` has one entry per rank, in order."""
    created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"schema": SCHEMA, "step": step, "world_size": len(shards), "created": created, "values": values,
            "shards": shards}


def write_durably(path: Path, data: bytes) -> str:
    """Write `data` into the file `path` and wait until it is on the disk. Returns its SHA-256 in hex."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return hashlib.sha256(data).hexdigest()


def write_shard(folder: Path, rank: int, tensors: dict[str, torch.Tensor]) -> dict:
    """Write a rank's 1-D tensors into one file of `folder`. Returns its entry for the manifest, plain values only."""
    data, table = bytearray(), {}
    for name, tensor in tensors.items():
        dtype = str(tensor.dtype).removeprefix("torch.")
        table[name] = {"dtype": dtype, "offset": len(data), "numel": tensor.numel()}
        data += tensor.contiguous().view(torch.uint8).numpy().tobytes()
    file = f"shard_{rank:05d}.bin"
    digest = write_durably(folder / file, data)
    return {"rank": rank, "file": file, "bytes": len(data), "sha256": digest, "tensors": table}


def read_shard(folder: Path, entry: dict) -> dict[str, torch.Tensor]:
    """The tensors of the shard that `entry` describes, verified. Raises CheckpointError that names the file."""
    path = folder / entry["file"]
    data = path.read_bytes() if path.is_file() else None
    if data is None or len(data) != entry["bytes"] or hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise CheckpointError(f"{path} is missing, cut or damaged: load another checkpoint")
    tensors = {}
    for name, place in entry["tensors"].items():
        dtype, start = DTYPES[place["dtype"]], place["offset"]
        piece = bytearray(data[start : start + place["numel"] * dtype.itemsize])
        tensors[name] = torch.frombuffer(piece, dtype=dtype) if piece else torch.empty(0, dtype=dtype)
    return tensors


def together(action, group=None) -> list:
    """Call `action()` on every rank of the group; every rank gets all results, in the order of the ranks.

    If it failed on one of them, every rank raises CheckpointError with what that rank has to say.
    """
    try:
        mine = (action(), None)
    except CheckpointError as error:
        mine = (None, str(error))
    except Exception as error:
        mine = (None, f"{type(error).__name__}: {error}")
    everyone = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, mine, group=group)
    for rank, (_, problem) in enumerate(everyone):
        if problem is not None:
            raise CheckpointError(f"rank {rank}: {problem}")
    return [result for result, _ in everyone]


def sync_folder(path: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def fresh_folder(root: Path, step: int) -> Path:
    """An empty folder in which to prepare a step's checkpoint; what killed saves left behind is removed.

    A new `root` is not fsynced into its own folder: make it before the run, or a power cut may take the first save.
    """
    root.mkdir(parents=True, exist_ok=True)
    for leftover in root.glob(TEMPORARY + "*"):
        shutil.rmtree(leftover)
    folder = root / (TEMPORARY + step_name(step))
    folder.mkdir()
    return folder


def commit(folder: Path, final: Path, manifest: dict) -> None:
    """Add the manifest and its digest to a folder of shards, and make the folder `final` by one rename."""
    digest = write_durably(folder / "manifest.json", json.dumps(manifest).encode())
    write_durably(folder / "manifest.sha256", digest.encode())
    sync_folder(folder)
    os.rename(folder, final)
    sync_folder(final.parent)


def save_sharded(state: dict, root: str | Path, step: int, group=None) -> Path:
    """Save the ranks' states as one checkpoint, each rank its own shard. Returns `root/step_…` once it is there."""
    tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
    root, rank = Path(root), dist.get_rank(group)
    final, folder = root / step_name(step), root / (TEMPORARY + step_name(step))

    def prepare():
        if final.exists():
            raise CheckpointError(f"{final} is there already: save another step, or move it away first")
        fresh_folder(root, step)

    together(prepare if rank == 0 else lambda: None, group)
    shards = together(lambda: write_shard(folder, rank, tensors), group)
    values = {name: value for name, value in state.items() if name not in tensors}
    together(lambda: commit(folder, final, new_manifest(step, values, shards)) if rank == 0 else None, group)
    return final


def read_manifest(path: str | Path) -> dict:
    """The manifest, verified without reading the shards; of another schema, nothing but `schema` is looked at."""
    path = Path(path)
    files = path / "manifest.json", path / "manifest.sha256"
    if not all(file.is_file() for file in files):
        raise CheckpointError(f"{path} has no manifest.json with its digest: it is no checkpoint; load another one")
    data, digest = (file.read_bytes() for file in files)
    if hashlib.sha256(data).hexdigest().encode() != digest.strip():
        raise CheckpointError(f"manifest.json in {path} is damaged, or its digest is: load another checkpoint")
    manifest = json.loads(data)
    if (schema := manifest.get("schema")) != SCHEMA:
        raise CheckpointError(f"{path} has schema {schema}, this is schema {SCHEMA}: load it with what wrote it")
    if [shard["rank"] for shard in manifest["shards"]] != list(range(manifest["world_size"])):
        raise CheckpointError(f"the shards of {path} are not one for each of {manifest['world_size']} ranks")
    listed = {shard["file"]: shard["bytes"] for shard in manifest["shards"]}
    there = {file.name: file.stat().st_size for file in path.iterdir() if file not in files}
    for name in sorted({*listed, *there}):
        if listed.get(name) != there.get(name):
            sizes = f"{there.get(name, 'no')} bytes instead of {listed.get(name, 'none')}"
            raise CheckpointError(f"{path / name} has {sizes}: copy it again, or load another checkpoint")
    return manifest


def load_sharded(path: str | Path) -> tuple[dict, dict]:
    """This rank's state and the manifest; CheckpointError on every rank unless all of it is right."""
    def load():
        manifest, ours = read_manifest(path), dist.get_world_size()
        if (saved := manifest["world_size"]) != ours:
            raise CheckpointError(f"{path} is of {saved} ranks, here are {ours}: use load_resharded")
        loaded.update(read_shard(Path(path), manifest["shards"][dist.get_rank()]), **manifest["values"])
        return manifest

    loaded = {}
    return loaded, together(load)[dist.get_rank()]


# ---- the same from your own notebooks ----


#: Lesson → what the capstone takes from it.
PIECES = {
    "05_ddp": ("broadcast_parameters",),
    "08_zero1": ("ZeroOptimizer",),
    "12_tensor": ("ColumnParallelLinear", "RowParallelLinear"),
    "16_checkpoints": ("CheckpointError", "save_sharded", "load_sharded"),
}


def names_defined_by(table: symtable.SymbolTable) -> set[str]:
    """The names that code defines at its top level. Assignments to global names inside functions are not found."""
    return {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported()}


def names_read_by(table: symtable.SymbolTable) -> set[str]:
    """The names that code reads from its notebook, at its top level or inside its functions."""
    top = table.get_type() == "module"
    mine = {s.get_name() for s in table.get_symbols() if s.is_referenced() and (top or s.is_global())}
    return mine.union(*(names_read_by(child) for child in table.get_children()))


def statements_for(path: Path, names: tuple[str, ...]) -> list[str]:
    """The statements of a notebook that define `names`, and those that these need in turn, in their order.

    Tests are left out. Where a name is defined twice, an answer or a setup cell counts before any other.
    Raises OSError if there is no notebook, ValueError if it lacks a name or its answer is not written.
    """
    wanted, found = ("setup", "parameters"), dict[str, tuple[int, int, str]]()
    cells = [
        cell for cell in json.loads(Path(path).read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"
    ]
    for first in (False, True):  # what is found later counts
        for place, cell in enumerate(cells):
            role, tags = cell["metadata"].get("nbgrader", {}), cell["metadata"].get("tags", [])
            if role.get("grade") or first != bool(role.get("solution") or set(tags) & set(wanted)):
                continue
            lines = "".join(cell["source"]).split("\n")
            try:
                statements = ast.parse("\n".join(lines)).body
            except SyntaxError:  # unfinished, or for IPython only
                continue
            for s in statements:
                start = min([s.lineno, *(d.lineno for d in getattr(s, "decorator_list", []))]) - 1
                text = "\n".join(one for one in lines[start : s.end_lineno] if not one.strip().startswith("### "))
                for name in names_defined_by(symtable.symtable(text, str(path), "exec")):
                    found[name] = (place, start, text)
    needed, todo = set(), list(names)
    while todo:
        name = todo.pop()
        if name in found and found[name] not in needed:
            needed.add(found[name])
            todo += names_read_by(symtable.symtable(found[name][2], name, "exec"))
        elif name in names and name not in found:
            raise ValueError(f"{name} is missing in {path}")
        if name in found and "NotImplementedError" in found[name][2]:
            raise ValueError(f"{name} in {path} is not written yet")
    return [text for _, _, text in sorted(needed)]


def own_pieces(folder: str | Path = "..") -> dict[str, object]:
    """The pieces from your own notebooks in `folder`, by name; says for each lesson whose pieces are used."""
    found: dict[str, object] = {}
    for lesson, names in PIECES.items():
        path = Path(folder, lesson, f"{lesson}.ipynb")
        space: dict[str, object] = {"__name__": "__main__"}  # as in a notebook: functions travel to ranks by value
        try:
            exec(compile("\n\n\n".join(statements_for(path, names)), str(path), "exec"), space)
        except FileNotFoundError:
            print(f"{lesson}: the reference solution's pieces, since there is no {path}")
        except Exception as problem:
            print(f"{lesson}: the reference solution's pieces, since {problem}")
        else:
            found |= {name: space[name] for name in names}
            print(f"{lesson}: your own pieces")
    return found


def with_reference(worker: Callable) -> Callable:
    """The worker with the reference pieces in its ranks, whatever its notebook defines under their names."""

    def run(rank: int, world_size: int, *args: object) -> object:
        import pieces

        for names in pieces.PIECES.values():
            worker.__globals__.update({name: getattr(pieces, name) for name in names})
        return worker(rank, world_size, *args)

    return run
