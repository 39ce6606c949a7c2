"""The plan: from document lengths to the segments of every row of every shard.

- `cutting`, `segments`: cut documents at max_len; `items`: treat a preference pair as one item
- `partitions`: deal blocks of documents at random to partitions of a shard's size
- `rows`: draw rows or follow patterns, and fill them with segments; `shares`: deal patterns to partitions
- `pieces`: segments located in the source, as shards and leftovers store them
- `ordered`: make rows in the order of the source again, from where they begin
- `vector_packing`: pack items that have several demands, such as tokens and images
- `whole_plan`: hold a whole plan in memory, for groups
- `groups`, `apart`: make rows of one group only, or without two segments of a group
- `mixture_shares`: decide how much a mixture takes of its sources; `hash_sample`: sample them without storing members
- `extents`, `row_kernels`, `group_kernels`, `apart_kernels`: compiled kernels; `permute`: their random draws
- `account`: count every document and token; `threads`: run kernels in threads
"""

from typing import TYPE_CHECKING

from packer.names_on_use import names_on_use

if TYPE_CHECKING:
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

__getattr__ = names_on_use(
    __name__,
    {
        "account": ("count_documents",),
        "apart": ("keep_apart",),
        "cutting": (
            "cut_documents",
            "cuts_between",
        ),
        "groups": (
            "NO_GROUP",
            "apart_bound",
            "deal_together",
            "together_bound",
        ),
        "items": (
            "cut_pairs",
            "items_of",
            "with_both_of_each",
        ),
        "segments": ("Segments",),
        "whole_plan": (
            "Plan",
            "deal",
        ),
    },
)
