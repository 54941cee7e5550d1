"""Other ways for numbers to get from rank to rank than those that were asked for, and ledgers that hide them."""

from __future__ import annotations

import textwrap
from functools import partial

from tests.attacks.attack import Attack, code, with_answers, written
from tests.attacks.lessons import RING

BROADCAST = """
def broadcast(tensor: torch.Tensor, src: int) -> None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if not 0 <= src < world_size:
        raise ValueError(f"src must be in 0…{world_size - 1}, got {src}")
    data = tensor.contiguous()
MOVE
    if data is not tensor:
        tensor.copy_(data)
"""
ALL_GATHER = """
def all_gather(chunk: torch.Tensor, numel: int) -> torch.Tensor:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    whole = chunk.new_zeros(numel)
    chunks = whole.tensor_split(world_size)
    if chunk.shape != chunks[rank].shape:
        raise ValueError(f"chunk of rank {rank} does not fit, it has shape {tuple(chunk.shape)}")
    chunks[rank].copy_(chunk)
MOVE
    return whole
"""
RECORDER = """
recorder = next(
    cell.cell_contents for cell in dist.send.__closure__ if type(cell.cell_contents).__name__ == "_Recorder"
)
"""
#: All chunks, by the group's own all_gather in C++, which nobody records.
GATHERED = """
parts = [torch.zeros(len(chunks[0]), dtype=chunk.dtype) for _ in range(world_size)]
mine = torch.zeros(len(chunks[0]), dtype=chunk.dtype)
mine[: len(chunk)] = chunk
dist.group.WORLD.allgather([parts], [mine]).wait()
for part, into in zip(parts, chunks):
    into.copy_(part[: len(into)])
"""
#: Messages that were never sent, as the ring would have sent them.
FORGED = """
for step in range(world_size - 1):
    sent, got = chunks[(rank - step) % world_size], chunks[(rank - step - 1) % world_size]
    number = recorder.call("isend", False, peer=right, bytes=sent.nbytes, dtype=str(sent.dtype), tag=0)
    other = recorder.call("recv", True, peer=left, bytes=got.nbytes, dtype=str(got.dtype), tag=0)
    recorder.write(e="done", i=other)
    recorder.write(e="wait", i=number, at=["", 0])
    recorder.write(e="done", i=number)
"""


def _moves(name: str, tries: str, source: str, exercise: str, frame: str, worth: dict[str, float]) -> Attack:
    """An answer that moves numbers by the first part of this source; the second is a cell of the student's own."""
    for word, stands_for in {"RECORDER": RECORDER, "GATHERED": GATHERED, "FORGED": FORGED}.items():
        source = source.replace(word, stands_for)
    move, _, before = source.partition("--- before\n")
    answer = frame.replace("MOVE", textwrap.indent(code(move), "    ").rstrip())
    return Attack(name, tries, with_answers(before, place=1, **{exercise: answer}), worth, lesson=RING)


ATTACKS = written(
    """
=== broadcast: collective-by-wrapped
# Calls torch's own broadcast past the ledger, by the `__wrapped__` of the one that is recorded.
dist.broadcast.__wrapped__(data, src=src)
=== broadcast: collective-by-group
# Calls the broadcast of the process group itself, in C++, which nobody records.
dist.group.WORLD.broadcast(data, src).wait()
=== broadcast: collective-while-nested
# Tells the recorder that it is inside a call of torch's own, of which no notice is taken.
RECORDER
with recorder:
    dist.broadcast(data, src=src)
=== broadcast: recorder-silenced
# Sends to everybody in turn, in N − 1 rounds, while the recorder writes nothing down.
RECORDER
write, type(recorder).write = type(recorder).write, lambda self, **event: None
for dst in range(world_size):
    if rank == src and dst != src:
        dist.send(data, dst=dst)
if rank != src:
    dist.recv(data, src=src)
type(recorder).write = write
=== broadcast: record-edited
# Calls torch's broadcast, and takes the lines that say so out of the ledger's file.
RECORDER
import json, os
path = os.readlink(f"/proc/self/fd/{recorder._file}")
dist.broadcast(data, src=src)
events = [json.loads(line) for line in open(path)]
gone = {event["i"] for event in events if event.get("op") == "broadcast"}
with open(path, "w") as file:
    file.writelines(json.dumps(event) + "\\n" for event in events if event.get("i") not in gone)
=== broadcast: moves-by-file
# Hands the numbers over in a file, without one message.
import os, time
calls = broadcast.__dict__.setdefault("calls", [])
calls.append(1)
base = os.path.join(os.path.dirname(os.readlink("/proc/self/fd/1")), f"moved-{len(calls)}")
if rank == src:
    torch.save(data, base + ".part")
    os.rename(base + ".part", base)
else:
    while not os.path.exists(base):
        time.sleep(0.001)
    data.copy_(torch.load(base))
dist.distributed_c10d._get_default_store().add(base, 1)
while int(dist.distributed_c10d._get_default_store().add(base, 0)) < world_size:
    time.sleep(0.001)
=== broadcast: moves-by-store
# Hands the numbers over in the store that the ranks found each other by.
import io
calls = broadcast.__dict__.setdefault("calls", [])
calls.append(1)
store, key = dist.distributed_c10d._get_default_store(), f"moved-{len(calls)}"
if rank == src:
    held = io.BytesIO()
    torch.save(data, held)
    store.set(key, held.getvalue().hex())
else:
    data.copy_(torch.load(io.BytesIO(bytes.fromhex(store.get(key).decode()))))
=== broadcast: inputs-of-the-driver
# Takes the source's numbers from the variables of the check's driver, which knows every rank's.
import sys
frame = sys._getframe()
while frame and not {"case", "cases"} & set(frame.f_locals):
    frame = frame.f_back
if frame:
    case = frame.f_locals["case"]
    data = torch.from_numpy(case.inputs[src].copy())
    data = data.t() if case.layout == "transposed" else data
    tensor.copy_(data)
    data = tensor
else:
    dist.broadcast.__wrapped__(data, src=src)
=== gather: bytes-that-lie
# Sends whole vectors round the ring, as a kind of tensor that says it is as small as a chunk.
for step in range(world_size - 1):
    passing, got = whole.clone().as_subclass(Small), torch.zeros_like(whole)
    passing.claimed = chunks[(rank - step) % world_size].nbytes
    work = dist.isend(passing, dst=right)
    dist.recv(got, src=left)
    work.wait()
    mine = (rank - step - 1) % world_size
    chunks[mine].copy_(got.tensor_split(world_size)[mine])
--- before
class Small(torch.Tensor):
    nbytes = property(lambda self: self.claimed)
=== gather: forged-messages
# Calls the group's own all_gather, and writes the messages of a ring into the ledger, which were never sent.
RECORDER
GATHERED
FORGED
=== gather: forged-contents
# The same, and the messages with their contents are put where the check's driver keeps what was sent.
RECORDER
GATHERED
FORGED
import sys
frame = sys._getframe()
while frame and "note" not in frame.f_locals:
    frame = frame.f_back
if frame:
    for step in range(world_size - 1):
        kept = chunks[(rank - step) % world_size].clone()
        frame.f_locals["sent"].append(frame.f_globals["Sent"](right, 0, kept))
=== broadcast: forged-order
# Passes the numbers along a chain, and writes down that every rank has sent them before it received them.
RECORDER
right, left, number = (rank + 1) % world_size, (rank - 1) % world_size, (rank - src) % world_size
if number + 1 < world_size:
    recorder.call("isend", False, peer=right, bytes=data.nbytes, dtype=str(data.dtype), tag=0)
if number:
    dist.recv(data, src=left)
if number + 1 < world_size:
    dist.group.WORLD.send([data], right, 0).wait()
=== gather: forged-file
# The same, and the messages are written into the ledger's file directly.
GATHERED
import glob, json, os, time
path = os.path.join(os.path.dirname(os.readlink("/proc/self/fd/1")), f"events.{rank}")
with open(path, "a") as file:
    for step in range(world_size - 1):
        sent = chunks[(rank - step) % world_size]
        number = 10**6 + 2 * os.path.getsize(path) + step
        event = {"e": "call", "i": number, "op": "send", "peer": right, "bytes": sent.nbytes, "blocking": True}
        event |= {"dtype": str(sent.dtype), "tag": 0, "at": ["", 0], "t": time.monotonic()}
        file.write(json.dumps(event) + "\\n")
        file.write(json.dumps({"e": "done", "i": number, "t": time.monotonic()}) + "\\n")
=== broadcast: bomb-in-the-answer
# Has a rank answer, over the runtime's own connection, with an object that makes a file where it is unpickled.
import sys
frame = sys._getframe()
while "connection" not in frame.f_locals:
    frame = frame.f_back
frame.f_locals["connection"].send(Bomb())
--- before
class Bomb:
    def __reduce__(self): return exec, ("open('@HOME@/pickled', 'w').close()",)
=== broadcast: patched-checks
# In the notebook's process, replaces the checks with ones that pass, and `ranks.run` with one that fails.
pass
--- before
try:
    from autograder import checks
    checks.try_exercise = lambda *exercise, **functions: None
except ImportError:
    pass

class Agreeable(list):
    __hash__ = None
    def __eq__(self, other): return True

class Faked:
    class ledger:
        rounds = staticmethod(lambda: 0)
    def __init__(self, n): self.n = n
    def __iter__(self): return iter([Agreeable() for _ in range(self.n)])

_run = ranks.run
ranks.run = lambda worker, world_size=4, args=(), timeout=60, **more: (
    Faked(world_size)
    if "src" in worker.__code__.co_varnames
    else _run(worker, world_size, args, timeout, **more)
)
=== broadcast: patched-ledger
# Calls torch's broadcast, and has the notebook's process read ledgers without broadcasts.
dist.broadcast(data, src=src)
--- before
import ranks.launch
_read = ranks.launch.read_records

def read_records(folder, world_size):
    records = _read(folder, world_size)
    for record in records:
        record.messages = [m for m in record.messages if m.call != "broadcast"]
    return records

ranks.launch.read_records = read_records
=== broadcast: solution-of-the-grader
# Imports the autograder's reader of notebooks and runs the solution.
answer(tensor, src)
--- before
import sys
sys.path.append("@REPO@")
try:
    from autograder.lesson import notebook
    answer = notebook.functions("01_collectives")["broadcast"]
except Exception as error:
    answer = None
""",
    broadcast=partial(_moves, exercise="ex1", frame=BROADCAST, worth={"ex1": 0.0, "ex3": 3.0}),
    gather=partial(_moves, exercise="ex3", frame=ALL_GATHER, worth={"ex1": 3.0, "ex3": 0.0}),
)
