"""Right answers to lesson 16, written differently."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: F821

from __future__ import annotations

from autograder.answers.right import answer_to


@answer_to("16-ex1-shard")
def shard_through_system_calls():
    """Writes with os.open and os.write in pieces, takes the bytes of a storage, reads into one buffer, and copies out
    of it."""

    def write_durably(path, data):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            digest, left = hashlib.sha256(), memoryview(data)
            while left:
                done = os.write(fd, left[:1000])
                digest.update(left[:done])
                left = left[done:]
            os.fsync(fd)
        finally:
            os.close(fd)
        return digest.hexdigest()

    def write_shard(folder, rank, tensors):
        print("writing shard", rank)
        entry = {"sha256": "", "tensors": {}, "bytes": 0, "file": "shard_" + str(rank).zfill(5) + ".bin", "rank": rank}
        parts = []
        for name, tensor in tensors.items():
            part = bytes(tensor.clone().untyped_storage())
            kind = next(known for known, dtype in DTYPES.items() if dtype is tensor.dtype)
            entry["tensors"][name] = {"numel": tensor.numel(), "offset": entry["bytes"], "dtype": kind}
            entry["bytes"] += len(part)
            parts.append(part)
        entry["sha256"] = write_durably(os.path.join(folder, entry["file"]), b"".join(parts))
        return entry

    def read_shard(folder, entry):
        name = entry["file"]
        try:
            with open(os.path.join(folder, name), "rb") as file:
                data = file.read()
        except OSError as error:
            raise CheckpointError(f"cannot read {name}: {error.strerror}") from error
        if hashlib.sha256(data).hexdigest() != entry["sha256"]:
            raise CheckpointError(f"{name}: the digest differs")
        if len(data) != entry["bytes"]:
            raise CheckpointError(f"{name}: the length differs")
        whole, result = torch.tensor(list(data), dtype=torch.uint8), {}
        for key, place in entry["tensors"].items():
            dtype = DTYPES[place["dtype"]]
            end = place["offset"] + place["numel"] * torch.empty(0, dtype=dtype).element_size()
            result[key] = whole[place["offset"] : end].clone().view(dtype)
        return result


@answer_to("16-ex2-save")
def saves_with_pathlib_and_a_barrier():
    """Uses Path methods, a temporary folder with another name, os.replace for the rename, and one more barrier."""

    def commit(folder, final, manifest):
        text = json.dumps(manifest, indent=2, ensure_ascii=False, sort_keys=False)
        (folder / "manifest.json").write_text(text, encoding="utf-8")
        (folder / "manifest.sha256").write_text(hashlib.sha256(text.encode()).hexdigest() + "\n")
        for name in ("manifest.json", "manifest.sha256"):
            with (folder / name).open("rb+") as file:
                os.fsync(file)
        for where in (folder, None, final.parent):
            if where is None:
                os.replace(folder, final)
            else:
                fd = os.open(where, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
                os.fsync(fd)
                os.close(fd)

    def save_sharded(state, root, step, group=None):
        mine, plain = {}, {}
        for key, value in state.items():
            (mine if torch.is_tensor(value) else plain)[key] = value
        final = Path(root) / f"step_{step:08d}"
        working = final.parent / f"{TEMPORARY}{step}.in-progress"
        first = dist.get_rank(group) == 0

        def clear():
            if os.path.lexists(final):
                raise CheckpointError(f"{final.name} has been saved already")
            final.parent.mkdir(parents=True, exist_ok=True)
            for entry in os.scandir(final.parent):
                if entry.name.startswith(TEMPORARY):
                    shutil.rmtree(entry.path)
            os.mkdir(working)

        together(lambda: first and clear(), group)
        shards = together(lambda: write_shard(working, dist.get_rank(group), mine), group)
        dist.barrier(group)
        together(lambda: first and commit(working, final, new_manifest(step, plain, shards)), group)
        return final


@answer_to("16-ex3-load")
def loads_in_two_rounds():
    """First all ranks agree on the manifest, then on the shards; the files are compared as sets of names."""

    def read_manifest(path):
        folder = os.fspath(path)
        try:
            with open(os.path.join(folder, "manifest.json"), "rb") as file:
                raw = file.read()
            with open(os.path.join(folder, "manifest.sha256")) as file:
                digest = file.read().split()
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(f"no manifest that can be read: {error}") from None
        if digest != [hashlib.sha256(raw).hexdigest()]:
            raise CheckpointError("the manifest and its digest do not fit; use another checkpoint")
        found = json.loads(raw.decode())
        if found.get("schema", None) != SCHEMA:
            raise CheckpointError(f"schema {found.get('schema')!r} is not {SCHEMA}; update this program")
        count = found["world_size"]
        if len(found["shards"]) != count or any(entry["rank"] != r for r, entry in enumerate(found["shards"])):
            raise CheckpointError("the shards are not those of all ranks")
        names = set(os.listdir(folder)) - {"manifest.json", "manifest.sha256"}
        for entry in found["shards"]:
            if entry["file"] not in names:
                raise CheckpointError(f"{entry['file']} is missing")
            if os.path.getsize(os.path.join(folder, entry["file"])) != entry["bytes"]:
                raise CheckpointError(f"{entry['file']} is cut or grown")
            names.discard(entry["file"])
        if names:
            raise CheckpointError(f"does not belong here: {', '.join(sorted(names))}")
        return found

    def load_sharded(path):
        here = dist.get_world_size()
        manifest = together(lambda: read_manifest(path))[0]
        saved = manifest["world_size"]
        if here != saved:
            raise CheckpointError(f"{saved} ranks saved this and {here} want to load it")
        entry = next(entry for entry in manifest["shards"] if entry["rank"] == dist.get_rank())
        mine = {}
        together(lambda: mine.update(read_shard(Path(path), entry)))
        return {**copy.deepcopy(manifest["values"]), **mine}, manifest


@answer_to("16-ex4-reshard")
def reshards_by_the_elements():
    """Numbers all elements of the whole and looks them up; boxes are lists, and shards are read into a dict first."""

    def box(shape, cut, mesh, rank):
        place = coordinates(mesh, rank)
        found = []
        for dimension, n in enumerate(shape):
            numbers = list(range(n))
            begin = 0
            for axis in (axis for axis in mesh if cut.get(axis) == dimension):
                k = math.ceil(len(numbers) / mesh[axis])
                begin += min(place[axis] * k, len(numbers))
                numbers = numbers[place[axis] * k :][:k]
            found.append([begin, begin + len(numbers)])
        return found

    def overlap(wanted, saved):
        ranges = []
        for one, other in zip(wanted, saved, strict=True):
            both = sorted(set(range(*one)) & set(range(*other)))
            if not both:
                return None
            ranges.append([both[0], both[-1] + 1])
        return ranges

    def load_resharded(path, layout, rank):
        manifest = read_manifest(path)
        old, mesh, shards, state = manifest["values"]["layout"], layout["mesh"], {}, {}
        for name in [name for name in layout["tensors"] if holds(layout["tensors"][name], mesh, rank)]:
            spec, was = layout["tensors"][name], old["tensors"][name]
            mine = box(spec["shape"], spec["cut"], mesh, rank)
            whole = torch.full(spec["shape"], -1)  # of each element, the rank that saved it
            for entry in manifest["shards"][::-1]:
                if name in entry["tensors"]:
                    bounds = box(was["shape"], was["cut"], old["mesh"], entry["rank"])
                    whole[tuple(slice(*pair) for pair in bounds)] = entry["rank"]
            part = whole[tuple(slice(*pair) for pair in mine)]
            if (part < 0).any():
                raise CheckpointError(f"nobody saved all of {name}")
            result = None
            for source in sorted(set(part.flatten().tolist())):
                if source not in shards:
                    shards[source] = read_shard(Path(path), manifest["shards"][source])
                bounds, piece = box(was["shape"], was["cut"], old["mesh"], source), shards[source][name]
                canvas = torch.zeros(spec["shape"], dtype=piece.dtype)
                canvas[tuple(slice(*pair) for pair in bounds)] = piece.reshape([b - a for a, b in bounds])
                canvas = canvas[tuple(slice(*pair) for pair in mine)]
                result = canvas if result is None else torch.where(part == source, canvas, result)
            state[name] = torch.empty([b - a for a, b in mine]) if result is None else result.contiguous()
        return state


@answer_to("16-ex5-interval")
def interval_by_search_and_run_by_phases():
    """Searches the minimum of E/τ by golden section; plays the run as a list of phases, each with its end."""

    def best_interval(save_seconds, mean_seconds_between_failures):
        def loss(tau):
            return math.expm1((tau + save_seconds) / mean_seconds_between_failures) / tau

        low, high, golden = 1e-6 * mean_seconds_between_failures, 2 * mean_seconds_between_failures, (5**0.5 - 1) / 2
        for _ in range(60):
            left, right = high - golden * (high - low), low + golden * (high - low)
            if loss(left) < loss(right):
                high = right
            else:
                low = left
        return (low + high) / 2

    def simulate(interval, work, save_seconds, restart_seconds, failures):
        now, kept, done, phase = 0.0, 0.0, 0.0, "train"
        ahead = sorted(failures)
        while done < work or phase != "train":
            piece = min(interval, work - kept)
            ends = now + {"train": piece, "save": save_seconds, "restart": restart_seconds}[phase]
            if ahead and ahead[0] < ends:
                now, phase, done = ahead.pop(0), "restart", kept
            elif phase == "train":
                now, done = ends, kept + piece
                phase = "save" if done < work else "train"
            else:
                now, kept, phase = ends, done, "train"
        return now


@answer_to("16-ex6-async")
def saver_with_an_executor():
    """Uses a pool of one thread for each save, and its future."""

    class AsyncSaver:
        def __init__(self):
            from concurrent.futures import ThreadPoolExecutor

            self.own = dist.new_group(ranks=list(range(dist.get_world_size())), backend="gloo")
            self.new_pool, self.future = ThreadPoolExecutor, None

        def save(self, state, root, step):
            snapshot = {}
            for name in state:
                value = state[name]
                snapshot[name] = torch.clone(value.data) if torch.is_tensor(value) else copy.deepcopy(value)
            self.wait()
            pool = self.new_pool(max_workers=1)
            self.future = pool.submit(save_sharded, snapshot, root, step, group=self.own)
            pool.shutdown(wait=False)  # the thread ends with its work

        def wait(self):
            future, self.future = self.future, None
            if future is not None:
                future.result()


@answer_to("16-ex7-loader")
def loader_that_counts_steps():
    """Keeps one number, the steps since the beginning, and keeps the order of the epoch that it is in."""

    class Loader:
        def __init__(self, samples, batch, rank, world_size, seed=0, state=None):
            self.steps, self.seed = (0, seed) if state is None else (state["steps"], state["seed"])
            self.samples, self.batch, self.mine = samples, batch, range(rank, batch, world_size)
            self.known = None, []

        def next_batch(self):
            epoch, number = divmod(self.steps, -(-self.samples // self.batch))
            if self.known[0] != epoch:
                self.known = epoch, order(self.samples, self.seed, epoch)
            self.steps += 1
            piece = self.known[1][number * self.batch :][: self.batch]
            return [piece[i] for i in self.mine if i < len(piece)]

        def state(self):
            return {"steps": self.steps, "seed": self.seed}
