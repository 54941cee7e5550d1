"""Right answers to lesson 12, written differently."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: B905, F821

from __future__ import annotations

from autograder.answers.right import answer_to


@answer_to("12-ex1-operators")
def operators_that_wait():
    """All-reduces buffers asynchronously, returns x itself and a copy of the gradient, sends nothing with one rank."""

    class Copy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x

        @staticmethod
        def backward(ctx, grad):
            if dist.get_world_size() == 1:
                return grad
            buffer = torch.zeros(grad.shape, dtype=grad.dtype)
            buffer += grad
            dist.all_reduce(buffer, async_op=True).wait()
            return buffer

    class Reduce(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            flat = x.flatten().clone()
            dist.all_reduce(flat, op=dist.ReduceOp.SUM, async_op=True).wait()
            return flat.reshape(x.shape)

        @staticmethod
        def backward(ctx, grad):
            return grad.clone()


@answer_to("12-ex2-enter-leave")
def positions_in_lists():
    """Gathers and scatters lists of pieces, and flat memory."""

    class Enter(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            pieces = [torch.empty(x.shape, dtype=x.dtype) for _ in range(dist.get_world_size())]
            dist.all_gather(pieces, x.clone(memory_format=torch.contiguous_format))
            return torch.cat(pieces)

        @staticmethod
        def backward(ctx, grad):
            pieces = [piece.contiguous() for piece in grad.tensor_split(dist.get_world_size())]
            mine = torch.zeros(pieces[0].shape, dtype=grad.dtype)
            dist.reduce_scatter(mine, pieces)
            return mine

    class Leave(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.world_size = dist.get_world_size()
            if ctx.world_size == 1:
                return x.clone()
            out = torch.empty(x.numel() // ctx.world_size, dtype=x.dtype)
            dist.reduce_scatter_single(out, x.reshape(-1).contiguous())
            return out.view(-1, *x.shape[1:])

        @staticmethod
        def backward(ctx, grad):
            whole = torch.empty(ctx.world_size, grad.numel(), dtype=grad.dtype)
            dist.all_gather_single(whole.view(-1), grad.flatten())
            return whole.view(-1, *grad.shape[1:])


@answer_to("12-ex3-linear")
def layers_around_a_small_one():
    """Holds a smaller nn.Linear and shows its parameters as properties; multiplies by hand, adds the bias in place."""

    class ColumnParallelLinear(nn.Module):
        def __init__(self, linear):
            super().__init__()
            outputs, r = linear.out_features // dist.get_world_size(), dist.get_rank()
            self.small = nn.Linear(linear.in_features, outputs, bias=linear.bias is not None)
            mine = {name: value[r * outputs : (r + 1) * outputs] for name, value in linear.state_dict().items()}
            self.small.load_state_dict(mine)

        weight = property(lambda self: self.small.weight)
        bias = property(lambda self: self.small.bias)

        def forward(self, x):
            return self.small(Copy.apply(x))

    class RowParallelLinear(nn.Module):
        def __init__(self, linear):
            super().__init__()
            columns = torch.arange(linear.in_features).reshape(dist.get_world_size(), -1)[dist.get_rank()]
            self.weight, self.bias = nn.Parameter(linear.weight.detach()[:, columns]), linear.bias

        def forward(self, x):
            out = Reduce.apply(torch.matmul(x, self.weight.mT))
            if self.bias is not None:
                out += self.bias
            return out


@answer_to("12-ex3-linear")
def layers_that_overlap():
    """One autograd function, whose all-reduce runs beside the weight's gradient; the whole bias is the given one."""

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.save_for_backward(x, weight)
            return x @ weight.t()

        @staticmethod
        def backward(ctx, grad):
            x, weight = ctx.saved_tensors
            x_grad = work = None
            if ctx.needs_input_grad[0]:
                x_grad = grad @ weight
                work = dist.all_reduce(x_grad, async_op=True)
            weight_grad = grad.reshape(-1, grad.shape[-1]).t() @ x.reshape(-1, x.shape[-1])
            if work is not None:
                work.wait()
            return x_grad, weight_grad

    class ColumnParallelLinear(nn.Module):
        def __init__(self, linear):
            super().__init__()
            size = linear.out_features // dist.get_world_size()
            rows = slice(dist.get_rank() * size, (dist.get_rank() + 1) * size)
            self.weight = nn.Parameter(linear.weight.data[rows].clone())
            self.register_parameter("bias", None)
            if linear.bias is not None:
                self.bias = nn.Parameter(linear.bias.data[rows].clone())

        def forward(self, x):
            y = Product.apply(x, self.weight)
            return y if self.bias is None else y + self.bias

    class RowParallelLinear(nn.Module):
        def __init__(self, linear):
            super().__init__()
            size = linear.in_features // dist.get_world_size()
            self.weight = nn.Parameter(linear.weight.data.narrow(1, dist.get_rank() * size, size).contiguous())
            self.bias = linear.bias

        def forward(self, x):
            y = x @ self.weight.t()
            dist.all_reduce(y.detach())  # behind autograd's back: the gradient passes unchanged
            return y if self.bias is None else y + self.bias


@answer_to("12-ex4-mlp")
def mlp_with_one_matrix():
    """Multiplies by gate and up together, and holds plain layers."""

    class ParallelMLP(nn.Module):
        def __init__(self, mlp):
            super().__init__()
            share = mlp.gate.out_features // dist.get_world_size()
            own = dist.get_rank() * share, (dist.get_rank() + 1) * share
            self.gate, self.up = rows_of(mlp.gate, *own), rows_of(mlp.up, *own)
            self.down = nn.Linear(share, mlp.down.out_features, bias=False)
            self.down.weight.data = mlp.down.weight.detach()[:, slice(*own)].clone()

        def forward(self, x):
            both = functional.linear(Copy.apply(x), torch.cat([self.gate.weight, self.up.weight]))
            gate, up = both.chunk(2, dim=-1)
            return Reduce.apply(self.down(gate * gate.sigmoid() * up))


@answer_to("12-ex5-attention")
def attention_head_by_head():
    """Cuts plain layers, loops over the query heads, and adds up copies in a tensor of all heads."""

    class ParallelAttention(nn.Module):
        def __init__(self, attention):
            super().__init__()
            n, r = dist.get_world_size(), dist.get_rank()
            self.size, self.kv_heads = attention.size, attention.kv_heads
            mine = range(r * attention.heads // n, (r + 1) * attention.heads // n)
            self.uses = [head * self.kv_heads // attention.heads for head in mine]
            self.rows = slice(self.uses[0] * self.size, (self.uses[-1] + 1) * self.size)
            columns = slice(mine[0] * self.size, (mine[-1] + 1) * self.size)
            self.q = rows_of(attention.q, columns.start, columns.stop)
            self.k, self.v = (rows_of(one, self.rows.start, self.rows.stop) for one in (attention.k, attention.v))
            self.proj = nn.Linear(columns.stop - columns.start, attention.proj.out_features)
            self.proj.weight.data = attention.proj.weight.detach()[:, columns].clone()
            self.proj.bias.data = attention.proj.bias.detach().clone()

        def forward(self, x):
            x = Enter.apply(x)
            q, k, v = (one(x).transpose(0, 1).split(self.size, dim=-1) for one in (self.q, self.k, self.v))
            later, heads = torch.ones(len(x), len(x)).triu(1) > 0, []
            for query, head in zip(q, self.uses):
                key, value = k[head - self.uses[0]], v[head - self.uses[0]]
                scores = (query @ key.mT * self.size**-0.5).masked_fill(later, -torch.inf)
                heads.append(scores.softmax(-1) @ value)
            mixed = torch.cat(heads, dim=-1).transpose(0, 1)
            return Leave.apply(mixed @ self.proj.weight.t()) + self.proj.bias

        def sum_partial_gradients(self):
            for one in (self.k, self.v):
                whole = torch.zeros(self.kv_heads * self.size, one.in_features)
                whole[self.rows] = one.weight.grad
                dist.all_reduce(whole)
                one.weight.grad = whole[self.rows].clone()
            dist.all_reduce(self.proj.bias.grad)


@answer_to("12-ex6-loss")
def loss_from_logarithms():
    """Adds up each rank's own log of sums in a way that does not overflow, one collective for each value."""

    def vocabulary_parallel_loss(logits, targets):
        n, width = logits.shape
        own = torch.logsumexp(logits, dim=1)
        most = own.detach().clone()
        dist.all_reduce(most, dist.ReduceOp.MAX)
        whole = most + Reduce.apply(torch.exp(own - most)).log()
        columns = torch.arange(width) + dist.get_rank() * width
        right = Reduce.apply(torch.where(columns == targets[:, None], logits, 0).sum(1))
        return (whole - right).sum() / n


@answer_to("12-ex6-loss")
def loss_with_its_own_gradient():
    """One autograd function for all of it, which keeps the probabilities and writes the gradient down."""

    class Loss(torch.autograd.Function):
        @staticmethod
        def forward(ctx, logits, targets):
            width = logits.shape[1]
            most = logits.max(dim=1).values
            dist.all_reduce(most, op=dist.ReduceOp.MAX)
            shifted = logits - most[:, None]
            column = targets - width * dist.get_rank()
            here = torch.where((column >= 0) & (column < width))[0]
            sums = torch.zeros(2, len(targets), dtype=logits.dtype)
            sums[0] = shifted.exp().sum(1)
            sums[1, here] = shifted[here, column[here]]
            dist.all_reduce(sums)
            gradient = shifted.exp() / sums[0][:, None]
            gradient[here, column[here]] -= 1
            ctx.save_for_backward(gradient)
            return (sums[0].log() - sums[1]).mean()

        @staticmethod
        def backward(ctx, upstream):
            (gradient,) = ctx.saved_tensors
            return gradient * upstream / len(gradient), None

    def vocabulary_parallel_loss(logits, targets):
        return Loss.apply(logits, targets)


@answer_to("12-ex7-diagnose")
def diagnosis_by_the_ranks():
    """Asks first whether the ranks agree, then how large the gradient is."""

    def diagnose(run):
        first, *others = run["parts"]
        if all(torch.equal(first[name], other[name]) for other in others for name in first):
            return "equal parts"
        y, x_grad = in_one_process(run)
        if not torch.allclose(run["y"][-1], y, rtol=1e-3, atol=1e-3 * float(y.abs().max())):
            return "bias before the sum"
        close = {"rtol": 0, "atol": 1e-3 * float(x_grad.abs().max())}
        if any(not torch.allclose(run["x_grad"][0], other, **close) for other in run["x_grad"][1:]):
            return "no sum in f"
        return "none" if torch.allclose(run["x_grad"][0], x_grad, **close) else "two sums in g"
