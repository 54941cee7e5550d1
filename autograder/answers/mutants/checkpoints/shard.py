"""Wrong answers to lesson 16, exercise 1: a shard."""

from __future__ import annotations

from autograder.answers.mutants import edit, tests_of

SHARD, SAVE, LOAD, UPKEEP, ASYNC = "16-ex1-shard", "16-ex2-save", "16-ex3-load", "16-ex4-upkeep", "16-ex6-async"


SYNC = "        file.write(data)\n        file.flush()\n        os.fsync(file.fileno())\n"

fsync_before_flush = edit(
    SHARD,
    """fsync covers only what the operating system already has. Your bytes were still in Python's buffer, which was
    written when the file was closed, after the fsync. Flush first.""",
    (SYNC, "        file.write(data)\n        os.fsync(file.fileno())\n"),
    breaks=tests_of(SHARD, SAVE, UPKEEP),
)

never_on_the_disk = edit(
    SHARD,
    """You closed the file without an fsync. After a power cut the rename may be on the disk without the bytes: a
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
