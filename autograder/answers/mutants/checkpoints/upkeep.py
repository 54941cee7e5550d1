"""Wrong answers to lesson 16, exercises 4 to 6."""

from __future__ import annotations

from autograder.answers.mutants import edit, tests_of

UPKEEP, ASYNC = "16-ex4-upkeep", "16-ex6-async"


# ---- 4 · rotate ----

the_last_good_one_is_deleted = edit(
    UPKEEP,
    """You kept the newest checkpoints without checking whether any of them loads. If they are damaged, the last good
    one is deleted: find the newest that loads first, and never delete it.""",
    ("if loads is not None and path != loads]", "]"),
    breaks=tests_of(UPKEEP),
    fails=["rotation_keeps_one_that_loads"],
)

a_manifest_is_enough = edit(
    UPKEEP,
    """You took a checkpoint for intact because its manifest is. Only reading a shard shows a flipped byte in it, and
    that is worth the time before anything is deleted.""",
    ("                read_shard(path, entry)\n", "                pass\n"),
    breaks=tests_of(UPKEEP),
    fails=["rotation_keeps_one_that_loads"],
)

everything_goes_if_nothing_loads = edit(
    UPKEEP,
    """When none of the checkpoints loads, you still deleted the older ones. One of them may yet be repaired: delete
    nothing then.""",
    ("if loads is not None and path != loads]", "if path != loads]"),
    breaks=tests_of(UPKEEP),
    fails=["rotation_keeps_one_that_loads"],
)

deleted_file_by_file = edit(
    UPKEEP,
    """You deleted the folder in its place. If that is interrupted, half a checkpoint keeps a checkpoint's name: rename
    the folder first, then delete it.""",
    ("shutil.rmtree(path.rename(path.with_name(TEMPORARY + path.name)))", "shutil.rmtree(path)"),
    breaks=tests_of(UPKEEP),
    fails=["rotation_keeps_one_that_loads"],
)

renamed_and_left = edit(
    UPKEEP,
    """You renamed the old checkpoints but did not delete them, so the disk fills up as before.""",
    (
        "shutil.rmtree(path.rename(path.with_name(TEMPORARY + path.name)))",
        "path.rename(path.with_name(TEMPORARY + path.name))",
    ),
    breaks=tests_of(UPKEEP),
    fails=["rotation_keeps_one_that_loads"],
)

zero_keeps_everything = edit(
    UPKEEP,
    """With keep_last = 0 your slice [:-0] is empty, so nothing was deleted, silently. Raise a ValueError that names
    keep_last for a number below 1.""",
    ("    if keep_last < 1:\n", "    if keep_last < 0:\n"),
    breaks=tests_of(UPKEEP),
    fails=["rotation_keeps_one_that_loads"],
)

only_zero_is_refused = edit(
    UPKEEP,
    """You refused keep_last = 0 and accepted −1, which your slice takes for another end of the list. Every number below
    1 is a ValueError.""",
    ("    if keep_last < 1:\n", "    if keep_last == 0:\n"),
    breaks=tests_of(UPKEEP),
    fails=["rotation_keeps_one_that_loads"],
)


# ---- 4 · reshard ----

the_step_is_read_from_the_name = edit(
    UPKEEP,
    """You took the step from the name of the folder. A copy of a checkpoint may have any name: the manifest says which
    step it is.""",
    ('target_root / step_name(manifest["step"])', 'target_root / step_name(int(path.name.removeprefix("step_")))'),
    breaks=tests_of(UPKEEP),
)

the_folder_is_made_before_the_look = edit(
    UPKEEP,
    """You made the temporary folder before you saw that the step is there already, and it stays behind. Check
    everything that can be refused before you write anything.""",
    ("    if final.exists():\n", '    fresh_folder(target_root, manifest["step"])\n    if final.exists():\n'),
    breaks=tests_of(UPKEEP),
    fails=["resharding_refuses_damage"],
)

damage_gets_new_digests = edit(
    UPKEEP,
    """You read the old shards without verifying them and gave them new digests, so from now on the damaged bytes pass
    every check. Read them with read_shard.""",
    (
        '    pieces = [read_shard(path, entry) for entry in manifest["shards"]]\n',
        "    def unverified(entry):\n"
        '        entry = {**entry, "sha256": hashlib.sha256((path / entry["file"]).read_bytes()).hexdigest()}\n'
        "        return read_shard(path, entry)\n\n"
        '    pieces = [unverified(entry) for entry in manifest["shards"]]\n',
    ),
    breaks=tests_of(UPKEEP),
    fails=["resharding_refuses_damage"],
)

cut_as_tensor_split_cuts = edit(
    UPKEEP,
    """You cut as tensor_split does: 10 numbers on 4 ranks in 3, 3, 2, 2. The optimizer of lesson 08 has shards of
    ⌈P/N⌉, here 3, 3, 3, 1, and refuses pieces of other lengths.""",
    (
        "        cut = {name: whole[name][rank * size : (rank + 1) * size] for name, size in bounds.items()}\n",
        "        cut = {name: whole[name].tensor_split(world_size)[rank] for name in bounds}\n",
    ),
    breaks=tests_of(UPKEEP),
)

one_length_for_all = edit(
    UPKEEP,
    """You cut all tensors at the places of the first. A longer tensor loses its end, and a shorter one gets empty last
    pieces: each has a ⌈P/N⌉ of its own.""",
    ("(-len(tensor) // world_size) for name, tensor", "(-len(next(iter(whole.values()))) // world_size) for name, _"),
    breaks=tests_of(UPKEEP),
)

pieces_in_the_order_of_a_set = edit(
    UPKEEP,
    """You joined the pieces in an order other than that of the ranks. All numbers are there, but in the wrong
    places.""",
    ("torch.cat([piece[name] for piece in pieces])", "torch.cat([piece[name] for piece in pieces[::-1]])"),
    breaks=tests_of(UPKEEP),
)

values_are_left_behind = edit(
    UPKEEP,
    """You left the plain values of the original out of the new checkpoint: no step count, no learning rate. They belong
    to every rank: copy them as they are.""",
    ('new_manifest(manifest["step"], manifest["values"], shards)', 'new_manifest(manifest["step"], {}, shards)'),
    breaks=tests_of(UPKEEP),
)

the_old_manifest_goes_on = edit(
    UPKEEP,
    """You changed the shards in the old manifest and kept the rest, so its creation time, or its world_size, does not
    describe what you wrote. Make a new one.""",
    (
        'new_manifest(manifest["step"], manifest["values"], shards)',
        '{**manifest, "world_size": world_size, "shards": shards}',
    ),
    breaks=tests_of(UPKEEP),
)

reshards_over_what_is_there = edit(
    UPKEEP,
    """You did not refuse a step that is in target_root already. Raise a CheckpointError that names its folder.""",
    ("    if final.exists():\n", "    if False:\n"),
    breaks=tests_of(UPKEEP),
    fails=["resharding_refuses_damage"],
)

reshard_in_place = edit(
    UPKEEP,
    """You wrote the new shards straight into a folder with a checkpoint's name. If reshard is killed, half a checkpoint
    is left: prepare it elsewhere and commit it, as a save does.""",
    (
        '    folder, shards = fresh_folder(target_root, manifest["step"]), []\n',
        '    shutil.rmtree(fresh_folder(target_root, manifest["step"]))\n'
        "    folder, shards = final, []\n    folder.mkdir()\n",
    ),
    breaks=tests_of(UPKEEP),
)

no_ranks_at_all = edit(
    UPKEEP,
    """You accepted world_size = 0. Raise a ValueError that names it.""",
    ("    if world_size < 1:\n", "    if world_size < 0:\n"),
    breaks=tests_of(UPKEEP),
    fails=["resharding_refuses_damage"],
)

only_no_ranks_are_refused = edit(
    UPKEEP,
    """You refused world_size = 0 and accepted −1, for which you write a checkpoint without shards. Every number below 1
    is a ValueError.""",
    ("    if world_size < 1:\n", "    if world_size == 0:\n"),
    breaks=tests_of(UPKEEP),
    fails=["resharding_refuses_damage"],
)


# ---- 6 · in the background ----

COPY = "value.detach().clone() if isinstance(value, torch.Tensor) else copy.deepcopy(value)"

lists_are_shared = edit(
    ASYNC,
    """You copied the tensors, but not the plain values. A list or dict in the state is still the caller's, and later
    changes to it are saved: copy it deeply.""",
    (COPY, "value.detach().clone() if isinstance(value, torch.Tensor) else value"),
    breaks=tests_of(ASYNC),
)

nothing_is_copied = edit(
    ASYNC,
    """You copied only the dict, or nothing at all, or too late. Training goes on and changes the tensors while they are
    written, so the checkpoint holds a mixture of steps: copy each tensor before save returns.""",
    (COPY, "value"),
    breaks=tests_of(ASYNC),
)

the_thread_copies = edit(
    ASYNC,
    """You left the copying to the thread. By then the caller may have changed the state: copy before save returns.""",
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
    """You started a new save while the one before was still running. Their messages mix on the saver's group, the
    second clears away the first one's folder, and copies pile up in memory. Wait for the one before.""",
    ("        self.wait()\n        self.thread =", "        self.thread ="),
    breaks=tests_of(ASYNC),
)

over_the_default_group = edit(
    ASYNC,
    """Your save's messages go over the default group, which training uses at the same time. Which of two collectives
    comes first then differs from rank to rank: make a group of the saver's own.""",
    ("dist.new_group(), None, None", "None, None, None"),
    breaks=tests_of(ASYNC),
)

in_the_foreground = edit(
    ASYNC,
    """Your save waited until the checkpoint was written, and training stood still meanwhile. Start the thread and
    return.""",
    ("        self.thread.start()\n", "        self.thread.start()\n        self.thread.join()\n"),
    breaks=tests_of(ASYNC),
)

errors_are_swallowed = edit(
    ASYNC,
    """You dropped an error in the thread, so a run may go on for days without a checkpoint. Keep the error, and raise
    it in wait.""",
    ("            self.error = error\n", "            pass\n"),
    breaks=tests_of(ASYNC),
    fails=["background_errors_are_told_once"],
)

an_error_is_raised_for_ever = edit(
    ASYNC,
    """After one failed save, every later call raised its error again. Raise each error once, then forget it.""",
    ("error, self.thread, self.error = self.error, None, None", "error, self.thread = self.error, None"),
    breaks=tests_of(ASYNC),
    fails=["background_errors_are_told_once"],
)

save_ignores_the_error = edit(
    ASYNC,
    """Your save started although the one before had failed, and lost its error. Raise that error instead of
    starting.""",
    (
        "        self.wait()\n        self.thread =",
        "        if self.thread is not None:\n            self.thread.join()\n        self.error, self.thread =",
    ),
    ("threading.Thread(target", "None, threading.Thread(target"),
    breaks=tests_of(ASYNC),
    fails=["background_errors_are_told_once"],
)

the_group_is_lost_with_an_error = edit(
    ASYNC,
    """After an error your saver has no group any more, so its next save uses the default one, as training does. The
    group is made once and stays.""",
    ("            raise error\n", "            self.group = None\n            raise error\n"),
    breaks=tests_of(ASYNC),
    fails=["background_errors_are_told_once"],
)

wait_does_not_wait = edit(
    ASYNC,
    """Your wait checked for an error, but did not wait for the thread to end. Join it first.""",
    ("            self.thread.join()\n", "            pass\n"),
    breaks=tests_of(ASYNC),
)

every_error_becomes_a_checkpoint_error = edit(
    ASYNC,
    """Your wait turned every error into a CheckpointError. A ValueError means that the caller's own arguments were
    wrong, and then no other checkpoint will help: raise the exception itself.""",
    ("            raise error\n", "            raise CheckpointError(str(error))\n"),
    breaks=tests_of(ASYNC),
    fails=["background_errors_are_told_once"],
)

deepcopy_of_all = edit(
    ASYNC,
    """copy.deepcopy refuses tensors that autograd has computed, such as a slice of a parameter. Copy their numbers:
    detach().clone().""",
    ("copied[name] = " + COPY, "copied[name] = copy.deepcopy(value)"),
    breaks=tests_of(ASYNC),
)

another_error_is_raised = edit(
    ASYNC,
    """Your wait raised a RuntimeError of its own instead of what save_sharded had raised, so a caller that catches
    CheckpointError misses it. Raise the exception itself.""",
    ("            raise error\n", '            raise RuntimeError(f"saving failed: {error}")\n'),
    breaks=tests_of(ASYNC),
    fails=["background_errors_are_told_once"],
)
