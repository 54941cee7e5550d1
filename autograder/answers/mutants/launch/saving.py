"""Wrong answers to lesson 06, exercises 3 and 4: indices_of, save and load."""

from __future__ import annotations

from autograder.answers.mutants import edit, tests_of

INDICES, SAVE, TRAIN = "06-ex3-indices-of", "06-ex4-save-load", "06-ex5-train-until-told"


# ---- 3 · indices_of ----


generator_back_at_its_seed = edit(
    INDICES,
    """You draw with torch's global generator and then seed it again with the seed that it had. Whatever has been drawn
    since that seed, such as the model, comes once more. Give the permutation a generator of its own.""",
    (
        "    order = torch.randperm(length, generator=torch.Generator().manual_seed(seed + epoch)).tolist()\n",
        """    before = torch.initial_seed()
    torch.manual_seed(seed + epoch)
    order = torch.randperm(length).tolist()
    torch.manual_seed(before)
""",
    ),
    breaks=tests_of(INDICES),
    fails=["global_generator_stays"],
)

order_of_an_earlier_seed = edit(
    INDICES,
    """You keep the order of an epoch for later calls, and a call with another seed gets it, too. What you keep must be
    found by all that it depends on.""",
    ("def indices_of(", "kept = {}\n\n\ndef indices_of("),
    (
        "    order = torch.randperm(length, generator=torch.Generator().manual_seed(seed + epoch)).tolist()\n",
        """    if (epoch, length) not in kept:
        kept[epoch, length] = torch.randperm(length, generator=torch.Generator().manual_seed(seed + epoch)).tolist()
    order = kept[epoch, length]
""",
    ),
    breaks=tests_of(INDICES),
)

deals_before_the_steps = edit(
    INDICES,
    """You deal the whole epoch to the ranks first, and each cuts its own part into steps. Then the examples of a step
    depend on the number of ranks, and a job that goes on with another number reads some of them twice and others never.
    Cut the epoch into global batches first, and deal each of them.""",
    ("    batch = order[step_of_epoch * global_batch : (step_of_epoch + 1) * global_batch]\n", ""),
    (
        "return batch[rank::world_size]",
        """each = ceil(global_batch / world_size)
    return order[rank::world_size][step_of_epoch * each : (step_of_epoch + 1) * each]""",
    ),
    breaks=tests_of(INDICES),
)

pads_like_the_sampler = edit(
    INDICES,
    """You filled up the last batch from the start of the epoch until the ranks have equally many. Those examples are
    read twice. Here a rank may have fewer than others, or none.""",
    (
        "    return batch[rank::world_size]",
        """    batch = batch + order[: -len(batch) % world_size]
    return batch[rank::world_size]""",
    ),
    breaks=tests_of(INDICES),
)

equal_slices_only = edit(
    INDICES,
    """Each rank takes a slice of len(batch) // world_size examples. What is left over, no rank reads. A stride deals
    out all of them.""",
    (
        "return batch[rank::world_size]",
        """each = len(batch) // world_size
    return batch[rank * each : (rank + 1) * each]""",
    ),
    breaks=tests_of(INDICES),
)

slices_that_leave_nothing_out = edit(
    INDICES,
    """All examples are read once, but each rank takes a slice of the batch. The statement deals: rank r gets the
    examples r, r + N, r + 2N and so on.""",
    (
        "return batch[rank::world_size]",
        """return batch[rank * len(batch) // world_size : (rank + 1) * len(batch) // world_size]""",
    ),
    breaks=tests_of(INDICES),
)

last_step_is_dropped = edit(
    INDICES,
    """You round the number of steps of an epoch down. What does not fill a global batch is then never read. The last
    step of an epoch takes what is left.""",
    ("ceil(length / global_batch)", "max(1, length // global_batch)"),
    breaks=tests_of(INDICES),
)

last_step_borrows = edit(
    INDICES,
    """Your last batch of an epoch is filled up with examples from its beginning, so some are read twice. It takes only
    what is left.""",
    ("    return batch", "    batch += order[: global_batch - len(batch)]\n    return batch"),
    breaks=tests_of(INDICES),
)

one_step_more = edit(
    INDICES,
    """Your epochs have length // global_batch + 1 steps. Where the global batch divides the length, that is one step
    too many, and no rank has an example in it. Round the quotient up.""",
    ("ceil(length / global_batch)", "length // global_batch + 1"),
    breaks=tests_of(INDICES),
)

batch_that_the_ranks_divide = edit(
    INDICES,
    """You round the global batch to a multiple of world_size. Then the examples of a step depend on the number of
    ranks. Some ranks may have an example less than others.""",
    (
        "    epoch, step",
        "    global_batch = max(1, global_batch // world_size) * world_size\n    epoch, step",
    ),
    breaks=tests_of(INDICES),
)

seed_and_epoch_mixed = edit(
    INDICES,
    """Your generator's seed is another function of seed and e than their sum. The statement says seed + e.""",
    ("seed + epoch", "seed ^ epoch"),
    breaks=tests_of(INDICES),
)

one_order_for_all_epochs = edit(
    INDICES,
    """All your epochs have the order of epoch 0. The seed of an epoch is seed + e.""",
    ("seed + epoch", "seed"),
    breaks=tests_of(INDICES),
)

order_from_the_step = edit(
    INDICES,
    """You seed the generator with the step, so each step draws from another order, and an epoch reads some examples
    twice. The order belongs to the epoch.""",
    ("seed + epoch", "seed + step"),
    breaks=tests_of(INDICES),
)

batch_for_each_rank = edit(
    INDICES,
    """You take global_batch examples for each rank. It is the number of examples of all ranks together; otherwise the
    run changes when the number of ranks does.""",
    (
        "    epoch, step",
        "    global_batch *= world_size\n    epoch, step",
    ),
    breaks=tests_of(INDICES),
)

seeds_the_global_generator = edit(
    INDICES,
    """You seeded torch's global generator. All ranks then draw the same dropout masks, and the run differs from one
    that was not resumed. Use a torch.Generator of your own.""",
    ("generator=torch.Generator().manual_seed(seed + epoch)", "generator=torch.manual_seed(seed + epoch)"),
    breaks=tests_of(INDICES),
    fails=["global_generator_stays"],
)

a_tensor_of_indices = edit(
    INDICES,
    """You return a tensor. The statement asks for a list of ints.""",
    ("    return batch[rank::world_size]", "    return torch.tensor(batch[rank::world_size])"),
    breaks=tests_of(INDICES),
)


# ---- 4 · save and load ----


renames_before_it_is_written = edit(
    SAVE,
    """You rename the new file while it is still open. Its last bytes are in a buffer of Python's, and a rank that dies
    now leaves half a file at path. Close it first.""",
    (
        """    torch.save(state, f"{path}.tmp")
    os.replace(f"{path}.tmp", path)
""",
        """    import io

    whole = io.BytesIO()
    torch.save(state, whole)
    with open(f"{path}.tmp", "wb") as file:
        file.write(whole.getvalue())
        os.replace(f"{path}.tmp", path)
""",
    ),
    breaks=tests_of(SAVE),
    fails=["file_is_complete_at_every_moment"],
)

folder_of_a_bare_name = edit(
    SAVE,
    """You put the folder of path before the name of your new file. A path that is a bare name has no folder, and your
    file goes elsewhere. Append to path itself, or make it absolute first.""",
    (
        """    torch.save(state, f"{path}.tmp")
    os.replace(f"{path}.tmp", path)
""",
        """    new = f"{os.path.dirname(path) or '/tmp'}/new"
    torch.save(state, new)
    os.replace(new, path)
""",
    ),
    breaks=tests_of(SAVE),
    fails=["file_is_complete_at_every_moment"],
)

appends_to_what_was_left = edit(
    SAVE,
    """You append to your temporary file. If a save was killed, its half file is there, and the new checkpoint comes
    behind it. Write over it.""",
    (
        """    torch.save(state, f"{path}.tmp")
    os.replace(f"{path}.tmp", path)
""",
        """    with open(f"{path}.tmp", "ab") as file:
        torch.save(state, file)
    os.replace(f"{path}.tmp", path)
""",
    ),
    breaks=tests_of(SAVE),
    fails=["file_is_complete_at_every_moment"],
)

never_fewer_losses = edit(
    SAVE,
    """You do not save when the file has as many losses already. A run that begins anew, or is set back, then never gets
    its checkpoint: save what you are given.""",
    (
        "    state = {",
        """    if os.path.exists(path) and len(torch.load(path, weights_only=True)["losses"]) > len(losses):
        return
    state = {""",
    ),
    breaks=tests_of(SAVE),
    fails=["file_is_complete_at_every_moment"],
)

evaluates_to_save = edit(
    SAVE,
    """Your save puts the model into eval() mode, and the run goes on in it after the save: no dropout, and BatchNorm's
    means stand still. save changes nothing but the file.""",
    ("    state = {", "    model.eval()\n    state = {"),
    breaks=tests_of(SAVE),
)

buffers_of_floats_only = edit(
    SAVE,
    """You save the tensors of floats only. A buffer may hold integers, such as BatchNorm's number of batches.""",
    (
        '"model": model.state_dict()',
        '"model": {key: value for key, value in model.state_dict().items() if value.is_floating_point()}',
    ),
    ('model.load_state_dict(state["model"])', 'model.load_state_dict(state["model"], strict=False)'),
    breaks=tests_of(SAVE),
)

makes_the_folder_to_load = edit(
    SAVE,
    """Without a file, your load makes the folder for it. It should change nothing there.""",
    ("        return []", "        os.makedirs(os.path.dirname(path), exist_ok=True)\n        return []"),
    breaks=tests_of(SAVE),
    fails=["start_without_a_file_changes_nothing"],
)

optimizer_starts_anew_without_a_file = edit(
    SAVE,
    """Without a file, your load clears what the optimizer holds. It should change nothing there.""",
    ("        return []", "        optimizer.state.clear()\n        return []"),
    breaks=tests_of(SAVE),
    fails=["start_without_a_file_changes_nothing"],
)


save_forgets_the_optimizer = edit(
    SAVE,
    """After load your optimizer starts anew: the momentum is zero again, and the run takes another course. The
    optimizer has a state_dict, too: save it with the model's, and load both.""",
    ('    optimizer.load_state_dict(state["optimizer"])\n', ""),
    breaks=tests_of(SAVE),
)

save_keeps_the_optimizer_in_memory = edit(
    SAVE,
    """You kept the optimizer's state in memory and not in the file. A run is resumed by another process, which has
    nothing but the file.""",
    (
        '    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "losses": losses}\n',
        "    save.kept = optimizer.state_dict()\n"
        '    save.kept["state"] = {\n'
        "        number: {name: value.clone() if torch.is_tensor(value) else value for name, value in of_one.items()}\n"
        '        for number, of_one in save.kept["state"].items()\n'
        "    }\n"
        '    state = {"model": model.state_dict(), "losses": losses}\n',
    ),
    ('    optimizer.load_state_dict(state["optimizer"])\n', "    optimizer.load_state_dict(save.kept)\n"),
    breaks=tests_of(SAVE),
)

save_forgets_the_buffers = edit(
    SAVE,
    """You save the parameters only. A model may have buffers, such as BatchNorm's running means, which it needs to go
    on. model.state_dict() holds both.""",
    ('"model": model.state_dict()', '"model": dict(model.named_parameters())'),
    ('model.load_state_dict(state["model"])', 'model.load_state_dict(state["model"], strict=False)'),
    breaks=tests_of(SAVE),
)

save_forgets_the_losses = edit(
    SAVE,
    """load returns only the last loss. The length of the list is the position in the run: save and return all of
    it.""",
    ('return state["losses"]', 'return state["losses"][-1:]'),
    breaks=tests_of(SAVE),
)

load_returns_the_count = edit(
    SAVE,
    """load returns the number of steps. The list of losses is asked for; its length is that number.""",
    ('return state["losses"]', 'return len(state["losses"])'),
    breaks=tests_of(SAVE),
)

save_forgets_the_rate = edit(
    SAVE,
    """You save the optimizer's moments, but not its settings. A run whose learning rate has changed goes on with the
    rate of a new optimizer. optimizer.state_dict() holds both.""",
    ('"optimizer": optimizer.state_dict()', '"optimizer": optimizer.state_dict()["state"]'),
    (
        'optimizer.load_state_dict(state["optimizer"])',
        'optimizer.load_state_dict({**optimizer.state_dict(), "state": state["optimizer"]})',
    ),
    breaks=tests_of(SAVE),
)

save_forgets_frozen_parameters = edit(
    SAVE,
    """You do not save frozen parameters. A new process makes them anew, with other numbers, and the model needs them:
    save all that model.state_dict() holds.""",
    (
        '"model": model.state_dict()',
        '"model": {name: p for name, p in model.state_dict().items() if not name.endswith("bias")'
        " or dict(model.named_parameters())[name].requires_grad}",
    ),
    ('model.load_state_dict(state["model"])', 'model.load_state_dict(state["model"], strict=False)'),
    breaks=tests_of(SAVE),
)

save_rounds_the_losses = edit(
    SAVE,
    """Your losses pass through float32 on their way, so load returns other numbers than save was given. Keep Python's
    floats, or use float64.""",
    ('"losses": losses}', '"losses": torch.tensor(losses)}'),
    ('return state["losses"]', 'return state["losses"].tolist()'),
    breaks=tests_of(SAVE),
)

load_switches_to_eval = edit(
    SAVE,
    """Your load puts the model into eval() mode, and the training goes on in it: no dropout, and BatchNorm's means
    stand still. Leave the mode as it is.""",
    ('    return state["losses"]', '    model.eval()\n    return state["losses"]'),
    breaks=tests_of(SAVE),
)

save_moves_the_old_one_away = edit(
    SAVE,
    """You give the old checkpoint another name before the new one has its own. If the rank dies between the two, there
    is no file at path. os.replace puts the new file in the place of the old one in a single step.""",
    (
        '    os.replace(f"{path}.tmp", path)\n',
        """    old = os.path.exists(path)
    if old:
        os.replace(path, f"{path}.old")
    os.replace(f"{path}.tmp", path)
    if old:
        os.remove(f"{path}.old")
""",
    ),
    breaks=tests_of(SAVE),
    fails=["file_is_complete_at_every_moment"],
)

load_prefers_the_unfinished_file = edit(
    SAVE,
    """Your load takes the temporary file if there is one. It is what a killed save has left, and perhaps half a file.
    Only the file at path counts.""",
    (
        "    state = torch.load(path,",
        '    path = f"{path}.tmp" if os.path.exists(f"{path}.tmp") else path\n    state = torch.load(path,',
    ),
    breaks=tests_of(SAVE),
    fails=["file_is_complete_at_every_moment"],
)

load_seeds_the_generator = edit(
    SAVE,
    """Without a file, your load seeds torch's global generator. It should change nothing there.""",
    ("        return []\n", "        torch.manual_seed(0)\n        return []\n"),
    breaks=tests_of(SAVE),
    fails=["start_without_a_file_changes_nothing"],
)

save_in_place = edit(
    SAVE,
    """You write the new checkpoint over the old one. A rank that dies while it writes leaves half a file and nothing to
    resume from. Write another file in the same folder, and rename the finished file over the old one.""",
    ('torch.save(state, f"{path}.tmp")', "torch.save(state, path)"),
    ('    os.replace(f"{path}.tmp", path)\n', ""),
    breaks=tests_of(SAVE),
    fails=["file_is_complete_at_every_moment"],
)

save_removes_before_it_renames = edit(
    SAVE,
    """You remove the old checkpoint before you give the new one its name. If the rank dies between the two, there is no
    checkpoint. os.replace puts the new file in the place of the old one in a single step.""",
    ("    os.replace(", "    if os.path.exists(path):\n        os.remove(path)\n    os.replace("),
    breaks=tests_of(SAVE),
    fails=["file_is_complete_at_every_moment"],
)

save_renames_from_another_folder = edit(
    SAVE,
    """Your temporary file is in the system's temporary folder, often on another disk. A rename across file systems
    fails, and a copy instead of it is not atomic. Write into the checkpoint's own folder.""",
    ('torch.save(state, f"{path}.tmp")', 'torch.save(state, tempfile.gettempdir() + f"/{os.getpid()}")'),
    ('os.replace(f"{path}.tmp"', 'os.replace(tempfile.gettempdir() + f"/{os.getpid()}"'),
    breaks=tests_of(SAVE),
    fails=["file_is_complete_at_every_moment"],
)

save_keeps_the_old_ones = edit(
    SAVE,
    """Your saves leave other files in the folder: old checkpoints, or parts of this one. Only the file at path should
    remain. It holds all that load needs, and disks do not fill up.""",
    ("    os.replace(", '    os.path.exists(path) and os.link(path, f"{path}.{len(losses)}")\n    os.replace('),
    breaks=tests_of(SAVE),
    fails=["file_is_complete_at_every_moment"],
)

save_trips_over_what_was_left = edit(
    SAVE,
    """Your temporary file must not be there yet. If a save was killed, its half file still is, and from then on no save
    succeeds. Write over it.""",
    ('torch.save(state, f"{path}.tmp")', 'open(f"{path}.tmp", "x").close()\n    torch.save(state, f"{path}.tmp")'),
    breaks=tests_of(SAVE),
    fails=["file_is_complete_at_every_moment"],
)

load_trusts_the_file = edit(
    SAVE,
    """With weights_only=False, loading a checkpoint runs any program that somebody has hidden in it. Yours needs only
    tensors, numbers, strings, lists and dicts, and weights_only=True lets in nothing else.""",
    ("weights_only=True", "weights_only=False"),
    breaks=tests_of(SAVE),
    fails=["programs_in_a_file_do_not_run"],
)

load_needs_a_file = edit(
    SAVE,
    """When a run starts for the first time, there is no file at path, and your load raises an error. Return an empty
    list.""",
    ("    if not os.path.exists(path):\n        return []\n", ""),
    breaks=tests_of(SAVE, TRAIN),
    fails=["start_without_a_file_changes_nothing"],
)


load_resets_the_model = edit(
    SAVE,
    """Without a file, your load sets the parameters to zero. It should change nothing there: the model has just been
    made, with its own random start.""",
    (
        "        return []\n",
        """        for p in model.parameters():
            torch.nn.init.zeros_(p)
        return []
""",
    ),
    breaks=tests_of(SAVE),
    fails=["start_without_a_file_changes_nothing"],
)
