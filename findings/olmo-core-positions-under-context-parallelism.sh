#!/usr/bin/env bash
# Expected: under context parallelism, a token is rotated by its position within its document, on whichever process it
#   lies.
# Found: OLMo-core divides tokens and the tables of sines among processes, but hands every process the boundaries of the
#   whole row, and looks them up by the place of a token in its own part. From the second process on, tokens get
#   positions of the row: here 16 to 31, where a document begins after the fourth of them.
# Matters: no document sees another, shapes agree and nothing is raised; only the distances between tokens are wrong.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet --no-compile torch==2.13.0 ai2-olmo-core==3.0.0 numpy==2.4.6
"$folder/bin/python" - <<'END'
import importlib.metadata
import sys

import torch
from olmo_core.nn.attention.ring import UlyssesLoadBalancer
from olmo_core.nn.rope import RotaryEmbedding

TOKENS = 32
boundaries = torch.tensor([0, 20, TOKENS], dtype=torch.int32)  # documents of 20 and 12 tokens
rope = RotaryEmbedding(head_size=8)
tables = rope.get_buffers(TOKENS, torch.device("cpu"))
queries = torch.ones(1, TOKENS, 1, 8)  # batch, tokens, heads, head size
of_position = rope(queries, queries, head_first=False)[0][0, :, 0]


def positions(rotated):
    return torch.cdist(rotated[0, :, 0], of_position).argmin(dim=1).tolist()


whole = positions(rope(queries, queries, head_first=False, cu_doc_lens=boundaries)[0])
divided = []
for rank in range(2):  # the steps of Transformer.forward and Attention.forward with Ulysses
    (part, sines, cosines), more = UlyssesLoadBalancer(cp_rank=rank, cp_world_size=2).batch_shard_by_document(
        inputs=[queries, tables.pos_sin, tables.pos_cos], seq_dims=[1, 0, 0], pad_values=[0, 0.0, 0.0],
        cu_doc_lens=boundaries, length_multiple=16,
    )
    rotated, _ = rope(part, part, head_first=False, pos_sin=sines, pos_cos=cosines, cu_doc_lens=more["cu_doc_lens"])
    divided.append(positions(rotated))
version = importlib.metadata.version("ai2-olmo-core")
print(f"OLMo-core {version}, documents of 20 and 12 tokens: positions by which tokens are rotated")
print(f"one process:        {whole}")
print(f"first of two:       {divided[0]}")
print(f"second of two:      {divided[1]}")
if whole != [*range(20), *range(12)] or divided != [[*range(16)], [*range(16, 32)]]:
    sys.exit("changed: the second process used to rotate by the place in the row")
END
