"""Wrong answers to lesson 10, exercises 1 and 2."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: F821

from __future__ import annotations

from autograder.answers.mutants import edit, mutant, right, tests_of

SAVED, PREDICT = "10-ex1-saved-bytes", "10-ex2-predict"


# ---- 1 · saved_bytes ----


@right(SAVED)
def _by_storages():
    """Collects storages as they are saved."""

    def saved_bytes(function, *inputs, ignore=()):
        storages = {}
        others = {t.untyped_storage().data_ptr() for t in ignore}

        def pack(tensor):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in others:
                storages[storage.data_ptr()] = storage
            return tensor

        with saved_tensors_hooks(pack, lambda tensor: tensor):
            output = function(*inputs)
        return output, sum(storage.nbytes() for storage in storages.values())


what_was_dropped_counts = edit(
    SAVED,
    """You count everything that was ever saved. When the function drops a result, that result's graph goes too, and so
    does everything that only this graph kept. Count at the end what is still there.""",
    ("return output,", "return output,"),
    base=_by_storages,
    breaks=tests_of(SAVED),
)

the_first_view_alone_is_watched = edit(
    SAVED,
    """You watch only the first tensor that is saved on a storage. If a dropped result saved that one, it is gone at
    the end, but another view of the same storage may still be kept: watch every saved tensor.""",
    (
        "        handles.append(weakref.ref(handle))\n",
        "        if tensor.untyped_storage().data_ptr() not in known:\n"
        "            known.add(tensor.untyped_storage().data_ptr())\n"
        "            handles.append(weakref.ref(handle))\n",
    ),
    ("    handles = []\n", "    handles, known = [], set()\n"),
    breaks=tests_of(SAVED),
)

the_last_view_alone_is_watched = edit(
    SAVED,
    """You remember one saved tensor for each storage, and a later one takes the place of an earlier one. If the later
    one is dropped, the earlier one still keeps the storage: remember every saved tensor.""",
    (
        "        handles.append(weakref.ref(handle))\n",
        "        handles[tensor.untyped_storage().data_ptr()] = weakref.ref(handle)\n",
    ),
    ("    handles = []\n", "    handles = {}\n"),
    ("for handle in handles if", "for handle in handles.values() if"),
    breaks=tests_of(SAVED),
)

only_identical_tensors_are_ignored = edit(
    SAVED,
    """You ignore the tensors in `ignore` by identity. What the graph saves is often another view of the same
    memory, as weight.t() is of weight: compare storages.""",
    (
        "    for tensor in ignore:\n        ours.pop(tensor.untyped_storage().data_ptr(), None)\n",
        "",
    ),
    (
        "    def pack(tensor):\n",
        "    def pack(tensor):\n        if any(tensor is t for t in ignore):\n            return tensor\n",
    ),
    ("lambda handle: handle.tensor", "lambda handle: getattr(handle, 'tensor', handle)"),
    breaks=tests_of(SAVED),
)

addresses_of_tensors_are_compared = edit(
    SAVED,
    """You tell memory apart by tensor.data_ptr(), the address of a view's first number. Two halves of one storage
    begin at different addresses: compare the addresses of their storages.""",
    (
        "{storage.data_ptr(): storage.nbytes() for storage in alive}",
        "{handle().tensor.data_ptr(): handle().tensor.untyped_storage().nbytes() for handle in handles if handle()}",
    ),
    breaks=tests_of(SAVED),
)

numbers_are_counted = edit(
    SAVED,
    """You count the bytes of the tensors' own numbers. A view keeps its whole storage alive, which may be larger (for a
    slice) or smaller (for an expanded tensor): count the storage's bytes.""",
    (
        "{storage.data_ptr(): storage.nbytes() for storage in alive}",
        "{h().tensor.untyped_storage().data_ptr(): h().tensor.nbytes for h in handles if h()}",
    ),
    breaks=tests_of(SAVED),
)

each_tensor_counts = edit(
    SAVED,
    """You add up all saved tensors. One storage that is saved twice is kept once: x * x saves x two times.""",
    (
        "    ours = {storage.data_ptr(): storage.nbytes() for storage in alive}\n",
        "    known = {t.untyped_storage().data_ptr() for t in ignore}\n",
    ),
    (
        "    for tensor in ignore:\n        ours.pop(tensor.untyped_storage().data_ptr(), None)\n"
        "    return output, sum(ours.values())",
        "    return output, sum(s.nbytes() for s in alive if s.data_ptr() not in known)",
    ),
    breaks=tests_of(SAVED),
)

four_bytes_a_number = edit(
    SAVED,
    """You count four bytes a number, whatever the dtype. A mask of bools has one byte a number, bf16 two.""",
    ("storage.nbytes() for storage in alive", "storage.nbytes() * 4 // size for storage, size in alive"),
    (
        "[handle().tensor.untyped_storage() for handle in handles if handle() is not None]",
        "[(h().tensor.untyped_storage(), h().tensor.element_size()) for h in handles if h() is not None]",
    ),
    breaks=tests_of(SAVED),
)

nothing_is_ignored = edit(
    SAVED,
    """You do not look at `ignore`: the storages of the tensors in it, usually the parameters, do not count.""",
    ("    for tensor in ignore:\n        ours.pop(tensor.untyped_storage().data_ptr(), None)\n", ""),
    breaks=tests_of(SAVED),
)

hooks_stay_for_a_second_call = edit(
    SAVED,
    """You call the function twice, once for its output and once to count. It must run only once: a second run draws
    other random numbers and takes the time once more.""",
    ("    with saved_tensors_hooks", "    result = function(*inputs)\n    with saved_tensors_hooks"),
    ("return output, sum", "return result, sum"),
    breaks=tests_of(SAVED),
    fails=["the_function_runs_as_without_it"],
)

backward_gets_zeros = edit(
    SAVED,
    """What your unpack returns is not what was packed, so backward computes with wrong numbers. Return the same
    tensor.""",
    ("lambda handle: handle.tensor)", "lambda handle: torch.zeros_like(handle.tensor))"),
    breaks=tests_of(SAVED),
    fails=["the_function_runs_as_without_it"],
)

copies_of_the_inputs_are_passed = edit(
    SAVED,
    """You call the function with detached copies of its inputs. The output's graph then begins at the copies, and
    backward never reaches the caller's inputs: pass the inputs themselves.""",
    ("output = function(*inputs)", "output = function(*(t.detach().requires_grad_() for t in inputs))"),
    breaks=tests_of(SAVED),
    fails=["the_function_runs_as_without_it"],
)

the_output_is_forgotten = edit(
    SAVED,
    """You return only the number. The caller needs the function's output as well: return both.""",
    ("return output, sum", "return sum"),
    breaks=tests_of(SAVED),
)


# ---- 2 · activation_bytes, stage_bytes ----

parallelism_divides_everything = edit(
    PREDICT,
    """You divide everything by `tensor`. Without sequence parallelism the norms, the inputs of qkv and up, and the
    masks after out and down are whole on every rank.""",
    ("shared = tensor if sequence_parallel else 1", "shared = tensor"),
    breaks=tests_of(PREDICT),
)

sequence_parallelism_is_overlooked = edit(
    PREDICT,
    """You never divide the outside by `tensor`. Under sequence parallelism each rank has only its part of the
    sequence there.""",
    ("shared = tensor if sequence_parallel else 1", "shared = 1"),
    breaks=tests_of(PREDICT),
)

the_input_is_always_whole = edit(
    PREDICT,
    """With keep="input" you do not divide under sequence parallelism. The layer's input lies outside, and is cut
    along the sequence like everything there.""",
    ("return 2 * numbers / shared", "return 2 * numbers"),
    breaks=tests_of(PREDICT),
)

the_input_is_always_cut = edit(
    PREDICT,
    """With keep="input" you always divide by `tensor`. Without sequence parallelism every rank holds the whole
    input of the layer.""",
    ("return 2 * numbers / shared", "return 2 * numbers / tensor"),
    breaks=tests_of(PREDICT),
)

masks_stay_without_dropout = edit(
    PREDICT,
    """Without dropout you still count the layer's two masks. Leave out their 2sbh bytes of the outside.""",
    ("(10 if dropout else 8)", "10"),
    breaks=tests_of(PREDICT),
)

only_the_mask_goes = edit(
    PREDICT,
    """Without dropout the core keeps neither its mask nor the softmax after dropout: the softmax itself is multiplied
    by the values. 2as²b bytes are left.""",
    ("(5 if dropout else 2)", "(5 if dropout else 4)"),
    breaks=tests_of(PREDICT),
)

flash_needs_two_bytes_a_row = edit(
    PREDICT,
    """You count two bytes for each row of scores. Fused attention keeps one float32 number a row: four bytes.""",
    ('"flash": 4 * heads', '"flash": 2 * heads'),
    breaks=tests_of(PREDICT),
)

unknown_ways_keep_nothing = edit(
    PREDICT,
    """You accept any word for `keep`. An unknown word is a mistake of the caller: raise a ValueError.""",
    ("}[keep]", "}.get(keep, 0)"),
    (
        '    if keep not in ("all", "no scores", "flash", "input"):\n'
        "        raise ValueError(f\"keep must be 'all', 'no scores', 'flash' or 'input', got {keep!r}\")\n",
        "",
    ),
    breaks=tests_of(PREDICT),
    fails=["a_layer_refuses_what_makes_no_sense"],
)

heads_are_split = edit(
    PREDICT,
    """You accept a number of ranks that does not divide the number of heads. A head lies on one rank: raise a
    ValueError.""",
    ("if tensor < 1 or heads % tensor:", "if tensor < 1:"),
    breaks=tests_of(PREDICT),
    fails=["a_layer_refuses_what_makes_no_sense"],
)

stages_hold_every_micro_batch = edit(
    PREDICT,
    """You count all micro-batches on every stage. Stage k begins its first backward after p − k forwards. From then on
    it frees one micro-batch for each that it starts.""",
    ("* min(micro_batches, stages - stage)", "* micro_batches"),
    breaks=tests_of(PREDICT),
    fails=["a_stage_holds_its_micro_batches"],
)

stages_hold_one_less = edit(
    PREDICT,
    """You count one micro-batch too few. The last stage, number p − 1, holds one, and stage 0 holds p.""",
    ("stages - stage)", "stages - stage - 1)"),
    breaks=tests_of(PREDICT),
    fails=["a_stage_holds_its_micro_batches"],
)

few_micro_batches_are_overlooked = edit(
    PREDICT,
    """You count p − k micro-batches even where there are fewer: a stage cannot hold more than M.""",
    ("min(micro_batches, stages - stage)", "(stages - stage)"),
    breaks=tests_of(PREDICT),
    fails=["a_stage_holds_its_micro_batches"],
)

no_stages_divide_the_layers = edit(
    PREDICT,
    """You divide the layers by `stages` before you know that there are any. Python raises a ZeroDivisionError for 0
    stages; the caller expects a ValueError.""",
    ("if stages < 1 or layers % stages", "if layers % stages"),
    breaks=tests_of(PREDICT),
    fails=["a_stage_refuses_what_makes_no_sense"],
)

masks_outside_stay_for_no_scores = edit(
    PREDICT,
    """Without dropout you leave out masks only where `keep` is "all". There is no dropout after `out` and `down`
    either, whatever the core keeps: their two masks are gone for every `keep`.""",
    ("(10 if dropout else 8)", '(8 if not dropout and keep == "all" else 10)'),
    breaks=tests_of(PREDICT),
)

negative_stages_are_accepted = edit(
    PREDICT,
    """You accept stage −1. Stages are numbered from 0 to p − 1; for everything else raise a ValueError.""",
    ("not 0 <= stage < stages", "stage >= stages"),
    breaks=tests_of(PREDICT),
    fails=["a_stage_refuses_what_makes_no_sense"],
)


@mutant(PREDICT, breaks=tests_of(PREDICT), fails=["a_stage_holds_its_micro_batches"])
def a_pipeline_divides_activations():
    """You divide the activations of all layers by the number of stages, and stop there. A stage holds several
    micro-batches at once, and stage 0 holds as many as there are stages, which cancels the division."""

    def activation_bytes(seq, batch, hidden, heads, tensor=1, sequence_parallel=False, keep="all", dropout=True):
        if tensor < 1 or heads % tensor or keep not in ("all", "no scores", "flash", "input"):
            raise ValueError("tensor or keep makes no sense")
        shared = tensor if sequence_parallel else 1
        if keep == "input":
            return 2 * seq * batch * hidden / shared
        scores = {"all": (5 if dropout else 2) * seq, "no scores": 0, "flash": 4}[keep] * heads * seq * batch
        return (10 if dropout else 8) * seq * batch * hidden / shared + (24 * seq * batch * hidden + scores) / tensor

    def stage_bytes(layer_bytes, layers, stages, micro_batches, stage):
        if stages < 1 or layers % stages or not 0 <= stage < stages:
            raise ValueError("no such stage")
        return layer_bytes * layers // stages
