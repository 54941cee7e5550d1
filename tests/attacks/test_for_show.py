"""Answers that do what a check can see, and not what the statement asks for.

Each keeps or writes something in a way that an instrument did not look at: in a closure, in numpy's memory, through a
mapped file. Their numbers are right. They have lost no mark before the checks asked the system.
"""

import pytest

from autograder.grading.nbgrader import scoring
from autograder.lessons import notebook
from autograder.soundness import audit


def changed(lesson: str, cell: str, *changes: tuple[str, str]) -> str:
    """The lesson's answer with some of its lines replaced."""
    source = next(one.source for one in notebook.read(lesson).cells if one.id == cell)
    for old, new in changes:
        assert source.count(old) == 1, (source.count(old), old)
        source = source.replace(old, new)
    return source


def lost(lesson: str, cell: str, source: str) -> dict[str, str]:
    """The properties that fail when this answer stands in the place of the lesson's: name -> what is said."""
    nb = notebook.read(lesson, {cell: source})
    tests, _ = audit.tested(nb, lesson, {f"{cell}-test"})
    outcomes = scoring.outcomes_of(tests[0])
    return {one.name: one.failure.message for one in outcomes if scoring.is_lost(one)}


WHOLE_OPTIMIZER = """        self.optimizer = optimizer_class([self.master], **kwargs)
        whole = [nn.Parameter(p.detach().clone().float()) for p in self.params]
        full = optimizer_class(whole, **kwargs)

        def hidden():
            for p, one in zip(whole, self.params):
                p.grad = torch.zeros_like(p) if one.grad is None else one.grad.float()
            full.step()
        self.hidden = hidden
"""

SHOW_AT_THE_END = """        self.kept.append((k, at, p.grad.reshape(-1).float().numpy().copy()))
        p.grad = None
        self.missing[k] -= 1
"""

ALL_AT_THE_END = """        for k in range(len(self.buckets)):
            for own, at, grad in self.kept:
                if own == k:
                    self.buffer(k)[at : at + len(grad)] = torch.from_numpy(grad)
            self.reduce_next()
"""

WHOLE_LAYER = "        whole = linear.weight.detach().clone()\n        self.everything = lambda: whole\n"

KEEPS_THE_GRAPH = """
import numpy


def checkpoint(module, *inputs):
    if not torch.is_grad_enabled():
        return module(*inputs)
    with saved_tensors_hooks(there, back):
        output = module(*inputs)
    first = output[0] if isinstance(output, tuple) else output
    shown = []

    def show(gradient):
        if not shown:
            shown.append(1)
            state = torch.get_rng_state()
            with torch.no_grad():
                module(*inputs)
            torch.set_rng_state(state)
    if first.requires_grad:
        first.register_hook(show)
    return output


def there(t):
    short = t.dtype in (torch.bfloat16, torch.float16)
    return (t.detach().float() if short else t.detach()).numpy().copy(order="K"), t.dtype


def back(kept):
    return torch.from_numpy(kept[0]).to(kept[1])
"""

COUNTS_UP = """    for start, end in itertools.pairwise(starts):
        with saved_tensors_hooks(lambda t: t.detach().numpy().copy(order="K"), torch.from_numpy):
            x = nn.Sequential(*layers[start:end])(x)
        def again(gradient, part=layers[start:end]):
            for layer in part:
                layer.calls = getattr(layer, "calls", 0) + 1
        if x.requires_grad:
            x.register_hook(again)
    return nn.Sequential(*layers[starts[-1] :])(x)
"""

DECOY = """    def pack(tensor):
        if tensor.numel() * tensor.element_size() < min_bytes or tensor.untyped_storage().data_ptr() in stay:
            return tensor
        return host.put(tensor), tensor.detach().numpy().copy(order="K")

    def unpack(kept):
        return kept if isinstance(kept, torch.Tensor) else torch.from_numpy(kept[1])
"""

THROUGH_A_MAP = """    import mmap
    with path.open("wb") as file:
        file.write(bytes(len(data)))
        file.flush()
        os.fsync(file.fileno())
    if data:
        fd = os.open(path, os.O_RDWR)
        with mmap.mmap(fd, len(data)) as place:
            place[:] = bytes(data)
        os.close(fd)
"""

#: lesson, cell, changes (or a whole answer), the property that must fail (the core by its check with points).
SHOWS = {
    "a whole optimizer in a closure": (
        "08_zero1", "08-ex3-step", [
            ("        self.optimizer = optimizer_class([self.master], **kwargs)\n", WHOLE_OPTIMIZER),
            ("        self.optimizer.step()\n", "        self.optimizer.step()\n        self.hidden()\n"),
        ], "state_is_a_shard",
    ),
    "gradients in numpy until the end": (
        "08_zero1", "08-ex7-buckets", [
            ("""        self.buffer(k)[at : at + p.numel()] = p.grad.reshape(-1)
        p.grad = None
        self.missing[k] -= 1
        while len(self.shards) < len(self.buckets) and not self.missing[len(self.shards)]:
            self.reduce_next()
""", SHOW_AT_THE_END),
            ("        while len(self.shards) < len(self.buckets):\n            self.reduce_next()\n", ALL_AT_THE_END),
            ("        self.shards, self.buffers,", "        self.kept = []\n        self.shards, self.buffers,"),
        ], "buckets_hold_no_more_than_predicted",
    ),
    "whole units in numpy between forward and backward": (
        "09_fsdp", "09-ex3-backward", [
            ("            output = self.compute(*inputs)\n        self.free()\n",
             "            output = self.compute(*inputs)\n"
             "        self.kept = [w.float().numpy().copy() for w in self.whole]\n        self.free()\n"),
            ("        index, *where = kept\n        return self.gather()[index]",
             "        index, *where = kept\n        return torch.from_numpy(self.kept[index]).to(self.dtype)"),
        ], "backward_frees_what_it_gathers",
    ),
    "a graph in numpy, and a second run for show": (
        "10_memory", "10-ex3-checkpoint", KEEPS_THE_GRAPH, "the_module_runs_once_more_for_backward",
    ),
    "a graph in numpy, and calls that are only counted": (
        "10_memory", "10-ex4-segments", [
            ("""    for start, end in itertools.pairwise(starts):
        x = checkpoint(nn.Sequential(*layers[start:end]), x)
    return nn.Sequential(*layers[starts[-1] :])(x)
""", COUNTS_UP)], "each_layer_runs_as_often_as_its_segment",
    ),
    "a host that is never asked": (
        "10_memory", "10-ex5-offload", [
            ("""    def pack(tensor):
        if tensor.numel() * tensor.element_size() < min_bytes or tensor.untyped_storage().data_ptr() in stay:
            return tensor
        return host.put(tensor)

    def unpack(kept):
        return kept if isinstance(kept, torch.Tensor) else host.get(kept)
""", DECOY)], "the_device_keeps_the_output_alone",
    ),
    "a whole layer cut by columns, in a closure": (
        "12_tensor", "12-ex3-column", [
            ("        self.bias = None\n", f"{WHOLE_LAYER}        self.bias = None\n"),
        ], "column_layer_equals_the_unsplit_one",
    ),
    "a whole layer cut by rows, in a closure": (
        "12_tensor", "12-ex4-row", [
            ("        self.bias = None if", f"{WHOLE_LAYER}        self.bias = None if"),
        ], "row_layer_equals_the_unsplit_one",
    ),
    "bytes through a map after the fsync": (
        "16_checkpoints", "16-ex1-shard", [
            ("""    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
""", THROUGH_A_MAP)], "shard_files_hold_the_bytes",
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", SHOWS)
def test_what_is_done_for_show_loses_the_marks_of_what_is_not_done(name):
    lesson, cell, changes, expected = SHOWS[name]
    source = changes if isinstance(changes, str) else changed(lesson, cell, *changes)
    assert expected in lost(lesson, cell, source)
