"""Right answers to lesson 06, written differently."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: F821

from __future__ import annotations

from autograder.answers.right import answer_to

NAME, SETUP, INDICES = "06-ex1-fresh-name", "06-ex2-setup-ddp", "06-ex3-indices-of"
SAVE, TRAIN, DIAGNOSE = "06-ex4-save-load", "06-ex5-train-until-told", "06-ex6-diagnose"


@answer_to(NAME)
def tickets_as_questions():
    """Draws its questions and names from a counter in the store, so that nothing is random, and polls throughout."""

    def fresh_name(store, rank, world_size):
        ticket = store.add("tickets", 1)
        if rank:
            store.set(f"ask/{rank}", str(ticket))
            while not store.check([f"reply/{ticket}"]):
                time.sleep(0.005)
            name = store.get(f"reply/{ticket}").decode()
            store.add(f"thanks/{name}", 1)
            return name
        while store.add(f"thanks/attempt-{ticket}", 0) < world_size - 1:
            for other in range(1, world_size):
                if store.check([f"ask/{other}"]):
                    store.set("reply/" + store.get(f"ask/{other}").decode(), f"attempt-{ticket}")
            time.sleep(0.005)
        return f"attempt-{ticket}"


@answer_to(NAME)
def the_last_rank_leads():
    """Lets the last rank choose the name, answers several questions in one text, and repeats its own."""
    import json
    import secrets

    def fresh_name(store, rank, world_size):
        me = secrets.token_hex(8)
        if rank < world_size - 1:
            store.set(f"{rank} is", me)
            while True:
                if store.check(["roll call"]):
                    call = json.loads(store.get("roll call"))
                    if me in call["present"]:
                        store.set(call["name"] + f" {rank}", "")
                        return call["name"]
                time.sleep(0.01)
        while not all(store.check([f"{me} {other}"]) for other in range(rank)):
            there = [other for other in range(rank) if store.check([f"{other} is"])]
            present = [store.get(f"{other} is").decode() for other in there]
            store.set("roll call", json.dumps({"name": me, "present": present}))
            time.sleep(0.01)
        return me


@answer_to(SETUP)
def setup_in_two_branches():
    """Asks torch's own rendezvous for the store, whoever opened it, and waits 30 s; warns on stderr."""
    import warnings

    def setup_ddp(rank, world_size):
        if dist.is_available() and dist.is_initialized():
            return None
        backend, wait = check_environment(rank, world_size), timedelta(seconds=30)
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE", "False") == "True":
            warnings.warn("under torchrun", stacklevel=2)
            store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timeout=wait)
        else:
            try:
                store = next(dist.rendezvous("env://", rank, world_size, timeout=wait))[0]
            except RuntimeError as error:
                raise RuntimeError("cannot open MASTER_PORT " + os.environ["MASTER_PORT"]) from error
        store = dist.PrefixStore("job/" + fresh_name(store, rank, world_size), store)
        dist.init_process_group(backend, None, wait, world_size, rank, store)


@answer_to(INDICES)
def indices_by_counting():
    """Counts positions of the whole run and looks each of them up."""

    def indices_of(step, rank, world_size, length, global_batch, seed):
        per_epoch = -(-length // global_batch)
        epoch = step // per_epoch
        generator = torch.Generator()
        generator.manual_seed(epoch + seed)
        order = torch.randperm(length, generator=generator)
        first = (step - epoch * per_epoch) * global_batch
        return [int(order[i]) for i in range(first + rank, min(first + global_batch, length), world_size)]


@answer_to(SAVE)
def save_as_a_list():
    """Keeps the parts in a list, flushes the file to the disk, and renames with pathlib."""

    def save(path, model, optimizer, losses):
        new = Path(path).with_name("." + Path(path).name + ".new")
        with new.open("wb") as file:
            torch.save([model.state_dict(), optimizer.state_dict(), torch.tensor(losses, dtype=torch.float64)], file)
            file.flush()
            os.fsync(file.fileno())
        new.rename(path)

    def load(path, model, optimizer):
        try:
            first, second, losses = torch.load(path, weights_only=True, map_location="cpu")
        except FileNotFoundError:
            return []
        model.load_state_dict(first)
        optimizer.load_state_dict(second)
        return losses.tolist()


@answer_to(TRAIN)
def train_agrees_before_each_step():
    """Asks before each step, with MAX, loads into the wrapped model's parts, and keeps its note in a dict."""

    def train_until_told(rank, world_size, model_class, data, steps, checkpoint, **options):
        note = {"told": 0}

        def handler(number, frame):
            note["told"] = 1

        earlier = signal.getsignal(signal.SIGTERM)
        signal.signal(signal.SIGTERM, handler)
        torch.manual_seed(options.get("seed", 0))
        ddp = DistributedDataParallel(model_class())
        sgd = torch.optim.SGD(ddp.module.parameters(), options.get("lr", 0.1), 0.9)
        history = list(load(checkpoint, ddp.module, sgd))
        for step in range(len(history), steps):
            told = torch.tensor([note["told"]])
            dist.all_reduce(told, op=dist.ReduceOp.MAX)
            if told.item():
                break
            batch, seed = options.get("global_batch", 16), options.get("seed", 0)
            history.append(one_step(ddp, sgd, data, step, batch, seed))
        if not rank:
            save(checkpoint, ddp.module, sgd, history)
        dist.all_reduce(torch.zeros(1))
        signal.signal(signal.SIGTERM, earlier)
        state = {name: value.clone() for name, value in ddp.module.state_dict().items()}
        return {"state_dict": state, "losses": history, "done": not len(history) < steps}


@answer_to(DIAGNOSE)
def diagnose_in_three_passes():
    """Sorts all calls by time, looks for a difference first, then walks from who waits to whom it waits for."""

    def diagnose(dumps, now):
        alive = {rank: dump for rank, dump in enumerate(dumps) if dump is not None}
        groups = {n: json.loads(g["ranks"]) for dump in alive.values() for n, g in dump["pg_config"].items()}
        calls = {}
        for rank, dump in alive.items():
            for call in dump["entries"]:
                key = call["process_group"][0], call["collective_seq_id"]
                calls.setdefault(key, []).append((call["time_created_ns"], rank, call))
        open_ = {key: of for key, of in calls.items() if of[0][2]["state"] in ("scheduled", "started")}
        first = sorted(open_, key=lambda key: min(open_[key])[0])
        for key in first:
            kinds = {}
            for _, rank, call in open_[key]:
                kinds.setdefault(str((call["profiling_name"], call["input_sizes"])), []).append(rank)
            lone = [who for who in kinds.values() if len(who) == 1]
            if len(kinds) == 2 and lone and len(open_[key]) > 2:
                right = next(call for _, rank, call in open_[key] if rank != lone[0][0])
                return "different", lone[0][0], (*key, right["profiling_name"])
        waits_in = {rank: key for key in first for _, rank, _ in open_[key]}
        rank = next(iter(waits_in))
        while rank in waits_in:
            key = waits_in[rank]
            rank = next(one for one in groups[key[0]] if one not in {r for _, r, _ in open_[key]})
        key = next(key for key in first if rank in groups[key[0]] and rank not in {r for _, r, _ in open_[key]})
        operation = (*key, open_[key][0][2]["profiling_name"])
        if rank not in alive:
            return "dead", rank, operation
        waited = [t - min(of)[0] for of in calls.values() for t, r, _ in of if r == rank]
        return "hung" if now - min(open_[key])[0] > 3 * max(waited, default=0) else "slow", rank, operation
