"""From document lengths to rows: which segment goes to which row of which shard.

- `cutting`, `segments`: documents cut at max_len; `items` makes one of the two documents of a preference pair
- `partitions`: documents in blocks, dealt at random to partitions of a shard's size
- `rows`: rows drawn at random, or by patterns, and the segments that fill them; `shares`: patterns to partitions
- `ordered`: rows in the order of the source, made again from where they begin
- `deal`: plans that are held as a whole, for groups
- `groups`, `apart`: rows of one group of documents only, or with no two of a group
- `mixture_shares`: how much a mixture takes of its sources; `hash_sample`: samples of them that are not stored
- `extents`, `kernels`: what is compiled; `permute`: their randomness
- `account`: what became of every document and token
"""

from packer.plan.account import count_documents
from packer.plan.apart import keep_apart
from packer.plan.cutting import cut_documents, cuts_between
from packer.plan.deal import Plan, deal
from packer.plan.groups import NO_GROUP, apart_bound, deal_together, together_bound
from packer.plan.items import cut_pairs, items_of, with_both_of_each
from packer.plan.segments import Segments

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
