"""Right answers to lesson 17, written differently."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: F821

from __future__ import annotations

from autograder.answers.right import answer_to


@answer_to("17-ex1-faults")
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


@answer_to("17-ex2-trainer")
def trainer_by_hand():
    """Broadcasts parameter by parameter, splits rows by slices, gathers the losses, updates the digest in pieces, and
    prints."""

    class Trainer:
        def __init__(self, rank, world_size, seed=0, lr=3e-3, micro_batches=1):
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
    """Sends norms and digests as texts; each rank reports what it sees, and all raise the first report; the save
    compares lists."""

    def check_start(rank, world_size, step, digest, last):
        changed = torch.tensor([rank if last not in (None, digest) else world_size])
        dist.all_reduce(changed, op=dist.ReduceOp.MIN)
        if changed.item() < world_size:
            raise RuntimeError(f"memory: rank {changed.item()} does not have its parameters any more, step {step}")

    def check_step(rank, world_size, step, losses, norm, digest, state_bytes, numel, falling=True):
        described = [None] * world_size
        dist.all_gather_object(described, f"{float(norm).hex()} {digest}")
        most = max(described, key=described.count)
        problems = [None] * world_size
        shard = math.ceil(numel / world_size)
        stuck = False
        if falling and len(losses) >= 2:
            before, now = losses[-2:]
            stuck = math.isnan(now) or math.isnan(before) or now >= before
        mine = [
            f"rank {rank} at step {step} has a loss that does not fall" if stuck else None,
            None if described[rank] == most else f"rank {rank} at step {step} has other parameters",
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
def watch_with_a_deque():
    """Sends the clock's verdict as an object; a deviation by hand; a deque of losses, and a snapshot in a dict."""

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

    def unusual(history, value, window=128, sigmas=6.0, least=20):
        if value != value or abs(value) == math.inf:
            return True
        some = torch.tensor(history[max(0, len(history) - window) :], dtype=torch.float64)
        return len(some) >= least and bool((value - some.mean()) / some.std() > sigmas)

    class Guard:
        def __init__(self, optimizer):
            from collections import deque

            self.zero, self.window, self.saved = optimizer, deque(maxlen=5), {}

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
            self.zero.load_state_dict(self.saved["state"])
            self.window = self.saved["window"].copy()
            return self.saved["to"]


@answer_to("17-ex7-decay")
def decay_as_a_mask():
    """Walks through the parameters to find which of them reach into this rank's shard."""

    def rate(step, steps, peak, warmup):
        warm = max(min(steps - 1, round(steps * warmup)), 1)
        if step < warm:
            return peak / warm * step
        low = peak / 20
        return low + (peak - low) * math.cos(math.pi / 2 * (step - warm) / (steps - warm)) ** 2

    class DecayedOptimizer(ZeroOptimizer):
        def __init__(self, params, decay, **kwargs):
            super().__init__(params, optimizer_class=torch.optim.Adam, **kwargs)
            self.weight_decay, self.parts, begin = decay, [], -self.size * dist.get_rank()
            for p in self.params:
                first, last = max(begin, 0), min(begin + p.numel(), self.size)
                if p.ndim > 1 and first < last:
                    self.parts.append(slice(first, last))
                begin += p.numel()

        def step(self):
            for part in self.parts:
                self.master.data[part].mul_(1 - self.param_groups[0]["lr"] * self.weight_decay)
            super().step()


@answer_to("17-ex8-evaluate")
def evaluates_token_by_token():
    """Takes log-probabilities of a window's logits, and gathers the ranks' sums as objects."""

    def bits_per_byte(model, ids, nbytes, context):
        step, rank, size = context // 2, dist.get_rank(), dist.get_world_size()
        with torch.no_grad():
            nats = 0.0
            for number, begin in enumerate(range(1, len(ids), step)):
                end = min(begin + step, len(ids))
                if number % size == rank:
                    x = ids[max(begin - 1 - step, 0) : end - 1]
                    logs = model(x.unsqueeze(0)).squeeze(0).log_softmax(-1)
                    nats -= sum(logs[len(x) - (end - i), ids[i]].item() for i in range(begin, end))
        everyone = [None] * size
        dist.all_gather_object(everyone, nats)
        return sum(everyone) / math.log(2) / nbytes
