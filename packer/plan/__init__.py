"""From document lengths to a plan: which segment goes to which row of which shard.

`cutting.py` cuts documents at max_len into `segments.py`, `deal.py` turns patterns into rows, `ordered.py` the rows of
an order algorithm; `extents.py` and `kernels.py` are what is compiled of the two, `permute.py` is their randomness.
`account.py` counts what became of every document and token.
`mixing.py` says what a mixture takes of its sources. `groups.py` packs groups of documents each on its own, `apart.py`
repairs a plan, or packs anew, so that no row holds two of a group. `items.py` makes one of the two documents of a
preference pair.
"""

from packer.plan.account import Account
from packer.plan.apart import keep_apart
from packer.plan.cutting import cut_documents, cuts_between
from packer.plan.deal import Plan, deal, partition_starts
from packer.plan.groups import GROUP_MODES, NO_GROUP, GroupMode, apart_bound, deal_together, together_bound
from packer.plan.items import cut_pairs, items_of, with_both_of_each
from packer.plan.ordered import plan_in_order
from packer.plan.segments import LONG_POLICIES, Segments

__all__ = [
    "GROUP_MODES",
    "LONG_POLICIES",
    "NO_GROUP",
    "Account",
    "GroupMode",
    "Plan",
    "Segments",
    "apart_bound",
    "cut_documents",
    "cut_pairs",
    "cuts_between",
    "deal",
    "deal_together",
    "items_of",
    "keep_apart",
    "partition_starts",
    "plan_in_order",
    "together_bound",
    "with_both_of_each",
]
