"""Right answers to lesson 06, written differently."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: F821

from __future__ import annotations

from autograder.answers.variants import variant

SETUP, CLEANUP = "06-ex1-setup-ddp", "06-ex2-cleanup-ddp"
TRAIN, LAUNCH = "06-ex3-train-ddp", "06-ex4-launch-distributed"


@variant(SETUP)
def setup_with_torchs_own_rendezvous():
    """Takes the store from torch's rendezvous, whichever process opened it, and always prefixes it; timeout 30 s."""

    def setup_ddp(rank, world_size):
        if dist.is_initialized():
            return None
        env = os.environ
        absent = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if not env.get(name)]
        if absent:
            raise ValueError("not in the environment: " + ", ".join(absent))
        for name, value in {"RANK": rank, "WORLD_SIZE": world_size}.items():
            if int(env[name]) != value:
                raise ValueError(f"this script was called for {name} {value}, the launcher says {env[name]}")
        backend = choose_backend(rank, world_size)
        wait = timedelta(seconds=30)
        try:
            store, rank, world_size = next(dist.rendezvous("env://", rank, world_size, timeout=wait))
        except RuntimeError as error:
            raise RuntimeError("cannot open MASTER_PORT " + env["MASTER_PORT"]) from error
        prefix = "attempt_" + env.get("TORCHELASTIC_RESTART_COUNT", "0")
        dist.init_process_group(
            backend, store=dist.PrefixStore(prefix, store), rank=rank, world_size=world_size, timeout=wait
        )


@variant(SETUP)
def setup_in_two_branches():
    """Leaves the plain start to env:// and makes a store of its own only under torchrun; warns on stderr."""
    import warnings

    def setup_ddp(rank, world_size):
        if dist.is_available() and dist.is_initialized():
            return
        try:
            address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
            told = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        except KeyError as error:
            raise ValueError(f"the launcher has not set {error}") from None
        if told != (rank, world_size):
            raise ValueError(f"RANK, WORLD_SIZE are {told}, expected {(rank, world_size)}")
        arguments = {"backend": choose_backend(rank, world_size), "rank": rank, "world_size": world_size}
        arguments["timeout"] = timedelta(minutes=1)
        if "TORCHELASTIC_RESTART_COUNT" in os.environ:
            warnings.warn("under torchrun", stacklevel=2)
            store = dist.TCPStore(address, port, is_master=False, timeout=timedelta(seconds=20))
            store = dist.PrefixStore(f"attempt_{int(os.environ['TORCHELASTIC_RESTART_COUNT'])}", store)
            dist.init_process_group(store=store, **arguments)
            return
        try:
            dist.init_process_group(init_method="env://", **arguments)
        except dist.DistNetworkError:
            raise RuntimeError(f"MASTER_PORT={port} is taken") from None


@variant(CLEANUP)
def cleanup_by_trying():
    """Tries to end the group, and ignores the error when there is none."""

    def cleanup_ddp():
        try:
            dist.destroy_process_group()
        except (ValueError, RuntimeError, AssertionError):
            return False
        return True


@variant(TRAIN)
def train_with_a_batch_sampler():
    """Wraps first and loads into the wrapped model, sums up with reduction="sum", and gathers the losses as objects."""
    import warnings

    def train_ddp(rank, world_size, model_class, data, epochs, *, batch_size=16, lr=0.1, seed=0, checkpoint=None):
        torch.manual_seed(seed)
        ddp = DistributedDataParallel(model_class().to(device_of_rank()), find_unused_parameters=True)
        sgd = torch.optim.SGD(ddp.parameters(), lr, 0.9)
        order = DistributedSampler(data, num_replicas=world_size, rank=rank, seed=seed)
        batches = torch.utils.data.BatchSampler(order, batch_size, drop_last=False)
        history, path = [], Path(checkpoint) if checkpoint else None
        if path and path.is_file():
            before = torch.load(path, weights_only=True, map_location="cpu")
            ddp.load_state_dict(before["ddp"])
            sgd.load_state_dict(before["sgd"])
            history = list(before["history"])
        while len(history) < epochs:
            order.set_epoch(len(history))
            mine = []
            for x, y in DataLoader(data, batch_sampler=batches):
                sgd.zero_grad(set_to_none=False)
                total = torch.nn.functional.cross_entropy(ddp(x), y, reduction="sum")
                (total / len(y)).backward()
                sgd.step()
                mine.append((float(total), y.shape[0]))
            everybody = [None] * world_size
            dist.all_gather_object(everybody, mine)
            pairs = [pair for part in everybody for pair in part]
            history.append(sum(loss for loss, _ in pairs) / sum(count for _, count in pairs))
            if rank == 0:
                print(f"[{len(history)}/{epochs}] loss={history[-1]:.6f}")
                warnings.warn("rank 0 warns on stderr", stacklevel=2)
            if rank == 0 and path:
                new = path.with_name("." + path.name + ".new")
                torch.save({"ddp": ddp.state_dict(), "sgd": sgd.state_dict(), "history": history}, new)
                new.rename(path)
        plain = {name.removeprefix("module."): tensor.cpu().clone() for name, tensor in ddp.state_dict().items()}
        return {"state_dict": plain, "losses": history}


@variant(TRAIN)
def train_with_rank_0_telling_the_sum():
    """Reduces the loss in every step, keeps the checkpoint's parts in one list, and waits at a barrier."""

    def train_ddp(rank, world_size, model_class, data, epochs, *, batch_size=16, lr=0.1, seed=0, checkpoint=None):
        torch.manual_seed(seed)
        model, start, losses = model_class(), 0, []
        optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
        if checkpoint and os.path.isfile(checkpoint):
            with open(checkpoint, "rb") as file:
                parts = torch.load(file, weights_only=True)
            start, losses = parts[0], parts[1]
            model.load_state_dict(parts[2])
            optimizer.load_state_dict(parts[3])
        wrapped = DistributedDataParallel(model)
        sampler = DistributedSampler(data, world_size, rank, True, seed)
        for epoch in range(start, epochs):
            sampler.set_epoch(epoch)
            sums = [0.0, 0]
            for x, y in DataLoader(data, batch_size=batch_size, sampler=sampler, num_workers=0):
                loss = torch.nn.CrossEntropyLoss()(wrapped(x), y)
                model.zero_grad()
                loss.backward()
                optimizer.step()
                step = torch.tensor([loss.item() * x.shape[0], x.shape[0]], dtype=torch.float64)
                dist.all_reduce(step)
                sums = [sums[0] + step[0].item(), sums[1] + int(step[1])]
            losses += [sums[0] / sums[1]]
            if rank == 0:
                print("Epoch", epoch + 1, "of", epochs, "mean loss", losses[-1])
                if checkpoint:
                    with open(str(checkpoint) + ".part", "wb") as file:
                        torch.save([epoch + 1, losses, model.state_dict(), optimizer.state_dict()], file)
                        file.flush()
                        os.fsync(file.fileno())
                    os.rename(str(checkpoint) + ".part", checkpoint)
            dist.barrier()
        state = {k: v.clone().cpu() for k, v in wrapped.module.state_dict().items()}
        return {"losses": losses, "state_dict": state}


@variant(LAUNCH)
def launch_with_a_file_store():
    """Makes the FileStore itself, calls setup_ddp, which finds a group, and returns the dict through pickle."""
    import pickle
    import tempfile
    from pathlib import Path

    def launch_distributed(world_size: int, **kwargs) -> dict:
        if world_size <= 0:
            raise ValueError(f"a world_size of {world_size} is no world")
        with tempfile.TemporaryDirectory(prefix="spawned-") as folder:
            arguments = (world_size, Path(folder), kwargs)
            mp.spawn(be_a_rank, arguments, world_size, join=True)
            return pickle.loads(Path(folder, "of-rank-0").read_bytes())

    def be_a_rank(number, world_size, folder, kwargs):
        store = dist.FileStore(str(folder / "store"), world_size)
        backend = choose_backend(number, world_size)
        dist.init_process_group(backend, store=store, rank=number, world_size=world_size)
        setup_ddp(number, world_size)
        try:
            answer = train_ddp(number, world_size, **kwargs)
            if number == 0:
                (folder / "of-rank-0").write_bytes(pickle.dumps(answer))
        finally:
            cleanup_ddp()


@variant(LAUNCH)
def launch_without_a_with():
    """Cleans up in a finally clause, and starts the processes first and joins them later."""
    import shutil
    import tempfile

    def launch_distributed(world_size, **kwargs):
        if not world_size >= 1:
            raise ValueError("world_size")
        folder = tempfile.mkdtemp()
        try:
            context = mp.spawn(
                start_rank, args=(world_size, folder, list(kwargs.items())), nprocs=world_size, join=False
            )
            while not context.join():
                pass
            return torch.load(folder + "/out.pt", weights_only=True)
        finally:
            shutil.rmtree(folder)

    def start_rank(rank, world_size, folder, items):
        dist.init_process_group("gloo", f"file://{folder}/r", timedelta(seconds=50), world_size, rank)
        out = train_ddp(rank, world_size, **dict(items))
        torch.save(out, f"{folder}/out.{rank}")
        if not rank:
            os.rename(f"{folder}/out.0", f"{folder}/out.pt")
        cleanup_ddp()
