"""Right answers to lesson 06, written differently."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: F821

from __future__ import annotations

from autograder.answers.right import answer_to

DIAGNOSE, PREFLIGHT, INDICES = "06-ex1-diagnose", "06-ex2-preflight", "06-ex3-indices-of"
SAVE, TRAIN = "06-ex4-save-load", "06-ex5-train-until-told"


@answer_to(DIAGNOSE)
def diagnose_in_three_passes():
    """Sorts all calls by time, looks for a difference first, then walks from who waits to whom it waits for."""

    def diagnose(dumps):
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
        return "hung", rank, operation


@answer_to(PREFLIGHT)
def groups_of_three_and_halves():
    """Begins with two halves of pairs, measures all nodes in both rounds, and returns a set."""

    def slow_nodes(measure, n):
        groups = [list(range(node, min(node + 2, n))) for node in range(0, n - n % 2, 2)]
        if n % 2:
            groups[-1].append(n - 1)
        took = dict(zip(map(tuple, groups), measure(groups), strict=True))
        best = min(took.values())
        fine = [group for group in took if took[group] < 1.2 * best]
        doubtful = [node for group in took if group not in fine for node in group]
        partners = [node for group in fine for node in group]
        slow = set()
        while doubtful:
            now = [[partner, doubtful.pop()] for partner in partners[: len(doubtful)]]
            slow |= {pair[1] for pair, seconds in zip(now, measure(now), strict=True) if seconds / best > 1.3}
        return slow


@answer_to(PREFLIGHT)
def longest_meets_shortest():
    """Sorts all nodes by their time and pairs the slowest with the fastest, as DLRover does."""

    def slow_nodes(measure, n):
        seconds = {}
        for first in range(0, n - 1, 2):
            seconds |= dict.fromkeys((first, first + 1))
        pairs = [[node, node + 1] for node in range(0, n - 1, 2)]
        for pair, took in zip(pairs, measure(pairs), strict=True):
            seconds |= dict.fromkeys(pair, took)
        if n % 2:
            [took] = measure([[n - 1, min(seconds, key=seconds.get)]])
            seconds[n - 1] = took
        shortest = min(seconds.values())
        order = sorted(seconds, key=seconds.get)
        again = [[order[i], order[-1 - i]] for i in range(n // 2)]
        for (_, late), took in zip(again, measure(again), strict=True):
            seconds[late] = min(seconds[late], took)
        return [node for node, took in seconds.items() if took > 1.4 * shortest]


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


@answer_to(SAVE)
def save_in_a_folder_beside():
    """Writes into a temporary folder inside the checkpoint's, which goes away with what a killed save has left."""

    def save(path, model, optimizer, losses):
        with tempfile.TemporaryDirectory(dir=Path(path).parent) as folder:
            new = Path(folder, "new")
            torch.save({"m": model.state_dict(), "o": optimizer.state_dict(), "l": losses}, new)
            os.replace(new, path)

    def load(path, model, optimizer):
        if not Path(path).is_file():
            return []
        state = torch.load(path, weights_only=True)
        model.load_state_dict(state["m"])
        optimizer.load_state_dict(state["o"])
        return state["l"]


@answer_to(TRAIN)
def train_agrees_before_each_step():
    """Asks before each step, with MAX, loads into the wrapped model's parts, and keeps its note in a dict."""

    def train_until_told(rank, world_size, model_class, data, steps, checkpoint, **options):
        note = {"told": 0}

        def handler(number, frame):
            note["told"] = 1

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
        state = {name: value.clone() for name, value in ddp.module.state_dict().items()}
        return {"state_dict": state, "losses": history, "done": not len(history) < steps}
