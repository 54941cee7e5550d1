"""Right answers to lesson 01, written differently."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: F821

from __future__ import annotations

from autograder.answers.right import answer_to


@answer_to("01-ex1-broadcast")
def broadcast_by_halving_recursively():
    """A recursive function gives each half of the ranks a root of its own, and prints while it works."""

    def broadcast(tensor, src):
        rank, n = dist.get_rank(), dist.get_world_size()

        def spread(low, high):
            if high - low < 2:
                return
            middle = (low + high + 1) // 2
            number = (rank - src) % n
            if number == low:
                print("passing on to", middle)
                dist.send(tensor, dst=(middle + src) % n)
            if number == middle:
                dist.irecv(tensor, src=(low + src) % n).wait()
            spread(low, middle)
            spread(middle, high)

        spread(0, n)


@answer_to("01-ex2-reduce-scatter")
def reduce_scatter_the_other_way_round():
    """The ring turns to the left, and receives are posted before sends."""

    def reduce_scatter(tensor):
        rank, n = dist.get_rank(), dist.get_world_size()
        chunks = list(tensor.clone().tensor_split(n))
        for step in range(1, n):
            place = (rank + step + 1) % n
            buffer = torch.empty_like(chunks[place])
            receiving = dist.irecv(buffer, src=(rank + 1) % n)
            sending = dist.isend(chunks[(rank + step) % n], dst=(rank - 1) % n)
            receiving.wait()
            sending.wait()
            chunks[place] = chunks[place] + buffer
        return chunks[rank].clone()


@answer_to("01-ex2-reduce-scatter")
def reduce_scatter_in_batches_without_empty_messages():
    """Uses batch_isend_irecv, carries one partial sum along, sends no message of 0 bytes, and warns on stderr."""
    import sys

    def reduce_scatter(tensor):
        print("starting", file=sys.stderr)
        rank, n = dist.get_rank(), dist.get_world_size()
        pieces = tensor.tensor_split(n)
        carried = pieces[(rank - 1) % n].clone()
        for step in range(n - 1):
            coming = torch.empty_like(pieces[(rank - step - 2) % n])
            operations = []
            if carried.numel():
                operations.append(dist.P2POp(dist.isend, carried, (rank + 1) % n))
            if coming.numel():
                operations.append(dist.P2POp(dist.irecv, coming, (rank - 1) % n))
            for work in dist.batch_isend_irecv(operations) if operations else []:
                work.wait()
            carried = coming + pieces[(rank - step - 2) % n]
        return carried


@answer_to("01-ex3-all-gather")
def all_gather_the_other_way_round():
    """The ring turns to the left, so rank r sends T − c_{r−1} bytes."""

    def all_gather(chunk, numel):
        rank, n = dist.get_rank(), dist.get_world_size()
        out = torch.zeros(numel, dtype=chunk.dtype)
        views = torch.tensor_split(out, n)
        views[rank][:] = chunk
        for step in range(n - 1):
            work = dist.isend(views[(rank + step) % n].clone(), (rank - 1) % n)
            dist.recv(views[(rank + step + 1) % n], (rank + 1) % n)
            work.wait()
        return out


@answer_to("01-ex4-all-reduce")
def all_reduce_on_a_copy():
    """Flattens a copy and writes it back element by element; returns a value that is ignored."""

    def all_reduce(tensor):
        copy = tensor.detach().flatten().clone()
        total = all_gather(reduce_scatter(copy), copy.numel())
        tensor[...] = total.reshape(tensor.shape)
        return total


@answer_to("01-ex5-tree-all-reduce")
def tree_with_the_last_rank_as_root():
    """The root is the last rank, and the tree's distances shrink on the way up."""

    def tree_all_reduce(tensor):
        rank, n = dist.get_rank(), dist.get_world_size()
        number = n - 1 - rank
        total = tensor.clone()
        distance = 1 << max(n - 1, 0).bit_length()
        while distance >= 1:
            if distance <= number < 2 * distance:
                dist.send(total, dst=rank + distance)
            elif number < distance and number + distance < n:
                other = torch.empty_like(total)
                dist.recv(other, src=rank - distance)
                total = total.add(other)
            distance //= 2
        broadcast(total, n - 1)
        tensor.copy_(total)


@answer_to("01-ex6-halving-all-reduce")
def halving_of_a_padded_vector():
    """Pads the vector to a multiple of N, so that all halves are equal, and works on a matrix of N rows."""

    def halving_all_reduce(tensor):
        rank, n = dist.get_rank(), dist.get_world_size()
        rows = -(-tensor.numel() // n)
        table = torch.zeros(n * rows, dtype=tensor.dtype)
        table[: tensor.numel()] = tensor.reshape(-1)
        table = table.view(n, rows)
        first, count = 0, n
        while count > 1:
            count //= 2
            distance = n // (2 * count)
            partner = rank ^ distance
            keep, give = (first + count, first) if rank & distance else (first, first + count)
            got = torch.empty(count, rows, dtype=tensor.dtype)
            work = dist.isend(table[give : give + count].contiguous(), partner)
            dist.recv(got, partner)
            work.wait()
            table[keep : keep + count] += got
            first = keep
        while count < n:
            partner = rank ^ n // (2 * count)
            other = first ^ count
            work = dist.isend(table[first : first + count].contiguous(), partner)
            dist.recv(table[other : other + count], partner)
            work.wait()
            first, count = min(first, other), 2 * count
        tensor.copy_(table.view(-1)[: tensor.numel()].view(tensor.shape))


@answer_to("01-ex7-all-to-all")
def all_to_all_posted_at_once():
    """Posts all receives and all sends before it waits for any, in the order of the distance, into one tensor."""

    def all_to_all(tensor):
        rank, n = dist.get_rank(), dist.get_world_size()
        pieces = torch.tensor_split(tensor.detach(), n)
        length = pieces[rank].numel()
        out = tensor.new_zeros(n * length)
        out[rank * length : (rank + 1) * length] = pieces[rank]
        operations = []
        for step in range(1, n):
            to, source = (rank - step) % n, (rank + step) % n
            operations.append(dist.P2POp(dist.irecv, out[source * length : (source + 1) * length], source))
            operations.append(dist.P2POp(dist.isend, pieces[to], to))
        for work in dist.batch_isend_irecv(operations) if operations else []:
            work.wait()
        return out


@answer_to("01-ex7-all-to-all")
def all_to_all_in_pairs():
    """Exchanges with partner rank ^ step where N is a power of two; sends nothing where a chunk is empty."""

    def all_to_all(tensor):
        rank, n = dist.get_rank(), dist.get_world_size()
        pieces = tensor.clone().tensor_split(n)
        parts = {rank: pieces[rank]}
        for step in range(1, n):
            if n & (n - 1):
                to, source = (rank + step) % n, (rank - step) % n
            else:
                to = source = rank ^ step
            parts[source] = torch.empty_like(pieces[rank])
            work = dist.isend(pieces[to], to) if pieces[to].numel() else None
            if parts[source].numel():
                dist.recv(parts[source], source)
            if work is not None:
                work.wait()
        return torch.cat([parts[r] for r in range(n)])


@answer_to("01-ex6-halving-all-reduce")
def halving_in_two_loops():
    """Remembers its halves in a list, and goes back through it in a second loop."""

    def halving_all_reduce(tensor):
        rank, world_size = dist.get_rank(), dist.get_world_size()
        total = tensor.view(-1)
        part, kept = total, []
        distance = 1
        while distance < world_size:
            mine, theirs = part.tensor_split(2)
            if rank & distance:
                mine, theirs = theirs, mine
            incoming = torch.empty_like(mine)
            work = dist.isend(theirs, dst=rank ^ distance)
            dist.recv(incoming, src=rank ^ distance)
            work.wait()
            mine += incoming
            kept.append((distance, mine, theirs))
            part = mine
            distance *= 2
        for distance, mine, theirs in reversed(kept):
            work = dist.isend(mine, dst=rank ^ distance)
            dist.recv(theirs, src=rank ^ distance)
            work.wait()
