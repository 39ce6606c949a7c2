"""Steps of two processes and what a probe finds in them, for tests/test_attention_ranks.py."""

import torch
import torch.distributed as distributed
from torch.nn.functional import cross_entropy

import packer

MAX_LEN, VOCABULARY, WIDTH = 32, 40, 16


class Rotated(torch.autograd.Function):
    """A tensor of the previous process of the ring; gradients go the other way."""

    @staticmethod
    def forward(ctx, tensor):
        return rotate(tensor, 1)

    @staticmethod
    def backward(ctx, gradient):
        return rotate(gradient, -1)


def rotate(tensor, by):
    rank, size, received = distributed.get_rank(), distributed.get_world_size(), torch.empty_like(tensor)
    sent = distributed.isend(tensor.contiguous(), (rank + by) % size)
    distributed.recv(received, (rank - by) % size)
    sent.wait()
    return received


class Tiny(torch.nn.Module):
    """Two layers of attention; `sees(query, key)` says which tokens do, given their places and documents."""

    def __init__(self, sees, ring=1):
        super().__init__()
        self.sees, self.ring = sees, ring
        self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, 3 * WIDTH) for _ in range(2))
        self.head = torch.nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids, where):
        """Logits of tokens `[rows, tokens]`; `where` are their rows, places in them and documents `[tokens, 3]`."""
        hidden = self.embedding(ids).flatten(0, 1)
        for layer in self.layers:
            query, *others = layer(hidden).chunk(3, dim=-1)
            turns = [torch.cat([*others, where], dim=-1)]
            while len(turns) < self.ring:
                turns.append(Rotated.apply(turns[-1]))
            keys, values, places = torch.cat(turns).split([WIDTH, WIDTH, 3], dim=-1)
            owner = torch.arange(self.ring).repeat_interleave(len(query))  # how far the key has come
            mask = self.sees(where[:, None], places[None], owner[None])
            hidden = hidden + (query @ keys.T).masked_fill(~mask, -torch.inf).softmax(-1) @ values
        return self.head(hidden)


def causal(query, key, _owner):
    return (query[..., 0] == key[..., 0]) & (key[..., 1] <= query[..., 1])


def within(query, key, _owner):
    return causal(query, key, _owner) & (query[..., 2] == key[..., 2])


def within_own(query, key, owner):
    """Boundaries are respected in the tokens of the process alone."""
    return causal(query, key, owner) & ((query[..., 2] == key[..., 2]) | (owner > 0))


def where_of(batch):
    """Row, place and document of each token, [rows, tokens, 3]."""
    positions = batch["position_ids"]
    rows, places = torch.meshgrid(*map(torch.arange, positions.shape), indexing="ij")
    return torch.stack([rows, places, (positions == 0).cumsum(1)], dim=-1).double()


def shards(rank, *, zigzag):
    """Places of a row that a process has."""
    parts = torch.arange(MAX_LEN).chunk(4)
    return torch.cat([parts[rank], parts[3 - rank]] if zigzag else parts[2 * rank : 2 * rank + 2])


def ring_step(sees, rank, *, zigzag=False):
    """A step in context parallelism: each process computes half of the tokens of each row."""
    torch.manual_seed(0)
    model, own = Tiny(sees, ring=2).double(), shards(rank, zigzag=zigzag)

    def step(batch):
        labels = torch.nn.functional.pad(batch["labels"][:, 1:], (0, 1), value=-100)[:, own]
        logits = model(batch["input_ids"][:, own], where_of(batch)[:, own].flatten(0, 1))
        return cross_entropy(logits, labels.flatten(), reduction="none")

    return step


def data_step(*, mixed=False):
    """A step in data parallelism; every logit has something of the other process if `mixed`."""
    torch.manual_seed(0)
    model = Tiny(within).double()

    def step(batch):
        logits = model(batch["input_ids"], where_of(batch).flatten(0, 1)).reshape(*batch["labels"].shape, -1)
        if mixed:
            logits = logits + Rotated.apply(logits.mean((0, 1)))
        return cross_entropy(logits[:, :-1].transpose(1, 2), batch["labels"][:, 1:], reduction="none")

    return step


def failing(rank):
    def step(batch):
        if rank:
            raise ValueError("out of luck")
        return torch.zeros(batch["labels"].shape)

    return step


def answer(step, **options):
    try:
        return packer.probe(step, format="hf_rows", max_len=MAX_LEN, vocabulary=VOCABULARY, **options)
    except (packer.PackerError, ValueError) as error:
        return error


def probe_steps(rank):
    """Probe every step, in both processes of a job; return what is found in this one."""
    ranks = {"rank": rank, "world_size": 2}
    return {
        "ring": answer(ring_step(within, rank, zigzag=True)),
        "ring without boundaries": answer(ring_step(causal, rank)),
        "ring with boundaries in shards": answer(ring_step(within_own, rank)),
        "data": answer(data_step(), **ranks),
        "data, mixed": answer(data_step(mixed=True), **ranks),
        "failing": answer(failing(rank)),
        "ranks": answer(failing(rank), rank=rank, world_size=3),
    }
