"""Wrong answers to lesson 16, exercises 1 to 3."""

from __future__ import annotations

from autograder.answers.mutants import edit, tests_of

SHARD, SAVE, LOAD = "16-ex1-shard", "16-ex2-save", "16-ex3-load"
UPKEEP, ASYNC = "16-ex4-upkeep", "16-ex6-async"


# ---- 1 · a shard ----

SYNC = "        file.write(data)\n        file.flush()\n        os.fsync(file.fileno())\n"

fsync_before_flush = edit(
    SHARD,
    """fsync only covers what the operating system has, and your bytes were still in Python's buffer, which was written
    when the file was closed, after the fsync. Flush first.""",
    (SYNC, "        file.write(data)\n        os.fsync(file.fileno())\n"),
    breaks=tests_of(SHARD, SAVE, UPKEEP),
)

never_on_the_disk = edit(
    SHARD,
    """You closed the file without an fsync. After a power cut the rename may be on the disk and the bytes not: a
    checkpoint full of zeros, under its right name.""",
    (SYNC, "        file.write(data)\n"),
    breaks=tests_of(SHARD, SAVE, UPKEEP),
)

old_bytes_stay_behind = edit(
    SHARD,
    """You opened the file without emptying it ("r+" or "a"), so its earlier content stays before or after your bytes.
    Open it with "wb".""",
    ('with path.open("wb") as file:', 'with path.open("ab") as file:'),
    breaks=tests_of(SHARD),
)

the_whole_storage_is_written = edit(
    SHARD,
    """You wrote the memory that the tensor lies in, not the tensor. A piece is often a slice of a longer vector, or
    every second number of one: make it contiguous, then take its bytes.""",
    (
        "contiguous = tensor.detach().clone(memory_format=torch.contiguous_format)",
        "contiguous = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())",
    ),
    breaks=tests_of(SHARD, SAVE, UPKEEP),
)

offsets_in_numbers = edit(
    SHARD,
    """Your offsets count numbers. The tensors of a file have different dtypes, so offsets must count bytes.""",
    ('"offset": len(data), "numel"', '"offset": sum(t["numel"] for t in table.values()), "numel"'),
    breaks=tests_of(SHARD, SAVE, UPKEEP, ASYNC),
)

everything_is_float32 = edit(
    SHARD,
    """You converted the tensors to float32. Loading must give back the same bytes: in float32, int64 counts above 2²⁴
    are rounded, float64 loses half of its digits, and bfloat16 doubles the file.""",
    ('dtype = str(tensor.dtype).removeprefix("torch.")', 'tensor, dtype = tensor.float(), "float32"'),
    breaks=tests_of(SHARD, SAVE, UPKEEP, ASYNC),
)

dtype_with_prefix = edit(
    SHARD,
    """str(dtype) begins with "torch.". The manifest holds the name alone, as in DTYPES, so that it can be read without
    torch.""",
    ('str(tensor.dtype).removeprefix("torch.")', "str(tensor.dtype)"),
    ('DTYPES[place["dtype"]]', 'DTYPES[place["dtype"].removeprefix("torch.")]'),
    breaks=tests_of(SHARD, SAVE, UPKEEP, ASYNC),
)

a_pickle = edit(
    SHARD,
    """Your file is a pickle, and loading one may run any function that it names. Write the tensors' bytes, which are
    nothing but numbers.""",
    ("write_durably(folder / file, data)", 'write_durably(folder / file, data := pickle.dumps({"data": bytes(data)}))'),
    (
        "    tensors = {}\n    for",
        '    data = pickle.loads(data)["data"] if data[:1] == b"\\x80" else data\n    tensors = {}\n    for',
    ),
    breaks=tests_of(SHARD, SAVE, LOAD, UPKEEP, ASYNC),
)

only_the_length_is_verified = edit(
    SHARD,
    """You compared the file's length, but not its digest. A flipped bit leaves the length as it was, and so does the
    shard of another checkpoint.""",
    (' or hashlib.sha256(data).hexdigest() != entry["sha256"]', ""),
    breaks=tests_of(SHARD, LOAD, UPKEEP),
    fails=["damaged_shards_are_refused"],
)

only_the_digest_is_verified = edit(
    SHARD,
    """You compared the digest, but not the length. The entry states both, and an entry that contradicts itself must not
    be trusted.""",
    (' or len(data) != entry["bytes"]', ""),
    breaks=tests_of(SHARD),
    fails=["damaged_shards_are_refused"],
)

memory_of_the_file = edit(
    SHARD,
    """torch.frombuffer uses the memory that it is given, and that of a bytes object belongs to Python and must not
    change. Tensors need memory of their own: copy into a bytearray.""",
    (
        'bytearray(data[start : start + place["numel"] * dtype.itemsize])',
        'data[start : start + place["numel"] * dtype.itemsize]',
    ),
    breaks=tests_of(SHARD),
)

missing_files_raise_something_else = edit(
    SHARD,
    """You let a missing shard raise FileNotFoundError. Code that falls back to an older checkpoint catches
    CheckpointError, so everything that is wrong with a checkpoint must raise that.""",
    ("data = path.read_bytes() if path.is_file() else None", "data = path.read_bytes()"),
    breaks=tests_of(SHARD),
    fails=["damaged_shards_are_refused"],
)

an_error_without_a_name = edit(
    SHARD,
    """Your error does not say which file is damaged. With 4,000 shards, somebody must know which one to copy again: put
    the file's name into it.""",
    ('f"{path} is missing, cut or damaged: load another checkpoint"', '"a shard is missing, cut or damaged"'),
    breaks=tests_of(SHARD, LOAD, UPKEEP),
    fails=["damaged_shards_are_refused"],
)

tensors_share_one_buffer = edit(
    SHARD,
    """Your tensors share one memory, that of the file's bytes. Each needs its own, or writing to one changes
    another.""",
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
    breaks=tests_of(SHARD, LOAD, UPKEEP),
)


# ---- 2 · commit and save ----

COMMIT = (
    "    together(lambda: commit(folder, final, new_manifest(step, values, shards)) if rank == 0 else None, group)\n"
)

the_others_do_not_wait = edit(
    SAVE,
    """The other ranks returned while rank 0 was still committing. If they then ask for the latest checkpoint, they find
    the one before, and they never learn of an error on rank 0. Put the commit into `together`, too.""",
    (COMMIT, "    if rank == 0:\n        commit(folder, final, new_manifest(step, values, shards))\n"),
    breaks=tests_of(SAVE, ASYNC),
    fails=["commits_durably_by_one_rename", "saving_fails_on_all_ranks"],
)

no_fsync_of_the_root = edit(
    SAVE,
    """You did not fsync the parent folder after the rename, and the new name is stored there. After a power cut the
    checkpoint may have its old name again, which the next save clears away.""",
    ("    os.rename(folder, final)\n    sync_folder(final.parent)\n", "    os.rename(folder, final)\n"),
    breaks=tests_of(SAVE, UPKEEP),
    fails=["commits_durably_by_one_rename"],
)

no_fsync_of_the_folder = edit(
    SAVE,
    """A file's fsync brings its bytes to the disk, but not its name, which is stored in the folder. Fsync the folder
    when all files are in it, before you rename it.""",
    ("    sync_folder(folder)\n    os.rename", "    os.rename"),
    breaks=tests_of(SAVE, UPKEEP),
    fails=["commits_durably_by_one_rename"],
)

the_manifest_comes_after_the_rename = edit(
    SAVE,
    """You renamed first and wrote the manifest afterwards. In between there is a folder with a checkpoint's name that
    is not a checkpoint: the rename must come last.""",
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
    breaks=tests_of(SAVE, UPKEEP),
    fails=["commits_durably_by_one_rename", "saving_fails_on_all_ranks", "a_killed_save_leaves_the_last_checkpoint"],
)

shards_are_renamed_one_by_one = edit(
    SAVE,
    """You moved the files into the final folder one by one. Each rename is atomic, but not all of them together: a save
    that is killed in between leaves a folder with a checkpoint's name and half its files. Rename the whole folder.""",
    (
        "    os.rename(folder, final)\n",
        "    final.mkdir()\n    for path in sorted(folder.iterdir()):\n        os.rename(path, final / path.name)\n"
        "    folder.rmdir()\n    sync_folder(final)\n",
    ),
    breaks=tests_of(SAVE, UPKEEP),
    fails=["commits_durably_by_one_rename", "a_killed_save_leaves_the_last_checkpoint"],
)

saved_in_place = edit(
    SAVE,
    """You wrote straight into the folder with the final name, so it has that name before it is complete. Prepare it
    under a name that no checkpoint has, and rename it at the end.""",
    ("root / step_name(step), root / (TEMPORARY + step_name(step))", "root / step_name(step), root / step_name(step)"),
    ("        fresh_folder(root, step)\n", "        final.mkdir(parents=True)\n"),
    breaks=tests_of(SAVE),
    fails=["commits_durably_by_one_rename", "saving_fails_on_all_ranks", "a_killed_save_leaves_the_last_checkpoint"],
)

leftovers_are_filled_up = edit(
    SAVE,
    """You reused the temporary folder of a killed save. If that save had more ranks, its surplus shards are committed,
    too: begin with an empty folder.""",
    ("        fresh_folder(root, step)\n", "        folder.mkdir(parents=True, exist_ok=True)\n"),
    breaks=tests_of(SAVE),
    fails=["saving_fails_on_all_ranks", "leftovers_of_a_killed_save_are_cleared"],
)

a_leftover_is_in_the_way = edit(
    SAVE,
    """The temporary folder of a killed save was still there, so making it failed: after one crash this step can never
    be saved. Clear away what killed saves have left.""",
    ("        fresh_folder(root, step)\n", "        folder.mkdir(parents=True)\n"),
    breaks=tests_of(SAVE),
    fails=["saving_fails_on_all_ranks", "leftovers_of_a_killed_save_are_cleared"],
)

rank_0_writes_everything = edit(
    SAVE,
    """You gathered all pieces on rank 0, which wrote them. All bytes then go through one process, one network card and
    one disk while the other ranks wait: let every rank write its own.""",
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
    """Your ranks wrote one after another. With N disks, or N streams to one store, they are N times as fast if they
    write at the same time.""",
    (
        "    shards = together(lambda: write_shard(folder, rank, tensors), group)\n",
        "    for turn in range(dist.get_world_size(group)):\n"
        "        found = together(lambda: write_shard(folder, rank, tensors) if rank == turn else None, group)\n"
        "        shards = [found[turn]] if turn == 0 else [*shards, found[turn]]\n",
    ),
    breaks=tests_of(SAVE),
    fails=["commits_durably_by_one_rename"],
)

only_rank_0_sees_the_step = edit(
    SAVE,
    """Only rank 0 checked whether the step is there, and raised alone. The others go on and wait for it in their next
    message: an error on one rank must reach all before any of them goes on.""",
    (
        "    together(prepare if rank == 0 else lambda: None, group)\n",
        "    if rank == 0:\n        prepare()\n    dist.barrier(group)\n",
    ),
    breaks=tests_of(SAVE, ASYNC),
    fails=["saving_fails_on_all_ranks"],
)

a_full_disk_on_one_rank = edit(
    SAVE,
    """A rank that cannot write raised its error outside of `together`, so the other ranks never learn of it and wait.
    Put the writing itself into `together`.""",
    (
        "    shards = together(lambda: write_shard(folder, rank, tensors), group)\n",
        "    entry = write_shard(folder, rank, tensors)\n    shards = together(lambda: entry, group)\n",
    ),
    breaks=tests_of(SAVE),
    fails=["saving_fails_on_all_ranks"],
)

the_old_step_is_replaced = edit(
    SAVE,
    """You removed the existing checkpoint of this step to make room for the new one. A save that is killed in between
    leaves neither. Raise a CheckpointError, and leave the existing one alone.""",
    (
        '            raise CheckpointError(f"{final} is there already: save another step, or move it away first")\n',
        "            shutil.rmtree(final)\n",
    ),
    breaks=tests_of(SAVE, ASYNC),
    fails=["saving_fails_on_all_ranks"],
)

there_is_judged_by_the_manifest = edit(
    SAVE,
    """You took a step for absent because its folder has no manifest. The step is there, damaged, and your rename
    replaced it or failed with another error. Ask whether the folder exists.""",
    ("        if final.exists():\n", '        if (final / "manifest.json").exists():\n'),
    breaks=tests_of(SAVE),
    fails=["saving_fails_on_all_ranks"],
)

arguments_are_looked_at_late = edit(
    SAVE,
    """You made the folder first and looked at the tensors after that. Refuse what cannot be saved before anything is
    written: a ValueError then leaves nothing behind.""",
    (
        "        if tensor.dim() != 1:\n"
        '            raise ValueError(f"{name} has shape {tuple(tensor.shape)}; a piece must be 1-D")\n',
        "        assert name\n",
    ),
    (
        "    together(prepare if rank == 0 else lambda: None, group)\n",
        "    together(prepare if rank == 0 else lambda: None, group)\n"
        "    for name, tensor in tensors.items():\n"
        "        if tensor.dim() != 1:\n"
        '            raise ValueError(f"{name} has shape {tuple(tensor.shape)}; a piece must be 1-D")\n',
    ),
    breaks=tests_of(SAVE),
    fails=["saving_fails_on_all_ranks"],
)

any_tensor_is_taken = edit(
    SAVE,
    """You saved a tensor that is not 1-D as if it were a piece. Its shape is lost, and joined with the other ranks'
    pieces it has no meaning: raise a ValueError that names the entry.""",
    ("        if tensor.dim() != 1:\n", "        if False:\n"),
    breaks=tests_of(SAVE, ASYNC),
    fails=["saving_fails_on_all_ranks"],
)

a_negative_step = edit(
    SAVE,
    """You saved a negative step, under a name that no checkpoint has and that is never found again. Raise a ValueError
    that names step.""",
    ("    if step < 0:\n", "    if False:\n"),
    breaks=tests_of(SAVE),
    fails=["saving_fails_on_all_ranks"],
)

values_are_texts = edit(
    SAVE,
    """Your plain values come back as other types, for example numbers as text. JSON keeps numbers, strings, lists and
    dicts: pass them to it as they are.""",
    ("    values = {name: value for", "    values = {name: value if isinstance(value, dict) else str(value) for"),
    breaks=tests_of(SAVE, LOAD, UPKEEP, ASYNC),
)

the_group_is_forgotten = edit(
    SAVE,
    """Your messages go over the default group, whatever group was given. A save in the background then collides with
    training's own collectives. Pass the group on in every call.""",
    ("write_shard(folder, rank, tensors), group)", "write_shard(folder, rank, tensors))"),
    breaks=tests_of(SAVE, ASYNC),
)

the_rank_is_that_of_the_run = edit(
    SAVE,
    """You took the rank in the default group. A group that lacks rank 0 of the run then has nobody who makes the folder
    and commits. Ask for the rank in the group.""",
    ("dist.get_rank(group)", "dist.get_rank()"),
    breaks=tests_of(SAVE),
)


# ---- 3 · verify and load ----

the_schema_comes_last = edit(
    LOAD,
    """You looked at other entries before the schema. In a manifest of another schema they may have other names or
    meanings: read the schema first, and nothing else if it is not yours.""",
    (
        "    manifest = json.loads(data)\n",
        '    manifest = json.loads(data)\n    ranks_there = manifest["world_size"]\n',
    ),
    ('list(range(manifest["world_size"])):', "list(range(ranks_there)):"),
    breaks=tests_of(LOAD, UPKEEP),
    fails=["manifests_are_verified", "refuses_damage_on_every_rank"],
)

any_schema_will_do = edit(
    LOAD,
    """You read a manifest of another schema as if it were this one. Its entries may mean something else: raise a
    CheckpointError that names the schema.""",
    ('    if (schema := manifest.get("schema")) != SCHEMA:\n', '    schema = manifest.get("schema")\n    if False:\n'),
    breaks=tests_of(LOAD, UPKEEP),
    fails=["manifests_are_verified", "refuses_damage_on_every_rank"],
)

only_newer_schemas_are_refused = edit(
    LOAD,
    """You refused only newer schemas, and accepted a manifest without any. Only SCHEMA itself is known: everything else
    is a CheckpointError.""",
    ('(schema := manifest.get("schema")) != SCHEMA', '(schema := manifest.get("schema", 0)) > SCHEMA'),
    breaks=tests_of(LOAD, UPKEEP),
    fails=["manifests_are_verified", "refuses_damage_on_every_rank"],
)

older_schemas_are_read = edit(
    LOAD,
    """You accepted an older schema. Its manifest may mean something else as well: only SCHEMA itself is known.""",
    (
        '(schema := manifest.get("schema")) != SCHEMA',
        'not isinstance(schema := manifest.get("schema"), int) or schema > SCHEMA',
    ),
    breaks=tests_of(LOAD, UPKEEP),
    fails=["manifests_are_verified", "refuses_damage_on_every_rank"],
)

the_schema_comes_before_the_digest = edit(
    LOAD,
    """You looked at the schema before the digest. In a manifest that is damaged the schema may be wrong, too: compare
    the digest first.""",
    (
        "    if hashlib.sha256(data).hexdigest().encode() != digest.strip():\n",
        "    with contextlib.suppress(ValueError):\n"
        '        if "schema" in (manifest := json.loads(data)) and manifest["schema"] != SCHEMA:\n'
        '            raise CheckpointError(f"{path} has another schema than {SCHEMA}")\n'
        "    if hashlib.sha256(data).hexdigest().encode() != digest.strip():\n",
    ),
    breaks=tests_of(LOAD, UPKEEP),
    fails=["manifests_are_verified", "refuses_damage_on_every_rank"],
)

LISTED = '    if [shard["rank"] for shard in manifest["shards"]] != list(range(manifest["world_size"])):\n'

the_files_come_before_the_list = edit(
    LOAD,
    """You compared the files with the list of shards before you looked whether the list is right. A file whose shard is
    not listed is then blamed, though it belongs there: look at the list first.""",
    (LISTED, "    if False:\n"),
    (
        'or load another checkpoint")\n    return manifest\n',
        'or load another checkpoint")\n'
        + LISTED
        + "        raise CheckpointError(f'{path}: its shards are not one a rank')\n"
        "    return manifest\n",
    ),
    breaks=tests_of(LOAD, UPKEEP),
    fails=["manifests_are_verified", "refuses_damage_on_every_rank"],
)

hidden_files_pass = edit(
    LOAD,
    """You overlooked a file whose name begins with a dot. The manifest does not list it either: look at every entry of
    the folder.""",
    ("not in files}", 'not in files and not file.name.startswith(".")}'),
    breaks=tests_of(LOAD, UPKEEP),
    fails=["manifests_are_verified", "refuses_damage_on_every_rank"],
)

the_manifest_is_trusted = edit(
    LOAD,
    """You did not compare the manifest with its own digest. It says where every tensor is and what every digest should
    be, so a flipped bit in it is as bad as one in a shard.""",
    ("    if hashlib.sha256(data).hexdigest().encode() != digest.strip():\n", "    if not digest:\n"),
    breaks=tests_of(LOAD, UPKEEP),
    fails=["manifests_are_verified", "refuses_damage_on_every_rank"],
)

a_surplus_file_passes = edit(
    LOAD,
    """You overlooked a file that the manifest does not list. A folder with a surplus shard is a mixture of two
    checkpoints: compare in both directions.""",
    ("for name in sorted({*listed, *there}):", "for name in sorted(listed):"),
    breaks=tests_of(LOAD, UPKEEP),
    fails=["manifests_are_verified", "refuses_damage_on_every_rank"],
)

a_surplus_folder_passes = edit(
    LOAD,
    """You looked only at the files in the folder. A folder in it that the manifest does not list does not belong there
    either: look at every entry.""",
    ("not in files}", "not in files and file.is_file()}"),
    breaks=tests_of(LOAD, UPKEEP),
    fails=["manifests_are_verified", "refuses_damage_on_every_rank"],
)

missing_shards_of_others = edit(
    LOAD,
    """You did not check that the files are there and have the right length. `latest` then offers a checkpoint with a
    missing shard.""",
    ("        if listed.get(name) != there.get(name):\n", "        if name not in listed:\n"),
    breaks=tests_of(LOAD),
    fails=["manifests_are_verified"],
)

the_order_is_not_looked_at = edit(
    LOAD,
    """You counted the shards, but did not compare their order. Entry number r would then be loaded as rank r's, with
    another rank's pieces.""",
    ('[shard["rank"] for shard in manifest["shards"]]', 'sorted(shard["rank"] for shard in manifest["shards"])'),
    breaks=tests_of(LOAD, UPKEEP),
    fails=["manifests_are_verified", "refuses_damage_on_every_rank"],
)

the_manifest_is_read_alone = edit(
    LOAD,
    """Every rank read the manifest by itself and did not report how it went. A rank that does not see the folder
    raises, and the others wait for it: everything that can fail belongs inside `together`.""",
    (
        "    def load():\n        manifest, ours = read_manifest(path), dist.get_world_size()\n",
        "    manifest, ours = read_manifest(path), dist.get_world_size()\n\n    def load():\n",
    ),
    breaks=tests_of(LOAD),
    fails=["refuses_damage_on_every_rank"],
)

everybody_gets_everything = edit(
    LOAD,
    """You sent what each rank had loaded to all others, together with the message that all went well. That puts the
    whole state on every rank and on the wire: send only that it went well.""",
    ("        return manifest", "        return manifest, loaded"),
    ("(load)[dist.get_rank()]", "(load)[dist.get_rank()][0]"),
    breaks=tests_of(LOAD),
)

ranks_are_not_counted = edit(
    LOAD,
    """You did not compare the list of shards with world_size. With one entry too few, or one twice, a piece of every
    tensor is missing or doubled.""",
    ('if [shard["rank"] for shard in manifest["shards"]] != list(range(manifest["world_size"])):', "if False:"),
    breaks=tests_of(LOAD, UPKEEP),
    fails=["manifests_are_verified", "refuses_damage_on_every_rank"],
)

every_rank_for_itself = edit(
    LOAD,
    """The rank whose shard is damaged raised an error, while the others returned their states: half loaded. The ranks
    must tell each other how it went before any of them returns.""",
    ("    return loaded, together(load)[dist.get_rank()]\n", "    return loaded, load()\n"),
    breaks=tests_of(LOAD),
    fails=["refuses_damage_on_every_rank"],
)

any_number_of_ranks = edit(
    LOAD,
    """You loaded a checkpoint of more ranks than there are, which silently loses the last ranks' pieces. Compare the
    manifest's world_size with that of the group.""",
    ('if (saved := manifest["world_size"]) != ours:', 'if (saved := manifest["world_size"]) < ours:'),
    breaks=tests_of(LOAD),
    fails=["refuses_damage_on_every_rank"],
)

not_told_what_to_do = edit(
    LOAD,
    """Your error says that the numbers of ranks differ, but not what to do. Name reshard and both numbers in it.""",
    ('f"{path} is of {saved} ranks, here are {ours}: reshard(path, target_root, {ours})"', '"wrong number of ranks"'),
    breaks=tests_of(LOAD),
    fails=["refuses_damage_on_every_rank"],
)

only_one_number_is_named = edit(
    LOAD,
    """Your error names reshard and one of the two numbers of ranks. Name both: how many ranks the checkpoint has, and
    how many there are.""",
    (
        'f"{path} is of {saved} ranks, here are {ours}: reshard(path, target_root, {ours})"',
        'f"{path} is of another number of ranks: reshard(path, target_root, {ours})"',
    ),
    breaks=tests_of(LOAD),
    fails=["refuses_damage_on_every_rank"],
)

values_are_not_restored = edit(
    LOAD,
    """Your state has only the tensors. The step count, the learning rate and all other plain values are in the
    manifest, and belong to the state.""",
    (', **manifest["values"])', ")"),
    breaks=tests_of(LOAD),
)

every_rank_loads_rank_0 = edit(
    LOAD,
    """Every rank read the first shard. Rank r's pieces are in shard r.""",
    ('manifest["shards"][dist.get_rank()])', 'manifest["shards"][0])'),
    breaks=tests_of(LOAD),
)

no_folder_is_another_error = edit(
    LOAD,
    """You let a missing manifest raise FileNotFoundError. Code that falls back to an older checkpoint catches
    CheckpointError, so everything that is wrong with a checkpoint must raise that.""",
    ("    if not all(file.is_file() for file in files):\n", "    if False:\n"),
    breaks=tests_of(LOAD, UPKEEP),
    fails=["manifests_are_verified"],
)
