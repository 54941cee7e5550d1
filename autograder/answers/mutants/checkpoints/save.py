"""Wrong answers to lesson 16, exercise 2: commit and save."""

from __future__ import annotations

from autograder.answers.mutants import edit, tests_of

SAVE, LOAD, UPKEEP, ASYNC = "16-ex2-save", "16-ex3-load", "16-ex4-upkeep", "16-ex6-async"


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
    """You made the folder first, and only then looked at the tensors. Refuse what cannot be saved before anything is
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
    """You took the rank in the default group. In a group without the run's rank 0, nobody then makes the folder and
    commits. Ask for the rank in the group.""",
    ("dist.get_rank(group)", "dist.get_rank()"),
    breaks=tests_of(SAVE),
)
