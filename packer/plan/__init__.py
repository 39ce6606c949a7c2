"""The plan: from document lengths to the segments of every row of every shard.

- `cutting`, `segments`: documents cut at max_len; `items`: preference pairs as one item each
- `partitions`: documents in blocks, dealt at random to partitions of a shard's size
- `rows`: rows drawn at random or after patterns, filled with segments; `shares`: patterns dealt to partitions
- `ordered`: rows in the order of the source, made again from where they begin
- `deal`: plans that are held in memory as a whole, for groups
- `groups`, `apart`: rows of one group only, and rows without two segments of a group
- `mixture_shares`: how much a mixture takes of its sources; `hash_sample`: samples of them that are not stored
- `extents`, `row_kernels`, `group_kernels`, `apart_kernels`: compiled kernels; `permute`: their random draws
- `account`: every document and token counted
"""

from packer.plan.account import count_documents
from packer.plan.apart import keep_apart
from packer.plan.cutting import cut_documents, cuts_between
from packer.plan.groups import NO_GROUP, apart_bound, deal_together, together_bound
from packer.plan.items import cut_pairs, items_of, with_both_of_each
from packer.plan.segments import Segments
from packer.plan.whole_plan import Plan, deal

__all__ = [
    "NO_GROUP",
    "Plan",
    "Segments",
    "apart_bound",
    "count_documents",
    "cut_documents",
    "cut_pairs",
    "cuts_between",
    "deal",
    "deal_together",
    "items_of",
    "keep_apart",
    "together_bound",
    "with_both_of_each",
]
