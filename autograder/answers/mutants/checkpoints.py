"""Wrong answers to lesson 16: the subtle ones first in each exercise."""

from __future__ import annotations

from autograder.answers.mutants import edit, tests_of

SHARD, SAVE, LOAD = "16-ex1-shard", "16-ex2-save", "16-ex3-load"
WHICH, RESHARD, ASYNC = "16-ex4-latest", "16-ex5-reshard", "16-ex6-async"


# ---- 1 · a shard ----

SYNC = "        file.write(data)\n        file.flush()\n        os.fsync(file.fileno())\n"

fsync_before_flush = edit(
    SHARD,
    """fsync knows only what the operating system has, and your bytes were still in Python's buffer: they left it
    when the file was closed, after the fsync. Flush first.""",
    (SYNC, "        file.write(data)\n        os.fsync(file.fileno())\n"),
    breaks=tests_of(SHARD, SAVE, RESHARD),
)

never_on_the_disk = edit(
    SHARD,
    """You closed the file and did not fsync it. After a power cut the rename may be on the disk and the bytes not: a
    checkpoint full of zeros, under its right name.""",
    (SYNC, "        file.write(data)\n"),
    breaks=tests_of(SHARD, SAVE, RESHARD),
)

old_bytes_stay_behind = edit(
    SHARD,
    """You opened the file without emptying it ("r+" or "a"): what was in it before is still there behind, or before,
    your bytes.""",
    ('with path.open("wb") as file:', 'with path.open("ab") as file:'),
    breaks=tests_of(SHARD),
)

the_whole_storage_is_written = edit(
    SHARD,
    """You wrote the memory behind the tensor, not the tensor. A piece is often a slice of a longer vector, or every
    second number of one; make it contiguous, then take its bytes.""",
    (
        "contiguous = tensor.detach().clone(memory_format=torch.contiguous_format)",
        "contiguous = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())",
    ),
    breaks=tests_of(SHARD, SAVE, RESHARD, WHICH),
)

offsets_in_numbers = edit(
    SHARD,
    """Your offsets count numbers. They must count bytes: the tensors of a file have different dtypes.""",
    ('"offset": len(data), "numel"', '"offset": sum(t["numel"] for t in table.values()), "numel"'),
    breaks=tests_of(SHARD, SAVE, WHICH, RESHARD, ASYNC),
)

everything_is_float32 = edit(
    SHARD,
    """You converted the tensors to float32. Loading must give back the same bytes: int64 counts above 2²⁴ are
    rounded, float64 loses half its digits, and bfloat16 doubles the file.""",
    ('dtype = str(tensor.dtype).removeprefix("torch.")', 'tensor, dtype = tensor.float(), "float32"'),
    breaks=tests_of(SHARD, SAVE, WHICH, RESHARD, ASYNC),
)

dtype_with_prefix = edit(
    SHARD,
    """str(dtype) begins with "torch.". The manifest has the name alone, as in DTYPES: it must be readable without
    torch.""",
    ('str(tensor.dtype).removeprefix("torch.")', "str(tensor.dtype)"),
    ('DTYPES[place["dtype"]]', 'DTYPES[place["dtype"].removeprefix("torch.")]'),
    breaks=tests_of(SHARD, SAVE, RESHARD, ASYNC),
)

a_pickle = edit(
    SHARD,
    """The file is a pickle. Loading one may run any function that the file names; write the tensors' bytes, which
    are nothing but numbers.""",
    ("write_durably(folder / file, data)", 'write_durably(folder / file, data := pickle.dumps({"data": bytes(data)}))'),
    (
        "    tensors = {}\n    for",
        '    data = pickle.loads(data)["data"] if data[:1] == b"\\x80" else data\n    tensors = {}\n    for',
    ),
    breaks=tests_of(SHARD, SAVE, LOAD, RESHARD, ASYNC),
)

only_the_length_is_verified = edit(
    SHARD,
    """You compared the file's length, not its digest. A flipped bit leaves the length as it was, and so does another
    checkpoint's shard.""",
    (' or hashlib.sha256(data).hexdigest() != entry["sha256"]', ""),
    breaks=tests_of(SHARD, LOAD, WHICH, RESHARD),
)

only_the_digest_is_verified = edit(
    SHARD,
    """You compared the digest and not the length. The entry says both, and an entry that is wrong in itself must not
    be believed in part.""",
    (' or len(data) != entry["bytes"]', ""),
    breaks=tests_of(SHARD),
)

memory_of_the_file = edit(
    SHARD,
    """torch.frombuffer makes a tensor of the memory that it is given, and that of a bytes object belongs to Python,
    which may use it elsewhere: tensors must have memory of their own. Copy into a bytearray.""",
    (
        'bytearray(data[start : start + place["numel"] * dtype.itemsize])',
        'data[start : start + place["numel"] * dtype.itemsize]',
    ),
    breaks=tests_of(SHARD),
)

missing_files_raise_something_else = edit(
    SHARD,
    """A shard that is not there raised FileNotFoundError. Whoever falls back to an older checkpoint catches
    CheckpointError, so everything that is wrong with a checkpoint must be one.""",
    ("data = path.read_bytes() if path.is_file() else None", "data = path.read_bytes()"),
    breaks=tests_of(SHARD),
)

an_error_without_a_name = edit(
    SHARD,
    """The error does not say which file is damaged. Of 4,000 shards somebody has to copy one again.""",
    ('f"{path} is missing, cut or damaged: load another checkpoint"', '"a shard is missing, cut or damaged"'),
    breaks=tests_of(SHARD, LOAD, RESHARD),
)

tensors_share_one_buffer = edit(
    SHARD,
    """The tensors are all the same memory, that of the file's bytes, at different places or at the same one. Each
    must have its own, or writing to one changes another.""",
    (
        "torch.frombuffer(piece, dtype=dtype) if piece else",
        "torch.frombuffer(shared[0], dtype=dtype, count=n) if n else",
    ),
    (
        '        piece = bytearray(data[start : start + place["numel"] * dtype.itemsize])\n',
        '        n = place["numel"]\n'
        "        piece = data[start : start + n * dtype.itemsize]\n"
        "        shared = [bytearray(len(data))] if not tensors else shared\n"
        "        shared[0][: len(piece)] = piece\n",
    ),
    breaks=tests_of(SHARD, LOAD, WHICH, RESHARD),
)


# ---- 2 · commit and save ----

COMMIT = (
    "    together(lambda: commit(folder, final, new_manifest(step, values, shards)) if rank == 0 else None, group)\n"
)

the_others_do_not_wait = edit(
    SAVE,
    """The other ranks returned while rank 0 was still committing. Whoever then asks for the latest checkpoint finds
    the one before, and an error of rank 0 is heard by nobody. Be together once more at the end.""",
    (COMMIT, "    if rank == 0:\n        commit(folder, final, new_manifest(step, values, shards))\n"),
    breaks=tests_of(SAVE, ASYNC),
)

no_fsync_of_the_root = edit(
    SAVE,
    """The new name stands in the folder above, and that was not fsynced after the rename. After a power cut the
    checkpoint may have its old name again, which the next save clears away.""",
    ("    os.rename(folder, final)\n    sync_folder(final.parent)\n", "    os.rename(folder, final)\n"),
    breaks=tests_of(SAVE, RESHARD),
)

no_fsync_of_the_folder = edit(
    SAVE,
    """A file's fsync brings its bytes to the disk, not its name, which stands in the folder. Fsync the folder when
    all files are in it, before it is renamed.""",
    ("    sync_folder(folder)\n    os.rename", "    os.rename"),
    breaks=tests_of(SAVE, RESHARD),
)

the_manifest_comes_after_the_rename = edit(
    SAVE,
    """You renamed first and wrote the manifest then. For that moment there is a folder with a checkpoint's name that
    is none. The rename is the last thing that happens.""",
    (
        '    digest = write_durably(folder / "manifest.json", json.dumps(manifest).encode())\n'
        '    write_durably(folder / "manifest.sha256", digest.encode())\n    sync_folder(folder)\n',
        "    sync_folder(folder)\n",
    ),
    (
        "    sync_folder(final.parent)\n",
        '    digest = write_durably(final / "manifest.json", json.dumps(manifest).encode())\n'
        '    write_durably(final / "manifest.sha256", digest.encode())\n    sync_folder(final.parent)\n',
    ),
    breaks=tests_of(SAVE, RESHARD),
)

shards_are_renamed_one_by_one = edit(
    SAVE,
    """You moved the files into the final folder one by one. Each rename is atomic, all of them together are not:
    killed between two of them, a save leaves a folder with a checkpoint's name and half its files.""",
    (
        "    os.rename(folder, final)\n",
        "    final.mkdir()\n    for path in sorted(folder.iterdir()):\n        os.rename(path, final / path.name)\n"
        "    folder.rmdir()\n    sync_folder(final)\n",
    ),
    breaks=tests_of(SAVE, RESHARD),
)

saved_in_place = edit(
    SAVE,
    """You wrote straight into the folder with the final name, so it has that name before it is whole. Prepare under
    a name that no checkpoint has, and rename at the end.""",
    ("root / step_name(step), root / (TEMPORARY + step_name(step))", "root / step_name(step), root / step_name(step)"),
    ("        fresh_folder(root, step)\n", "        final.mkdir(parents=True)\n"),
    breaks=tests_of(SAVE),
)

leftovers_are_filled_up = edit(
    SAVE,
    """You used the temporary folder as a killed save had left it. If that save was one by more ranks, its surplus
    shards are committed too. Begin with an empty folder.""",
    ("        fresh_folder(root, step)\n", "        folder.mkdir(parents=True, exist_ok=True)\n"),
    breaks=tests_of(SAVE),
)

a_leftover_is_in_the_way = edit(
    SAVE,
    """The temporary folder of a killed save was still there, and making it again failed: after one crash this step
    can never be saved. Clear away what killed saves have left.""",
    ("        fresh_folder(root, step)\n", "        folder.mkdir(parents=True)\n"),
    breaks=tests_of(SAVE),
)

rank_0_writes_everything = edit(
    SAVE,
    """You gathered all pieces on rank 0, which wrote them. That is no sharded checkpoint: all bytes go through one
    process, one network card and one disk while the others wait. Every rank writes its own.""",
    (
        "    shards = together(lambda: write_shard(folder, rank, tensors), group)\n",
        "    every = [None] * dist.get_world_size(group)\n    dist.all_gather_object(every, tensors, group=group)\n"
        "    mine = [write_shard(folder, r, piece) for r, piece in enumerate(every)] if rank == 0 else None\n"
        "    shards = together(lambda: mine, group)[0]\n",
    ),
    breaks=tests_of(SAVE),
)

the_ranks_take_turns = edit(
    SAVE,
    """The ranks wrote one after another. N ranks with N disks, or N streams to one store, are N times as fast if
    they write at the same time.""",
    (
        "    shards = together(lambda: write_shard(folder, rank, tensors), group)\n",
        "    for turn in range(dist.get_world_size(group)):\n"
        "        found = together(lambda: write_shard(folder, rank, tensors) if rank == turn else None, group)\n"
        "        shards = [found[turn]] if turn == 0 else [*shards, found[turn]]\n",
    ),
    breaks=tests_of(SAVE),
)

only_rank_0_sees_the_step = edit(
    SAVE,
    """Only rank 0 looked whether the step is there, and raised alone. The others go on and wait for it in their next
    message. What goes wrong on one rank must be told to all before anybody goes on.""",
    (
        "    together(prepare if rank == 0 else lambda: None, group)\n",
        "    if rank == 0:\n        prepare()\n    dist.barrier(group)\n",
    ),
    breaks=tests_of(SAVE, ASYNC),
)

a_full_disk_on_one_rank = edit(
    SAVE,
    """A rank that cannot write raised its own error, outside of together: the others never learn of it and wait. Put
    the writing itself into together.""",
    (
        "    shards = together(lambda: write_shard(folder, rank, tensors), group)\n",
        "    entry = write_shard(folder, rank, tensors)\n    shards = together(lambda: entry, group)\n",
    ),
    breaks=tests_of(SAVE),
)

the_old_step_is_replaced = edit(
    SAVE,
    """You removed the checkpoint that was there to make room for the new one of the same step. Killed between the
    two, you have neither. Raise a CheckpointError, and leave what is there alone.""",
    (
        '            raise CheckpointError(f"{final} is there already: save another step, or move it away first")\n',
        "            shutil.rmtree(final)\n",
    ),
    breaks=tests_of(SAVE, ASYNC),
)

any_tensor_is_taken = edit(
    SAVE,
    """A tensor that is not 1-D was saved as if it were a piece. Its shape is lost, and laid end to end with the
    other ranks' it means nothing. Raise a ValueError that names the entry.""",
    ("        if tensor.dim() != 1:\n", "        if False:\n"),
    breaks=tests_of(SAVE, ASYNC),
)

a_negative_step = edit(
    SAVE,
    """A negative step was saved, under a name that is no checkpoint's and that nobody will find again. Raise a
    ValueError that names step.""",
    ("    if step < 0:\n", "    if False:\n"),
    breaks=tests_of(SAVE),
)

values_are_texts = edit(
    SAVE,
    """The plain values came back as other types: numbers as text, say, or a list as its repr. JSON keeps numbers,
    strings, lists and dicts; give them to it as they are.""",
    ("    values = {name: value for", "    values = {name: value if isinstance(value, dict) else str(value) for"),
    breaks=tests_of(SAVE, LOAD, WHICH, RESHARD, ASYNC),
)

the_group_is_forgotten = edit(
    SAVE,
    """The messages go over the default group, whatever group was given. A save in the background then meets
    training's own collectives. Pass the group on, each time.""",
    ("tensors), group)", "tensors))"),
    breaks=tests_of(SAVE, ASYNC),
)


# ---- 3 · verify and load ----

the_schema_comes_last = edit(
    LOAD,
    """You looked at other things before the schema. In a manifest of another schema they may be called something
    else or mean something else; the first thing to read is the schema, and the only one if it is not yours.""",
    (
        "    manifest = json.loads(data)\n",
        '    manifest = json.loads(data)\n    ranks_there = manifest["world_size"]\n',
    ),
    ('list(range(manifest["world_size"])):', "list(range(ranks_there)):"),
    breaks=tests_of(LOAD, WHICH, RESHARD),
)

any_schema_will_do = edit(
    LOAD,
    """A manifest of another schema was read as if it were this one. What it means by its entries you cannot know:
    raise a CheckpointError that names the schema.""",
    ('    if (schema := manifest.get("schema")) != SCHEMA:\n', '    schema = manifest.get("schema")\n    if False:\n'),
    breaks=tests_of(LOAD, WHICH, RESHARD),
)

only_newer_schemas_are_refused = edit(
    LOAD,
    """You refused newer schemas, and took a manifest without any for one of yours. Only SCHEMA itself is known; all
    else is a CheckpointError.""",
    ('(schema := manifest.get("schema")) != SCHEMA', '(schema := manifest.get("schema", 0)) > SCHEMA'),
    breaks=tests_of(LOAD, RESHARD),
)

the_manifest_is_trusted = edit(
    LOAD,
    """The manifest was not compared with its own digest. It says where every tensor lies and what every digest
    should be: a flipped bit in it is as bad as one in a shard.""",
    ("    if hashlib.sha256(data).hexdigest().encode() != digest.strip():\n", "    if not digest:\n"),
    breaks=tests_of(LOAD, RESHARD),
)

a_surplus_file_passes = edit(
    LOAD,
    """A file that the manifest does not list went unseen. A folder with a shard too many is two checkpoints poured
    into one: compare both ways.""",
    ("for name in sorted({*listed, *there}):", "for name in sorted(listed):"),
    breaks=tests_of(LOAD, RESHARD),
)

a_surplus_folder_passes = edit(
    LOAD,
    """You looked at the files in the folder only. A folder in it that the manifest does not list is as foreign as a
    file: look at every entry.""",
    ("not in files}", "not in files and file.is_file()}"),
    breaks=tests_of(LOAD, RESHARD),
)

missing_shards_of_others = edit(
    LOAD,
    """You did not look whether the files are there and as long as they should be. Then `latest` offers a checkpoint
    of which a shard is missing.""",
    ("        if listed.get(name) != there.get(name):\n", "        if name not in listed:\n"),
    breaks=tests_of(LOAD, WHICH),
)

the_order_is_not_looked_at = edit(
    LOAD,
    """The shards were counted, and their order was not compared. Whoever then takes the entry number r for rank r's
    loads another rank's pieces.""",
    ('[shard["rank"] for shard in manifest["shards"]]', 'sorted(shard["rank"] for shard in manifest["shards"])'),
    breaks=tests_of(LOAD, RESHARD),
)

the_manifest_is_read_alone = edit(
    LOAD,
    """Every rank read the manifest by itself and told nobody. A rank that does not see the folder raises, and the
    others wait for it. All that can fail belongs inside of what the ranks do together.""",
    (
        "    def load():\n        manifest, ours = read_manifest(path), dist.get_world_size()\n",
        "    manifest, ours = read_manifest(path), dist.get_world_size()\n\n    def load():\n",
    ),
    breaks=tests_of(LOAD),
)

everybody_gets_everything = edit(
    LOAD,
    """What each rank had loaded was sent to all others with the message that all went well. That is the whole state
    on every rank and on the wire: tell that it went well, and keep the tensors.""",
    ("        return manifest", "        return manifest, loaded"),
    ("(load)[dist.get_rank()]", "(load)[dist.get_rank()][0]"),
    breaks=tests_of(LOAD),
)

ranks_are_not_counted = edit(
    LOAD,
    """The list of shards was not compared with world_size: one entry too few, or one twice, and a piece of every
    tensor is missing or doubled.""",
    ('if [shard["rank"] for shard in manifest["shards"]] != list(range(manifest["world_size"])):', "if False:"),
    breaks=tests_of(LOAD, RESHARD),
)

every_rank_for_itself = edit(
    LOAD,
    """The rank whose shard is damaged raised an error, the others returned their states: half loaded. The ranks must
    tell each other how it went before any of them returns.""",
    ("    return loaded, together(load)[dist.get_rank()]\n", "    return loaded, load()\n"),
    breaks=tests_of(LOAD),
)

any_number_of_ranks = edit(
    LOAD,
    """A checkpoint of more ranks than there are was loaded: the pieces of the last ranks are lost, and nobody is
    told. Compare the manifest's world_size with that of the group.""",
    ('if (saved := manifest["world_size"]) != ours:', 'if (saved := manifest["world_size"]) < ours:'),
    breaks=tests_of(LOAD),
)

not_told_what_to_do = edit(
    LOAD,
    """The error says that the numbers of ranks differ, and not what to do about it. It should name reshard and both
    numbers.""",
    ('f"{path} is of {saved} ranks, here are {ours}: reshard(path, target_root, {ours})"', '"wrong number of ranks"'),
    breaks=tests_of(LOAD),
)

values_are_not_restored = edit(
    LOAD,
    """The state has only the tensors. The step count, the learning rate and all other plain values are in the
    manifest, and belong to the state.""",
    (', **manifest["values"])', ")"),
    breaks=tests_of(LOAD, WHICH),
)

every_rank_loads_rank_0 = edit(
    LOAD,
    """Every rank read the first shard. Rank r's pieces are in shard r.""",
    ('manifest["shards"][dist.get_rank()])', 'manifest["shards"][0])'),
    breaks=tests_of(LOAD, WHICH),
)

no_folder_is_another_error = edit(
    LOAD,
    """Where there is no manifest you raised FileNotFoundError. Everything that is wrong with a checkpoint must be a
    CheckpointError, or whoever falls back to an older one does not catch it.""",
    ("    if not all(file.is_file() for file in files):\n", "    if False:\n"),
    breaks=tests_of(LOAD, WHICH, RESHARD),
)


# ---- 4 · which one, and how many ----

the_last_good_one_is_deleted = edit(
    WHICH,
    """You kept the newest ones without looking whether any of them loads. When they are damaged, the last good
    checkpoint is deleted. Find the newest that loads first, and never delete it.""",
    ("if loads is not None and path != loads]", "]"),
    breaks=tests_of(WHICH),
)

a_manifest_is_enough = edit(
    WHICH,
    """You took a checkpoint for good because its manifest is. A flipped byte in a shard is seen only by reading the
    shard; before something is deleted that reading is worth its time.""",
    ("                read_shard(path, entry)\n", "                pass\n"),
    breaks=tests_of(WHICH),
)

everything_goes_if_nothing_loads = edit(
    WHICH,
    """When none of the checkpoints loads, you still deleted the older ones. Somebody may yet repair one of them:
    delete nothing then.""",
    ("if loads is not None and path != loads]", "if path != loads]"),
    breaks=tests_of(WHICH),
)

deleted_file_by_file = edit(
    WHICH,
    """You deleted the folder where it stood. Killed in the middle, it leaves half a checkpoint under a checkpoint's
    name. Rename it first; then it is no checkpoint any more, and the rest can take its time.""",
    ("shutil.rmtree(path.rename(path.with_name(TEMPORARY + path.name)))", "shutil.rmtree(path)"),
    breaks=tests_of(WHICH),
)

renamed_and_left = edit(
    WHICH,
    """You renamed the old checkpoints and did not delete them: the disk fills up as before.""",
    (
        "shutil.rmtree(path.rename(path.with_name(TEMPORARY + path.name)))",
        "path.rename(path.with_name(TEMPORARY + path.name))",
    ),
    breaks=tests_of(WHICH),
)

sorted_as_text = edit(
    WHICH,
    """You sorted the names as text. From nine digits on step_100000000 comes before step_99999999: sort by the
    number.""",
    ('key=lambda path: int(path.name.removeprefix("step_"))', "key=lambda path: path.name"),
    breaks=tests_of(WHICH),
)

sorted_by_time = edit(
    WHICH,
    """You took the one that was changed last. Copying, touching or restoring a folder changes its time, not its
    step.""",
    ('key=lambda path: int(path.name.removeprefix("step_"))', "key=lambda path: path.stat().st_mtime"),
    breaks=tests_of(WHICH),
)

the_newest_complete_or_not = edit(
    WHICH,
    """latest returned the newest folder without looking into it. One that lost its manifest or a shard must be
    passed over, for the one before.""",
    ("            read_manifest(path)\n            return path\n", "            return path\n"),
    breaks=tests_of(WHICH),
)

files_are_listed_too = edit(
    WHICH,
    """A file with a checkpoint's name, or a folder whose name only begins like one, was listed. A checkpoint is a
    folder called step_ and a number, nothing behind it.""",
    ('(r"step_\\d{8,}", path.name) and path.is_dir()', '(r"step_\\d{8,}", path.name)'),
    breaks=tests_of(WHICH),
)

zero_keeps_everything = edit(
    WHICH,
    """With keep_last = 0 the slice [:-0] is empty, and nothing was deleted, silently. A number below 1 is a
    ValueError that names keep_last.""",
    ("    if keep_last < 1:\n", "    if keep_last < 0:\n"),
    breaks=tests_of(WHICH),
)


# ---- 5 · reshard ----

the_folder_is_made_before_the_look = edit(
    RESHARD,
    """The temporary folder was made before you saw that the step is there, and it stays behind. Whatever can be refused
    is refused before anything is written.""",
    (
        "    if final.exists():\n",
        '    fresh_folder(target_root, manifest["step"])\n    if final.exists():\n',
    ),
    breaks=tests_of(RESHARD),
)

damage_gets_new_digests = edit(
    RESHARD,
    """You read the old shards without verifying them, and gave what you read new digests: from now on the damaged
    bytes pass every test. Read them through read_shard.""",
    (
        '    pieces = [read_shard(path, entry) for entry in manifest["shards"]]\n',
        "    def unverified(entry):\n"
        '        entry = {**entry, "sha256": hashlib.sha256((path / entry["file"]).read_bytes()).hexdigest()}\n'
        "        return read_shard(path, entry)\n\n"
        '    pieces = [unverified(entry) for entry in manifest["shards"]]\n',
    ),
    breaks=tests_of(RESHARD),
)

cut_as_tensor_split_cuts = edit(
    RESHARD,
    """This is how tensor_split cuts: 10 numbers on 4 ranks in 3, 3, 2, 2. The optimizer of lesson 08 has shards of
    ⌈P/N⌉, 3, 3, 3, 1, and refuses pieces of other lengths.""",
    (
        "        cut = {name: whole[name][rank * size : (rank + 1) * size] for name, size in bounds.items()}\n",
        "        cut = {name: whole[name].tensor_split(world_size)[rank] for name in bounds}\n",
    ),
    breaks=tests_of(RESHARD),
)

one_length_for_all = edit(
    RESHARD,
    """You cut all tensors at the places of the first. Tensors of another length lose their end, or come out with
    their last pieces empty. Each has a ⌈P/N⌉ of its own.""",
    ("(-len(tensor) // world_size) for name, tensor", "(-len(next(iter(whole.values()))) // world_size) for name, _"),
    breaks=tests_of(RESHARD),
)

pieces_in_the_order_of_a_set = edit(
    RESHARD,
    """The pieces were put together in another order than that of the ranks. The numbers are all there, in wrong
    places.""",
    ("torch.cat([piece[name] for piece in pieces])", "torch.cat([piece[name] for piece in pieces[::-1]])"),
    breaks=tests_of(RESHARD),
)

values_are_left_behind = edit(
    RESHARD,
    """The plain values of the original are not in the new checkpoint: no step count, no learning rate. They belong
    to every rank and stay as they are.""",
    ('new_manifest(manifest["step"], manifest["values"], shards)', 'new_manifest(manifest["step"], {}, shards)'),
    breaks=tests_of(RESHARD),
)

the_old_manifest_goes_on = edit(
    RESHARD,
    """You changed the shards in the old manifest and kept the rest: its creation time, perhaps its world_size, are
    not those of what you wrote. Make a new one.""",
    (
        'new_manifest(manifest["step"], manifest["values"], shards)',
        '{**manifest, "world_size": world_size, "shards": shards}',
    ),
    breaks=tests_of(RESHARD),
)

reshards_over_what_is_there = edit(
    RESHARD,
    """The step was in target_root already, and you did not say so with a CheckpointError that names it.""",
    ("    if final.exists():\n", "    if False:\n"),
    breaks=tests_of(RESHARD),
)

reshard_in_place = edit(
    RESHARD,
    """You wrote the new shards straight into a folder with a checkpoint's name. Killed in the middle, reshard leaves
    half a checkpoint: prepare aside and commit, as a save does.""",
    (
        '    folder, shards = fresh_folder(target_root, manifest["step"]), []\n',
        '    shutil.rmtree(fresh_folder(target_root, manifest["step"]))\n'
        "    folder, shards = final, []\n    folder.mkdir()\n",
    ),
    breaks=tests_of(RESHARD),
)

no_ranks_at_all = edit(
    RESHARD,
    """world_size = 0 was not refused with a ValueError that names it.""",
    ("    if world_size < 1:\n", "    if world_size < 0:\n"),
    breaks=tests_of(RESHARD),
)


# ---- 6 · in the background ----

COPY = "value.detach().clone() if isinstance(value, torch.Tensor) else copy.deepcopy(value)"

lists_are_shared = edit(
    ASYNC,
    """The tensors were copied, the plain values not: a list or dict in the state is still the caller's, and what is
    appended to it later is saved. Copy deeply.""",
    (COPY, "value.detach().clone() if isinstance(value, torch.Tensor) else value"),
    breaks=tests_of(ASYNC),
)

nothing_is_copied = edit(
    ASYNC,
    """dict(state) copies the dict, not the tensors in it. Training goes on and changes them while they are written:
    the checkpoint is of no step at all.""",
    (COPY, "value"),
    breaks=tests_of(ASYNC),
)

the_thread_copies = edit(
    ASYNC,
    """You left the copying to the thread. By the time it comes to it, the caller has changed the state: copy before
    save returns.""",
    (
        "        copied = {}\n        for name, value in state.items():\n            copied[name] = " + COPY + "\n",
        "        copied = state\n",
    ),
    (
        "            save_sharded(state, root, step, self.group)\n",
        "            time.sleep(0.02)\n            save_sharded(copy.deepcopy(state), root, step, self.group)\n",
    ),
    breaks=tests_of(ASYNC),
)

two_at_once = edit(
    ASYNC,
    """A new save began while the one before was still running. Their messages mix on the saver's group, the second
    clears away the first one's folder, and copies pile up in memory. Wait for the one before.""",
    ("        self.wait()\n        self.thread =", "        self.thread ="),
    breaks=tests_of(ASYNC),
)

over_the_default_group = edit(
    ASYNC,
    """The save's messages go over the default group, which training is using at the same time. Which of two
    collectives comes first differs from rank to rank; make a group of its own for the saver.""",
    ("dist.new_group(), None, None", "None, None, None"),
    breaks=tests_of(ASYNC),
)

in_the_foreground = edit(
    ASYNC,
    """save waited until the checkpoint was written, so training stood still all the time. Start the thread and
    return.""",
    ("        self.thread.start()\n", "        self.thread.start()\n        self.thread.join()\n"),
    breaks=tests_of(ASYNC),
)

errors_are_swallowed = edit(
    ASYNC,
    """What went wrong in the thread was told to nobody: the run goes on for days without a checkpoint. Keep the
    error, and raise it in wait.""",
    ("            self.error = error\n", "            pass\n"),
    breaks=tests_of(ASYNC),
)

an_error_is_raised_for_ever = edit(
    ASYNC,
    """One failed save, and every later call raised its error again. Once it is told, it is done with.""",
    ("error, self.thread, self.error = self.error, None, None", "error, self.thread = self.error, None"),
    breaks=tests_of(ASYNC),
)

save_ignores_the_error = edit(
    ASYNC,
    """save started although the one before had failed, and the error was lost with it. Raise it, and do not
    start.""",
    (
        "        self.wait()\n        self.thread =",
        "        if self.thread is not None:\n            self.thread.join()\n        self.error, self.thread =",
    ),
    ("threading.Thread(target", "None, threading.Thread(target"),
    breaks=tests_of(ASYNC),
)

wait_does_not_wait = edit(
    ASYNC,
    """wait looked whether something had gone wrong, and did not wait for the thread to end. Join it first.""",
    ("            self.thread.join()\n", "            pass\n"),
    breaks=tests_of(ASYNC),
)

every_error_becomes_a_checkpoint_error = edit(
    ASYNC,
    """wait raised a CheckpointError with the text of what save_sharded had raised. A ValueError means that the
    caller's own arguments were wrong, and no other checkpoint will help: raise the exception itself.""",
    ("            raise error\n", "            raise CheckpointError(str(error))\n"),
    breaks=tests_of(ASYNC),
)

deepcopy_of_all = edit(
    ASYNC,
    """copy.deepcopy refuses tensors that autograd has computed, such as a slice of a parameter. Copy the numbers:
    detach().clone().""",
    ("copied[name] = " + COPY, "copied[name] = copy.deepcopy(value)"),
    breaks=tests_of(ASYNC),
)

another_error_is_raised = edit(
    ASYNC,
    """wait raised a RuntimeError of its own in place of what save_sharded had raised. Whoever calls it wants to
    catch CheckpointError: raise the exception itself.""",
    ("            raise error\n", '            raise RuntimeError(f"saving failed: {error}")\n'),
    breaks=tests_of(ASYNC),
)
