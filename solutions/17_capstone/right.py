"""Right answers to lesson 17, written differently."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: F821

from __future__ import annotations

from autograder.answers.right import answer_to


@answer_to("17-ex1-batches")
def batches_token_by_token():
    """Uses Python lists, a cycle from a list shuffled by another generator, and a start and an end computed in two
    places."""

    def make_corpus(seed, total_tokens):
        import random

        if not isinstance(total_tokens, int) or total_tokens <= 0 or total_tokens % 64 != 0:
            raise ValueError(f"total_tokens={total_tokens} is no positive multiple of 64")
        order = list(range(64))
        random.Random(seed).shuffle(order)
        return torch.tensor([order[i % 64] for i in range(total_tokens)], dtype=torch.int64)

    def make_batch(corpus, step, rank, world_size):
        if step <= 0:
            raise ValueError("step counts from 1")
        if rank < 0 or rank >= world_size:
            raise ValueError(f"there is no rank {rank}")
        windows_before = (step - 1) * world_size + rank
        at = [(65 * windows_before + i) % corpus.numel() for i in range(65)]
        window = corpus.tolist()
        tokens = torch.tensor([window[i] for i in at])
        return tokens[:64].reshape(4, 16).clone(), tokens[1:].reshape(4, 16).clone()


@answer_to("17-ex2-trainer")
def trainer_by_hand():
    """Broadcasts parameter by parameter, splits rows by slices, gathers the losses, updates the digest in pieces, and
    prints."""

    class Trainer:
        def __init__(self, rank, world_size, seed=0, lr=3e-3, micro_batches=1):
            if micro_batches not in (1, 2, 4):
                raise ValueError(f"micro_batches={micro_batches}")
            self.k, self.who, self.n = micro_batches, rank, world_size
            self.model = build_model(seed + rank)
            for p in self.model.parameters():
                dist.broadcast(p.data, 0)
            print("rank", rank, "is ready")
            self.corpus = make_corpus(seed, 64)
            self.optimizer = ZeroOptimizer(list(self.model.parameters()), lr=lr)

        @property
        def numel(self):
            return sum(p.numel() for p in self.model.parameters())

        def gradients(self, step):
            self.optimizer.zero_grad()
            x, y = make_batch(self.corpus, step, self.who, self.n)
            rows, own = BATCH // self.k, 0.0
            for begin in range(0, BATCH, rows):
                logits = self.model(x[begin : begin + rows])
                loss = nn.functional.cross_entropy(logits.reshape(-1, VOCAB), y[begin : begin + rows].reshape(-1))
                (loss / self.k).backward()
                own += loss.item() / self.k
            losses = [None] * self.n
            dist.all_gather_object(losses, own)
            norm = self.optimizer.clip_grad_norm_(math.inf)
            return sum(losses) / self.n, norm.item()

        def update(self, factor=1.0):
            for group in self.optimizer.param_groups:
                group["before"], group["lr"] = group["lr"], group["lr"] * factor
            self.optimizer.step()
            for group in self.optimizer.param_groups:
                group["lr"] = group.pop("before")
            digest, squares = hashlib.sha256(), 0.0
            for p in self.model.parameters():
                digest.update(p.detach().contiguous().numpy().tobytes())
                squares += p.detach().double().square().sum().item()
            return math.sqrt(squares), digest.hexdigest()


@answer_to("17-ex3-invariants")
def invariants_by_gathered_texts():
    """Sends norms as bytes in a tensor; each rank reports what it sees, and all raise the first report; the save
    compares lists."""

    def check_start(rank, world_size, step, digest, last):
        changed = torch.tensor([rank if last not in (None, digest) else world_size])
        dist.all_reduce(changed, op=dist.ReduceOp.MIN)
        if changed.item() < world_size:
            raise RuntimeError(f"memory: rank {changed.item()} does not have its parameters any more, step {step}")

    def check_step(rank, world_size, step, losses, norm, digest, state_bytes, numel, falling=True):
        from_0 = [norm, digest]
        dist.broadcast_object_list(from_0, src=0)
        same_norm = norm == from_0[0] or (math.isnan(norm) and math.isnan(from_0[0]))
        problems = [None] * world_size
        shard = math.ceil(numel / world_size)
        stuck = False
        if falling and len(losses) >= 2:
            before, now = losses[-2:]
            stuck = math.isnan(now) or math.isnan(before) or now >= before
        mine = [
            f"rank {rank} at step {step} has a loss that does not fall" if stuck else None,
            None if same_norm and digest == from_0[1] else f"rank {rank} at step {step} has other parameters",
            None if state_bytes == 12 * shard else f"rank {rank} at step {step}: {state_bytes} bytes, not {12 * shard}",
        ]
        dist.all_gather_object(problems, mine)
        for kind in (0, 1, 2):
            for problem in problems:
                if problem[kind]:
                    raise RuntimeError(problem[kind])

    def save_verified(optimizer, root, step):
        wanted = optimizer.state_dict()
        path = save_sharded(wanted, str(root), step)
        got, manifest = load_sharded(path)
        same = wanted.keys() == got.keys() and manifest["step"] == step
        for name in wanted if same else ():
            if isinstance(wanted[name], torch.Tensor):
                a, b = wanted[name], got[name]
                same = same and a.dtype == b.dtype and a.shape == b.shape and a.numpy().tobytes() == b.numpy().tobytes()
            else:
                same = same and wanted[name] == got[name]
        verdict = torch.tensor([dist.get_rank() if not same else dist.get_world_size()])
        dist.all_reduce(verdict, op=dist.ReduceOp.MIN)
        if verdict.item() < dist.get_world_size():
            raise RuntimeError(f"checkpoint of step {step} is damaged on rank {verdict.item()}")
        return {"path": Path(path), "step": int(step), "sha256": tensors_digest(got)}


@answer_to("17-ex4-train")
def train_with_a_for_loop():
    """Loops over a range of steps, hashes by itself, and checks arguments first."""

    def train(
        rank, world_size, steps, checkpoint_dir, checkpoint_step, resume_from=None, micro_batches=1, *, seed=0, lr=3e-3
    ):
        if not steps >= 1:
            raise ValueError("steps: at least one")
        trainer = Trainer(rank, world_size, micro_batches=micro_batches, lr=lr, seed=seed)
        optimizer, history, done, hashes = trainer.optimizer, History(), 0, [None]
        if resume_from:
            state, manifest = load_sharded(str(resume_from))
            optimizer.load_state_dict(state)
            done = manifest["step"]
        for step in range(done + 1, steps + 1):
            now = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in trainer.model.parameters()))
            check_start(rank, world_size, step, now.hexdigest(), hashes[-1])
            start = time.time()
            loss, grad_norm = trainer.gradients(step)
            norm, digest = trainer.update(1.0)
            hashes.append(digest)
            seconds, nbytes = max(0.0, time.time() - start), optimizer.state_bytes()
            history.append(step, loss, grad_norm, norm, digest, nbytes, seconds)
            check_step(rank, world_size, step, history.lists["losses"][-2:], norm, digest, nbytes, trainer.numel)
            if step == checkpoint_step and checkpoint_dir is not None:
                history.checkpoints.append(save_verified(optimizer, checkpoint_dir, step))
        return result_of(history, trainer.model)


@answer_to("17-ex5-verify")
def verify_by_tables():
    """Asks all ranks for a checkpoint, loads only to compare, trains in any case, collects all differences and takes
    the first."""

    def verify_resume(rank, world_size, uninterrupted, steps=20):
        mine = uninterrupted[rank]
        here = torch.tensor(len(mine["checkpoints"]))
        dist.all_reduce(here, op=dist.ReduceOp.MIN)
        if here == 0:
            return {"ok": False, "first_difference": "checkpoint"}
        entry = mine["checkpoints"][0]
        try:
            mine_state = load_sharded(entry["path"])[0]
            rest = train(rank, world_size, steps, checkpoint_dir=None, checkpoint_step=None, resume_from=entry["path"])
        except (LookupError, ValueError, RuntimeError) as error:
            return {"ok": False, "first_difference": f"checkpoint: {error!r}"}
        found = [] if tensors_digest(mine_state) == entry["sha256"] else ["sha256 of the checkpoint"]
        after = len(mine["steps"]) - len(rest["steps"])
        if [step for step in mine["steps"] if step > entry["step"]] != rest["steps"]:
            found.append("steps are others")
        else:
            columns = [(name, mine[name][after:], rest[name]) for name in LISTS if name not in ("steps", "seconds")]
            for row, step in enumerate(rest["steps"]):
                found += [f"{name}, step {step}" for name, a, b in columns if a[row] != b[row]]
            if hashlib.sha256(mine["parameters"]).digest() != hashlib.sha256(rest["parameters"]).digest():
                found.append("parameters")
        return {"ok": not found, "first_difference": found[0] if found else None}


@answer_to("17-ex6-watch")
def guard_with_a_deque():
    """Sends the clock's verdict as an object; uses a deque of losses, a median by hand, and a snapshot in a dict."""

    class Cadence:
        def __init__(self, seconds, clock=time.monotonic):
            self.seconds, self.clock = seconds, clock
            self.next = clock() + seconds

        def due(self):
            verdict = [self.clock() >= self.next if dist.get_rank() == 0 else None]
            dist.broadcast_object_list(verdict, src=0)
            if verdict[0]:
                self.next = self.clock() + self.seconds
            return verdict[0]

    class Guard:
        def __init__(self, optimizer):
            from collections import deque

            self.zero, self.window, self.saved, self.left = optimizer, deque(maxlen=5), {}, 3

        def accepts(self, step, loss):
            if loss != loss or loss in (math.inf, -math.inf):
                return False
            if self.window:
                ordered = sorted(self.window)
                half = len(ordered) // 2
                median = ordered[half] if len(ordered) % 2 else 0.5 * (ordered[half - 1] + ordered[half])
                if loss > median * 1.5:
                    return False
            self.saved = {"to": step - 1, "state": self.zero.state_dict(), "window": self.window.copy()}
            self.window.append(loss)
            return True

        def roll_back(self):
            if not self.saved:
                raise RuntimeError("rollback, but to what?")
            if not self.left:
                raise RuntimeError("a fourth rollback")
            self.left -= 1
            self.zero.load_state_dict(self.saved["state"])
            self.window = self.saved["window"].copy()
            return self.saved["to"]


@answer_to("17-ex6-watch")
def guard_over_torchs_state():
    """Keeps torch's own state and the masters, gives the optimizer copies of them, and cuts its list of losses."""

    class Cadence:
        def __init__(self, seconds, clock=time.monotonic):
            self.seconds, self.clock, self.begin = seconds, clock, clock()

        def due(self):
            now = self.clock()
            late = from_all_ranks(now - self.begin >= self.seconds)[0]
            self.begin = now if late else self.begin
            return late

    class Guard:
        def __init__(self, optimizer):
            self.optimizer, self.losses, self.kept, self.made = optimizer, [], None, 0

        def accepts(self, step, loss):
            import copy

            fine = math.isfinite(loss) and (not self.losses or loss <= 1.5 * statistics.median(self.losses[-5:]))
            if fine:
                state = self.optimizer.optimizer.state_dict()
                self.kept = copy.deepcopy((step - 1, len(self.losses), self.optimizer.master.detach(), state))
                self.losses.append(loss)
            return fine

        def roll_back(self):
            import copy

            if self.kept is None or self.made == 3:
                raise RuntimeError(f"no rollback: {self.made} were made")
            self.made += 1
            step, count, master, state = copy.deepcopy(self.kept)
            del self.losses[count:]
            self.optimizer.zero_grad()
            self.optimizer.master.data.copy_(master)
            self.optimizer.optimizer.load_state_dict(state)
            self.optimizer.gather_parameters()
            return step


@answer_to("17-ex7-watched")
def watched_with_a_queue():
    """Uses nested functions and a while over a queue of steps, handles the options in other places, and checks
    arguments first."""

    def train_watched(
        rank, world_size, steps, checkpoint_dir, checkpoint_step, resume_from=None, micro_batches=1, metrics_path=None,
        *, seed=0, lr=3e-3, guard=False, spike_step=None, spike_factor=1.0, checkpoint_seconds=None,
    ):  # fmt: skip
        if not steps >= 1:
            raise ValueError("steps: at least one")
        trainer = Trainer(rank, world_size, micro_batches=micro_batches, lr=lr, seed=seed)
        optimizer, history = trainer.optimizer, History()
        watch, cadence, pending, last = None, None, {spike_step: spike_factor}, None
        if guard:
            watch = Guard(optimizer)
        if checkpoint_seconds is not None:
            cadence = Cadence(checkpoint_seconds)
        todo = list(range(1, steps + 1))
        if resume_from:
            state, manifest = load_sharded(str(resume_from))
            optimizer.load_state_dict(state)
            del todo[: manifest["step"]]

        def note(row):
            if metrics_path is not None and rank == 0:
                append_metrics(metrics_path, row)

        while todo:
            step, start = todo.pop(0), time.time()
            check_start(rank, world_size, step, parameters_digest(trainer.model), last)
            loss, grad_norm = trainer.gradients(step)
            if watch and not watch.accepts(step, loss):
                to = watch.roll_back()
                history.forget_after(to, rank)
                history.rollbacks.append({"step": step, "to": to, "loss": loss})
                note({"event": "rollback", "step": step, "to": to, "loss": loss})
                todo, last = list(range(to + 1, steps + 1)), None
                continue
            norm, digest = trainer.update(pending.pop(step, 1.0))
            last = digest
            seconds, nbytes = max(0.0, time.time() - start), optimizer.state_bytes()
            history.append(step, loss, grad_norm, norm, digest, nbytes, seconds)
            check_step(rank, world_size, step, history.lists["losses"][-2:], norm, digest, nbytes, trainer.numel,
                       falling=spike_step is None)  # fmt: skip
            note({"step": step, "loss": loss, "grad_norm": grad_norm, "step_seconds": seconds})
            wanted = [step == checkpoint_step, cadence.due() if cadence else False]
            if any(wanted) and checkpoint_dir is not None:
                history.checkpoints.append(save_verified(optimizer, checkpoint_dir, step))
        return result_of(history, trainer.model)


@answer_to("17-ex8-faults")
def finds_by_a_sorted_list():
    """Collects all wrong entries of the run, and sorts them."""

    def find_fault(log, reference):
        from collections import Counter

        order = ["parameters_in", "batch", "gradient", "state_in", "update", "parameters_out"]
        wrong = []
        for rank, rows in enumerate(log):
            for t, row in enumerate(rows):
                for what in order:
                    if what in ("gradient", "update"):
                        ratio = row[what] / reference[rank][t][what]
                        fine = 0.999 <= ratio <= 1.001
                    elif what == "batch":
                        fine = row[what] == reference[rank][t][what]
                    elif what == "state_in":
                        fine = t == 0 or row[what] == rows[t - 1]["state_out"]
                    elif what == "parameters_in" and t > 0:
                        fine = row[what] == rows[t - 1]["parameters_out"]
                    else:
                        fine = row[what] == Counter(other[t][what] for other in log).most_common(1)[0][0]
                    if not fine:
                        wrong.append((t + 1, order.index(what), rank))
        if not wrong:
            return None
        step, place, rank = min(wrong)
        return step, rank, order[place]
