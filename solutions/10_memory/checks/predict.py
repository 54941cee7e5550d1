"""Exercise 2: bytes of a layer and of a pipeline stage, against a list of the tensors that are kept."""

from __future__ import annotations

from autograder.checks.cases import Call, close
from autograder.checks.check import check

PREDICT = "10-ex2-predict"

#: What a layer keeps, in bytes per token: (of hidden, of the width of keys, of heads, of ffn, as such), whether a
#: tensor-parallel rank holds only its share, and whether it goes when what is cheap is computed again.
_KEPT = {
    "norm 1, input": ((2, 0, 0, 0, 0), False, False),
    "norm 1, statistics": ((0, 0, 0, 0, 4), False, True),
    "query, key and value, input": ((2, 0, 0, 0, 0), False, True),
    "queries": ((2, 0, 0, 0, 0), True, False),
    "keys": ((0, 2, 0, 0, 0), True, False),
    "values": ((0, 2, 0, 0, 0), True, False),
    "attention, result": ((2, 0, 0, 0, 0), True, False),
    "attention, statistic": ((0, 0, 4, 0, 0), True, False),
    "norm 2, input": ((2, 0, 0, 0, 0), False, False),
    "norm 2, statistics": ((0, 0, 0, 0, 4), False, True),
    "gate and up, input": ((2, 0, 0, 0, 0), False, True),
    "SiLU, input": ((0, 0, 0, 2, 0), True, False),
    "product, SiLU's result": ((0, 0, 0, 2, 0), True, True),
    "product, the other factor": ((0, 0, 0, 2, 0), True, False),
    "down, input": ((0, 0, 0, 2, 0), True, True),
}


def _expected(tokens, hidden, heads, kv_heads, ffn, tensor, sequence_parallel, keep):
    """The bytes of all tensors that stay, one by one."""
    total, sizes = 0.0, (hidden, hidden // heads * kv_heads, heads, ffn, 1)
    for name, (units, inside, cheap) in _KEPT.items():
        if keep == "all" or (keep == "cheap" and not cheap) or (keep == "input" and name == "norm 1, input"):
            nbytes = sum(unit * size for unit, size in zip(units, sizes, strict=True))
            total += tokens * nbytes / (tensor if inside or sequence_parallel else 1)
    return close(total, rtol=1e-9)


def _sizes(rng, tensor=1):
    """Tokens, width, heads, heads of keys and values, and inner width of a layer that so many ranks can share."""
    kv_heads = tensor * int(rng.integers(1, 4))
    heads = kv_heads * int(rng.integers(1, 9))
    return (
        int(rng.integers(7, 9999)),
        heads * 2 * int(rng.integers(1, 65)),
        heads,
        kv_heads,
        tensor * int(rng.integers(99, 9999)),
    )


def _wider(layer_bytes, tokens, hidden, heads, kv_heads, ffn):
    """What a layer of twice the widths keeps more, with as many heads."""
    return layer_bytes(tokens, 2 * hidden, heads, kv_heads, 2 * ffn) - layer_bytes(tokens, hidden, heads, kv_heads, ffn)


@check(PREDICT, points=0.75)
def a_layer_keeps_what_its_operations_need(layer_bytes, *, rng):
    """A layer keeps every tensor in bf16 that its operations need, each once: twice the widths, so much more."""
    for _ in range(4):
        tokens, hidden, heads, kv_heads, ffn = sizes = _sizes(rng)
        both = [_expected(tokens, k * hidden, heads, kv_heads, k * ffn, 1, False, "all").numbers for k in (1, 2)]
        name = f"layer_bytes{sizes} and that of twice the widths"
        gives = close(both[1] - both[0], rtol=1e-9)
        yield Call(_wider, layer_bytes, *sizes, gives=gives, name=name, what="the difference")


def _statistics(layer_bytes, *sizes):
    """What does not grow with the widths."""
    return layer_bytes(*sizes) - _wider(layer_bytes, *sizes)


@check(PREDICT, points=0.25)
def statistics_are_kept_too(layer_bytes, *, rng):
    """A layer also keeps the statistics of attention and of both norms, which do not grow with the widths."""
    for _ in range(3):
        tokens, _, heads, *_ = sizes = _sizes(rng)
        name, what = f"layer_bytes{sizes}, twice, less that of twice the widths", "what does not grow"
        gives = close(float(tokens * (4 * heads + 8)), rtol=1e-9)
        yield Call(_statistics, layer_bytes, *sizes, gives=gives, name=name, what=what)


def _left_out(layer_bytes, *sizes):
    """The bytes that are not kept if what is cheap is computed again: what else an answer counts does not matter."""
    return layer_bytes(*sizes) - layer_bytes(*sizes, keep="cheap")


@check(PREDICT, points=0.25)
def cheap_results_are_not_kept(layer_bytes, *, rng):
    """With `keep="cheap"`, what is computed again is left out, statistics included, and nothing else."""
    for _ in range(2):
        sizes = _sizes(rng)
        left_out = _expected(*sizes, 1, False, "all").numbers - _expected(*sizes, 1, False, "cheap").numbers
        name = f'layer_bytes{sizes} less that with keep="cheap"'
        yield Call(_left_out, layer_bytes, *sizes, gives=close(left_out, rtol=1e-9), name=name, what="the difference")


@check(PREDICT, points=0.25)
def the_input_alone_can_be_kept(layer_bytes, *, rng):
    """With `keep="input"` only the layer's input is kept."""
    for _ in range(2):
        how = *_sizes(rng), 1, False, "input"
        yield Call(layer_bytes, *how, gives=_expected(*how), what="the number of bytes")


_SHARE = "what a rank keeps, over what one rank keeps alone,"


def _share(layer_bytes, sizes, tensor, parallel, keep):
    """What one of so many ranks keeps, over what one rank keeps alone; 0 if that is nothing."""
    alone = layer_bytes(*sizes, keep=keep)
    return layer_bytes(*sizes, tensor, parallel, keep) / alone if alone else 0.0


def _whole(layer_bytes, tensor, *sizes):
    """The bytes that each of so many ranks has whole, by what one rank and one of many keep."""
    return (tensor * layer_bytes(*sizes, tensor) - layer_bytes(*sizes)) / (tensor - 1)


@check(PREDICT, points=0.5)
def ranks_share_what_lies_inside(layer_bytes, *, rng):
    """`tensor` divides what lies inside the halves, and nothing else without sequence parallelism."""
    for tensor in (4, 3, 8):
        sizes = _sizes(rng, tensor)
        whole = sizes[0] * (8 * sizes[1] + 8)
        name = f"layer_bytes{sizes} with tensor={tensor}"
        what = f"what is whole on every rank, ({tensor} · what each keeps − what one alone keeps) / {tensor - 1},"
        yield Call(_whole, layer_bytes, tensor, *sizes, gives=close(float(whole), rtol=1e-9), name=name, what=what)
        how, name = (sizes, tensor, False, "input"), f"{name} and keep='input'"
        yield Call(_share, layer_bytes, *how, gives=close(1.0, rtol=1e-9), name=name, what=_SHARE)


@check(PREDICT, points=0.25)
def sequence_parallelism_divides_everything(layer_bytes, *, rng):
    """With sequence parallelism each of `tensor` ranks keeps its part of everything, the layer's input included."""
    for tensor in (4, 3, 8):
        sizes = _sizes(rng, tensor)
        for keep in ("all", "input"):
            name = f"layer_bytes{sizes} with tensor={tensor}, sequence parallelism and keep={keep!r}"
            how, gives = (sizes, tensor, True, keep), close(1 / tensor, rtol=1e-9)
            yield Call(_share, layer_bytes, *how, gives=gives, name=name, what=_SHARE)


def _stage(stage_bytes, rng, stages, stage, micro_batches):
    """A call for a stage: one forward at a time enters it before its first backward, and then they alternate."""
    per_stage, layer, alive, most = int(rng.integers(1, 6)), int(rng.integers(1, 10**6)), 0, 0
    for started in range(1, micro_batches + 1):
        alive += 1
        most = max(most, alive)
        alive -= started >= stages - stage
    arguments = layer, stages * per_stage, stages, micro_batches, stage
    gives = close(float(layer * per_stage * most), rtol=1e-9)
    return Call(stage_bytes, *arguments, gives=gives, what="the number of bytes")


@check(PREDICT, points=0.25)
def a_stage_holds_its_micro_batches(stage_bytes, *, rng):
    """With many micro-batches, `stage_bytes` counts those that a stage holds at once under 1F1B: stages − stage."""
    for stages, stage, micro_batches in ((6, 1, 9), (5, 4, 7), (4, 0, 4), (1, 0, 2)):
        yield _stage(stage_bytes, rng, stages, stage, micro_batches)
    for _ in range(5):
        stages = int(rng.integers(2, 9))
        yield _stage(stage_bytes, rng, stages, int(rng.integers(0, stages)), stages + int(rng.integers(0, 9)))


@check(PREDICT, points=0.25)
def a_stage_holds_no_more_than_there_are(stage_bytes, *, rng):
    """`stage_bytes` counts no more than M micro-batches where there are fewer than stages − stage."""
    for micro_batches in (1, 2, 3):
        stages = micro_batches + int(rng.integers(2, 6))
        yield _stage(stage_bytes, rng, stages, int(rng.integers(0, stages - micro_batches)), micro_batches)


def _logits(stage_bytes, layer, layers, stages, micro_batches, stage, logits):
    """What a stage holds more if logits have so many bytes."""
    plain = layer, layers, stages, micro_batches, stage
    return stage_bytes(*plain, logits) - stage_bytes(*plain)


@check(PREDICT, points=0.25)
def the_last_stage_has_the_logits(stage_bytes, *, rng):
    """The last stage holds the logits of one micro-batch besides, and no other stage does."""
    for stages, stage in ((4, 3), (4, 0), (1, 0), (int(rng.integers(3, 9)), 1)):
        layer, micro_batches, logits = (int(n) for n in rng.integers(2, [10**6, 12, 10**6]))
        arguments = layer, stages * int(rng.integers(1, 6)), stages, micro_batches, stage, logits
        gives = close(float(logits if stage == stages - 1 else 0), atol=1e-6)
        name = f"stage_bytes{arguments} less that without logits"
        yield Call(_logits, stage_bytes, *arguments, gives=gives, name=name, what="the difference")
