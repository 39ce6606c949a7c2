"""From document lengths to a plan: which segment goes to which row of which shard.

`cutting.py` cuts documents at max_len into `segments.py`, `deal.py` turns patterns into rows, `ordered.py` the rows of
an order algorithm; `extents.py` and `kernels.py` are what is compiled of the two, `permute.py` is their randomness.
"""

from packer.plan.cutting import cut_documents, cuts_between
from packer.plan.deal import Plan, deal, partition_starts
from packer.plan.ordered import plan_in_order
from packer.plan.segments import LONG_POLICIES, Segments

__all__ = [
    "LONG_POLICIES",
    "Plan",
    "Segments",
    "cut_documents",
    "cuts_between",
    "deal",
    "partition_starts",
    "plan_in_order",
]
