"""Right answers to lesson 03, written differently."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: F821

from __future__ import annotations

from autograder.answers.right import answer_to


@answer_to("03-ex1-worker-gradient")
def all_micro_batches_in_one_product():
    """Flattens the micro-batches and takes one gradient over all examples, without accumulation."""

    def worker_gradient(x, y, w):
        rows = x.reshape(-1, len(w))
        targets = y.ravel()
        return 2.0 * (rows @ w - targets) @ rows / targets.size


@answer_to("03-ex1-worker-gradient")
def example_by_example():
    """Three nested loops over plain floats, added in another order; prints and warns on the way."""

    def worker_gradient(x, y, w):
        import sys
        import warnings

        accum_steps, batch, d = np.shape(x)
        grad = [0.0] * d
        for a in reversed(range(accum_steps)):
            for i in reversed(range(batch)):
                predicted = sum(float(x[a][i][j]) * float(w[j]) for j in range(d))
                for j in range(d):
                    grad[j] += 2 * (predicted - float(y[a][i])) * float(x[a][i][j]) / (accum_steps * batch)
        print("one gradient", file=sys.stderr)
        warnings.warn("a warning is not a mistake", stacklevel=1)
        return np.array(grad)


@answer_to("03-ex2-all-reduce-mean")
def running_mean():
    """A running mean, worker by worker, without the whole sum."""

    def all_reduce_mean(worker_grads):
        mean = np.zeros(len(worker_grads[0]))
        for count, grad in enumerate(worker_grads, start=1):
            mean = mean + (grad - mean) / count
        return mean


@answer_to("03-ex3-adam-update")
def as_torch_writes_it():
    """Folds the corrections into a step size and a denominator, and updates copies in place."""

    def adam_update(w, g, m, v, lr, beta1, beta2, eps, t):
        w, g, m, v = (a.copy() for a in (w, g, m, v))
        m += (g - m) * (1 - beta1)
        v *= beta2
        v += (1 - beta2) * g * g
        denominator = np.sqrt(v) / np.sqrt(1 - beta2**t) + eps
        w -= lr / (1 - beta1**t) * (m / denominator)
        return w, m, v


@answer_to("03-ex3-adam-update")
def a_list_of_three():
    """Returns a list instead of a tuple, and computes the corrections by logarithms."""

    def adam_update(w, g, m, v, lr, beta1, beta2, eps, t):
        w, g, m, v = np.array([w, g, m, v])
        m, v = beta1 * m + g - beta1 * g, v + (1 - beta2) * (np.square(g) - v)
        m_hat, v_hat = m / -np.expm1(t * np.log(beta1)), v / -np.expm1(t * np.log(beta2))
        return [w - lr * m_hat / (v_hat**0.5 + eps), m, v]


@answer_to("03-ex4-ema-update")
def towards_the_new_weights():
    """The average as a step towards the new weights."""

    def ema_update(ema, w, decay):
        ema = ema.copy()
        ema += (1 - decay) * (w - ema)
        return ema


@answer_to("03-ex5-training-step")
def on_its_own():
    """Calls none of the earlier functions: puts all examples into one pool and writes the parts into one array."""

    def distributed_training_step(worker_xs, worker_ys, weights, ema_weights, m, v, lr, beta1, beta2, eps, decay, t):
        x, y, w, ema, m, v = map(np.array, (worker_xs, worker_ys, weights, ema_weights, m, v))
        d = len(w)
        x, y = x.reshape(-1, d), y.reshape(-1)
        g = 2 / len(y) * x.T @ (x @ w - y)
        out = np.empty((4, d))
        out[2] = beta1 * m + (1 - beta1) * g
        out[3] = beta2 * v + (1 - beta2) * g * g
        out[0] = w - lr * out[2] / (1 - beta1**t) / (np.sqrt(out[3] / (1 - beta2**t)) + eps)
        out[1] = decay * ema + (1 - decay) * out[0]
        return out.ravel()


@answer_to("03-ex5-training-step")
def one_array_of_state():
    """The state is one (4, d) array, and the result a reshaped view of it."""

    def distributed_training_step(xs, ys, weights, ema_weights, m, v, lr, beta1, beta2, eps, decay, t):
        xs, ys = np.array(list(xs)), np.array(list(ys))
        state = np.stack([weights, ema_weights, m, v])
        g = all_reduce_mean(np.stack(list(map(worker_gradient, xs, ys, [state[0]] * len(xs)))))
        state[0], state[2], state[3] = adam_update(state[0], g, *state[2:], lr, beta1, beta2, eps, t)
        state[1] = ema_update(*state[[1, 0]], decay)
        return state.reshape(-1)


@answer_to("03-ex6-sum-bug")
def asks_the_own_step():
    """Compares with the step of exercise 5, on several deals; plants the bug by multiplying one update's gradient."""

    def summing_step(worker_xs, worker_ys, weights, ema_weights, m, v, lr, beta1, beta2, eps, decay, t):
        n = len(worker_ys)
        g = n * all_reduce_mean([worker_gradient(x, y, weights) for x, y in zip(worker_xs, worker_ys, strict=True)])
        new = list(adam_update(weights, g, m, v, lr, beta1, beta2, eps, t))
        return np.hstack([new[0], ema_update(ema_weights, new[0], decay), *new[1:]])

    def step_is_right(step):
        rng = np.random.default_rng()
        for n, a, b, d in ((3, 5, 7, 11), (5, 7, 11, 3), (7, 11, 3, 5)):
            arguments = [
                rng.normal(size=(n, a, b, d)),
                rng.normal(size=(n, a, b)),
                *rng.normal(size=(3, d)),
                np.ones(d),
            ]
            arguments += [0.1, 0.9, 0.999, 1e-8, 0.9, 2]
            if np.abs(step(*arguments) - distributed_training_step(*arguments)).max() > 1e-9:
                return False
        return True


@answer_to("03-ex6-sum-bug")
def reads_the_gradient_from_m():
    """Starts from zero moments with both betas 0, so that m is the gradient and v its square; knows the formula."""

    def summing_step(*arguments):
        xs, ys, *state = arguments[:6]
        g = np.sum([worker_gradient(x, y, np.asarray(state[0])) for x, y in zip(xs, ys, strict=True)], axis=0)
        w, m, v = adam_update(state[0], g, state[2], state[3], *arguments[6:10], arguments[11])
        return np.concatenate((w, ema_update(state[1], w, arguments[10]), m, v))

    def step_is_right(step):
        rng, zero = np.random.default_rng(5), np.zeros(2)
        verdicts = []
        for n, a in ((9, 1), (1, 9), (3, 3), (2, 13), (13, 2)):
            x, y, w = rng.normal(size=(n, a, 4, 2)), rng.normal(size=(n, a, 4)), rng.normal(size=2)
            g = 2 * np.mean((x @ w - y)[..., None] * x, axis=(0, 1, 2))
            _, _, m, v = np.split(step(x, y, w, w, zero, zero, 0.1, 0.0, 0.0, 1e-8, 0.5, 1), 4)
            verdicts += [np.allclose(m, g), np.allclose(v, g * g)]
        return all(verdicts)


@answer_to("03-ex6-sum-bug")
def compares_four_deals():
    """Compares four deals of the same examples, of which one worker's is the first."""

    def summing_step(worker_xs, worker_ys, weights, ema_weights, m, v, lr, beta1, beta2, eps, decay, t):
        grads = [worker_gradient(x, y, weights) for x, y in zip(worker_xs, worker_ys, strict=True)]
        w, m, v = adam_update(weights, np.sum(grads, axis=0), m, v, lr, beta1, beta2, eps, t)
        return np.concatenate([w, ema_update(ema_weights, w, decay), m, v])

    def step_is_right(step):
        rng = np.random.default_rng(1)
        x, y, state = rng.normal(size=(24, 3)), rng.normal(size=24), rng.uniform(0.5, 2, size=(4, 3))
        results = []
        for shape in ((1, 1, 24), (2, 3, 4), (3, 2, 4), (4, 6, 1)):
            results.append(step(x.reshape(*shape, 3), y.reshape(shape), *state, 0.1, 0.9, 0.99, 1e-8, 0.9, 3))
        same = [np.allclose(result, results[0], rtol=1e-9, atol=0) for result in results]
        return all(same)


@answer_to("03-ex7-clip-and-decay")
def all_layers_in_one_array():
    """Joins the layers to one array, decays first, and cuts the results apart at the end."""

    def clipped_adamw(worker_grads, weights, m, v, lr, beta1, beta2, eps, t, max_norm, weight_decay):
        g = np.mean([np.concatenate(grads) for grads in worker_grads], axis=0)
        norm = np.linalg.norm(g)
        if norm > max_norm:
            g = g / norm * max_norm
        w, first, second = (np.concatenate(layers) for layers in (weights, m, v))
        new = adam_update((1 - lr * weight_decay) * w, g, first, second, lr, beta1, beta2, eps, t)
        cuts = np.cumsum([len(layer) for layer in weights])[:-1]
        return norm, *(np.split(part, cuts) for part in new)


@answer_to("03-ex7-clip-and-decay")
def norm_of_norms():
    """The norm of the layers' norms; three loops over layers; a list in place of a tuple."""

    def clipped_adamw(worker_grads, weights, m, v, lr, beta1, beta2, eps, t, max_norm, weight_decay):
        layers = range(len(weights))
        mean = [sum(grads[i] for grads in worker_grads) / len(worker_grads) for i in layers]
        norm = float(np.hypot.reduce([np.linalg.norm(g) for g in mean]))
        mean = [g / max(1.0, norm / max_norm) for g in mean]
        new = [adam_update(weights[i], mean[i], m[i], v[i], lr, beta1, beta2, eps, t) for i in layers]
        return [
            norm,
            [new[i][0] - lr * weight_decay * weights[i] for i in layers],
            *([n[k] for n in new] for k in (1, 2)),
        ]
