"""Right answers to lesson 12, written differently."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: B905, F821

from __future__ import annotations

from autograder.answers.right import answer_to


@answer_to("12-ex1-operators")
def operators_that_wait():
    """All-reduces buffers asynchronously, returns x itself and a copy of the gradient, prints and warns."""

    class Copy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x

        @staticmethod
        def backward(ctx, grad):
            buffer = torch.zeros(grad.shape, dtype=grad.dtype)
            buffer += grad
            work = dist.all_reduce(buffer, async_op=True)
            work.wait()
            return buffer

    class Reduce(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            print("reduce", tuple(x.shape))
            flat = x.flatten().clone()
            dist.all_reduce(flat, op=dist.ReduceOp.SUM, async_op=True).wait()
            return flat.reshape(x.shape)

        @staticmethod
        def backward(ctx, grad):
            return grad.clone()


@answer_to("12-ex1-operators")
def operators_that_skip_one_rank():
    """Sends nothing with one rank, and copies with contiguous() where that makes a copy."""

    class Copy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.alone = dist.get_world_size() == 1
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            if ctx.alone:
                return grad
            total = grad.contiguous().clone()
            dist.all_reduce(total)
            return total

    class Reduce(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            if dist.get_world_size() == 1:
                return x.view_as(x)
            total = x.contiguous().clone()
            dist.all_reduce(total)
            return total

        @staticmethod
        def backward(ctx, grad):
            return 1 * grad


@answer_to("12-ex2-enter-leave")
def positions_in_lists():
    """Gathers and scatters lists of pieces, and returns what is not contiguous."""

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


@answer_to("12-ex3-column")
def column_around_a_small_linear():
    """Holds a smaller nn.Linear, and shows its parameters as properties."""

    class ColumnParallelLinear(nn.Module):
        def __init__(self, linear):
            super().__init__()
            n, r = dist.get_world_size(), dist.get_rank()
            if linear.out_features != n * (linear.out_features // n):
                raise ValueError(f"cannot deal out {linear.out_features} outputs (out_features) to {n} ranks")
            outputs, state = linear.out_features // n, linear.state_dict()
            self.small = nn.Linear(linear.in_features, outputs, bias=linear.bias is not None, dtype=linear.weight.dtype)
            mine = {name: value[r * outputs : (r + 1) * outputs] for name, value in state.items()}
            self.small.load_state_dict(mine)

        weight = property(lambda self: self.small.weight)
        bias = property(lambda self: self.small.bias)

        def forward(self, x):
            return self.small(Copy.apply(x))


@answer_to("12-ex3-column")
def column_that_overlaps():
    """One autograd function for the whole product: the all-reduce runs while the weight's gradient is computed."""

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
            size, rest = divmod(linear.out_features, dist.get_world_size())
            if rest:
                raise ValueError(f"out_features {linear.out_features} over {dist.get_world_size()} ranks")
            rows = slice(dist.get_rank() * size, (dist.get_rank() + 1) * size)
            self.weight = nn.Parameter(torch.tensor(linear.weight[rows].tolist(), dtype=linear.weight.dtype))
            self.register_parameter("bias", None)
            if linear.bias is not None:
                self.bias = nn.Parameter(linear.bias.data[rows].clone())

        def forward(self, x):
            y = Product.apply(x, self.weight)
            if self.bias is not None:
                y = y + self.bias
            return y


@answer_to("12-ex4-row")
def row_by_matmul():
    """Multiplies by hand, adds the bias in place, and takes the columns by index."""

    class RowParallelLinear(nn.Module):
        def __init__(self, linear):
            super().__init__()
            n, inputs = dist.get_world_size(), linear.weight.shape[1]
            if inputs % n != 0:
                raise ValueError("in_features")
            columns = torch.arange(inputs).reshape(n, -1)[dist.get_rank()]
            self.weight = nn.Parameter(linear.weight.detach()[:, columns])
            self.register_parameter("bias", None)
            if linear.bias is not None:
                self.bias = nn.Parameter(torch.empty_like(linear.bias).copy_(linear.bias.detach()))

        def forward(self, x):
            out = Reduce.apply(torch.matmul(x, self.weight.mT))
            if self.bias is not None:
                out += self.bias
            return out


@answer_to("12-ex5-mlp")
def mlp_from_the_operators():
    """Uses the layers for their parameters and writes the products out."""

    class ParallelMLP(nn.Module):
        def __init__(self, mlp):
            super().__init__()
            self.out, self.fc = RowParallelLinear(mlp.out), ColumnParallelLinear(mlp.fc)

        def forward(self, x):
            hidden = functional.linear(Copy.apply(x), self.fc.weight, self.fc.bias)
            y = Reduce.apply(nn.GELU()(hidden) @ self.out.weight.t())
            return y if self.out.bias is None else self.out.bias + y


@answer_to("12-ex6-attention")
def attention_from_slices():
    """Makes a smaller nn.Linear for qkv from three slices, and writes softmax out for all heads at once."""

    class ParallelAttention(nn.Module):
        def __init__(self, attention):
            super().__init__()
            n, r = dist.get_world_size(), dist.get_rank()
            if attention.heads % n:
                raise ValueError(f"{attention.heads} heads cannot be shared by {n} ranks")
            self.n_heads, whole = attention.heads // n, attention.qkv
            width = whole.in_features
            part = width // n
            slices = [slice(third * width + r * part, third * width + (r + 1) * part) for third in range(3)]
            self.qkv = nn.Linear(width, 3 * part, bias=whole.bias is not None).to(whole.weight.dtype)
            with torch.no_grad():
                self.qkv.weight.copy_(torch.cat([whole.weight[s] for s in slices]))
                if whole.bias is not None:
                    self.qkv.bias.copy_(torch.cat([whole.bias[s] for s in slices]))
            self.proj = RowParallelLinear(attention.proj)
            self.register_buffer("mask", torch.zeros(64, 64).masked_fill(torch.ones(64, 64).triu(1) > 0, -torch.inf))

        def forward(self, x):
            b, t, _ = x.shape
            q, k, v = (p.view(b, t, self.n_heads, -1).transpose(1, 2) for p in self.qkv(Copy.apply(x)).chunk(3, -1))
            scores = q @ k.mT / q.shape[-1] ** 0.5
            mixed = (scores + self.mask[:t, :t].to(x.dtype)).softmax(-1) @ v
            return self.proj(mixed.transpose(1, 2).contiguous().view(b, t, -1))


@answer_to("12-ex6-attention")
def attention_head_by_head():
    """Keeps the parameters in a plain container, loops over the heads, and adds the mask."""

    class ParallelAttention(nn.Module):
        def __init__(self, attention):
            super().__init__()
            n, r = dist.get_world_size(), dist.get_rank()
            self.heads, rest = divmod(attention.heads, n)
            if rest:
                raise ValueError("the number of heads must be a multiple of the number of ranks")
            self.qkv, self.proj = nn.Module(), RowParallelLinear(attention.proj)
            for name in ("weight", "bias"):
                whole = getattr(attention.qkv, name)
                own = whole if whole is None else torch.cat([third.chunk(n)[r] for third in whole.data.chunk(3)])
                self.qkv.register_parameter(name, own if own is None else nn.Parameter(own))

        def forward(self, x):
            y = functional.linear(Copy.apply(x), self.qkv.weight, self.qkv.bias)
            heads = []
            for q, k, v in zip(*(part.chunk(self.heads, dim=-1) for part in y.chunk(3, dim=-1))):
                mask = torch.full((x.shape[1], x.shape[1]), -torch.inf, dtype=x.dtype).triu(1)
                heads.append(torch.softmax(q @ k.mT * q.shape[-1] ** -0.5 + mask, dim=-1) @ v)
            return self.proj(torch.cat(heads, dim=-1))


@answer_to("12-ex7-loss")
def loss_behind_autograds_back():
    """Adds up outside autograd, which sees nothing to undo: the gradient passes a sum of all ranks unchanged."""

    def vocabulary_parallel_loss(logits, targets):
        most = logits.detach().max(dim=1, keepdim=True).values.contiguous()
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
        exponentials = (logits - most).exp().sum(dim=1)
        dist.all_reduce(exponentials.detach())
        width, first = logits.shape[1], dist.get_rank() * logits.shape[1]
        one_hot = functional.one_hot(targets, width * dist.get_world_size())[:, first : first + width].to(logits.dtype)
        own = ((logits - most) * one_hot).sum(dim=1)
        dist.all_reduce(own.detach())
        return torch.mean(torch.log(exponentials) - own)


@answer_to("12-ex7-loss")
def loss_from_logarithms():
    """Adds up each rank's own log of sums in a way that does not overflow, one collective for each number."""

    def vocabulary_parallel_loss(logits, targets):
        n, width = logits.shape
        own = torch.logsumexp(logits, dim=1)
        most = own.detach().clone()
        dist.all_reduce(most, dist.ReduceOp.MAX)
        whole = most + Reduce.apply(torch.exp(own - most)).log()
        columns = torch.arange(width) + dist.get_rank() * width
        right = Reduce.apply(
            torch.where(columns == targets[:, None], logits, torch.zeros((), dtype=logits.dtype)).sum(1)
        )
        return (whole - right).sum() / n


@answer_to("12-ex7-loss")
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
            numbers = torch.zeros(2, len(targets), dtype=logits.dtype)
            numbers[0] = shifted.exp().sum(1)
            numbers[1, here] = shifted[here, column[here]]
            dist.all_reduce(numbers)
            gradient = shifted.exp() / numbers[0][:, None]
            gradient[here, column[here]] -= 1
            ctx.save_for_backward(gradient)
            return (numbers[0].log() - numbers[1]).mean()

        @staticmethod
        def backward(ctx, upstream):
            (gradient,) = ctx.saved_tensors
            return gradient * upstream / len(gradient), None

    def vocabulary_parallel_loss(logits, targets):
        return Loss.apply(logits, targets)
