"""Answers that do what a check can see, and not what the statement asks for.

Each keeps or writes something in a way that an instrument did not look at: in a closure, in numpy's memory, through a
mapped file. Their numbers are right. They have lost no mark before the checks asked the system.
"""

import pytest

from autograder.audit import audit
from autograder.lesson import notebook

#: A name, the answer and the property that must fail; the changes of the lesson's answer, or what stands in its place.
SHOWS = """
=== a whole optimizer in a closure: 08-ex3-step, state_is_a_shard
@@
         self.optimizer = optimizer_class([self.master], **kwargs)
+        whole = [nn.Parameter(p.detach().clone().float()) for p in self.params]
+        full = optimizer_class(whole, **kwargs)
+
+        def hidden():
+            for p, one in zip(whole, self.params):
+                p.grad = torch.zeros_like(p) if one.grad is None else one.grad.float()
+            full.step()
+        self.hidden = hidden
@@
         self.optimizer.step()
+        self.hidden()
=== gradients in numpy until the end: 08-ex7-buckets, buckets_hold_no_more_than_predicted
@@
     def reset(self):
+        self.kept = []
@@
-        self.buffer(k)[at : at + p.numel()] = p.grad.reshape(-1)
+        self.kept.append((k, at, p.grad.reshape(-1).float().numpy().copy()))
         p.grad = None
         self.missing[k] -= 1
-        while len(self.shards) < len(self.buckets) and not self.missing[len(self.shards)]:
-            self.reduce_next()
@@
-        while len(self.shards) < len(self.buckets):
+        for k in range(len(self.buckets)):
+            for own, at, grad in self.kept:
+                if own == k:
+                    self.buffer(k)[at : at + len(grad)] = torch.from_numpy(grad)
             self.reduce_next()
=== whole units in numpy between forward and backward: 09-ex3-backward, trained_units_are_whole_while_they_compute
@@
             output = self.compute(*inputs)
+        self.kept = [w.float().numpy().copy() for w in self.whole]
         self.free()
@@
-        return self.gather()[index].as_strided(*where)
+        return torch.from_numpy(self.kept[index]).to(self.dtype).as_strided(*where)
=== a graph in numpy, and a second run for show: 10-ex3-checkpoint, the_module_runs_once_more_for_backward
@@
+import numpy
+
+
+def checkpoint(module, *inputs):
+    if not torch.is_grad_enabled():
+        return module(*inputs)
+    with saved_tensors_hooks(there, back):
+        output = module(*inputs)
+    first = output[0] if isinstance(output, tuple) else output
+    shown = []
+
+    def show(gradient):
+        if not shown:
+            shown.append(1)
+            state = torch.get_rng_state()
+            with torch.no_grad():
+                module(*inputs)
+            torch.set_rng_state(state)
+    if first.requires_grad:
+        first.register_hook(show)
+    return output
+
+
+def there(t):
+    short = t.dtype in (torch.bfloat16, torch.float16)
+    return (t.detach().float() if short else t.detach()).numpy().copy(order="K"), t.dtype
+
+
+def back(kept):
+    return torch.from_numpy(kept[0]).to(kept[1])
=== a host that is never asked: 10-ex5-offload, the_device_keeps_the_output_alone
@@
-        return host.put(tensor)
+        return host.put(tensor), tensor.detach().numpy().copy(order="K")
@@
-        return kept if isinstance(kept, torch.Tensor) else host.get(kept)
+        return kept if isinstance(kept, torch.Tensor) else torch.from_numpy(kept[1])
=== bytes through a map after the fsync: 16-ex1-shard, files_are_durable
@@
+    import mmap
     with path.open("wb") as file:
-        file.write(data)
+        file.write(bytes(len(data)))
         file.flush()
         os.fsync(file.fileno())
+    if data:
+        fd = os.open(path, os.O_RDWR)
+        with mmap.mmap(fd, len(data)) as place:
+            place[:] = bytes(data)
+        os.close(fd)
"""


def answer(lesson: str, cell: str, changes: str) -> str:
    """The lesson's answer with some of its lines replaced; changes: as `diff` prints them."""
    source = next(one.source for one in notebook.read(lesson).cells if one.id == cell)
    for change in changes.removeprefix("@@\n").split("\n@@\n"):
        lines = change.split("\n")
        old, new = ("\n".join(line[1:] for line in lines if line[0] in signs) for signs in (" -", " +"))
        if not old:
            return new + "\n"
        assert source.count(old) == 1, (source.count(old), old)
        source = source.replace(old, new)
    return source


@pytest.mark.slow
@pytest.mark.parametrize("case", SHOWS.rstrip().split("\n=== ")[1:], ids=lambda case: case.split(":")[0])
def test_what_is_done_for_show_loses_the_marks_of_what_is_not_done(case):
    head, changes = case.split("\n", 1)
    cell, expected = head.split(": ")[1].split(", ")
    lesson = next(name for name in notebook.lessons() if name[:2] == cell[:2])
    nb = notebook.read(lesson, {cell: answer(lesson, cell, changes)})
    [test] = audit.tested(nb, lesson, {f"{cell}-test"}).values()
    assert expected in [one.name for one in test.lost]
