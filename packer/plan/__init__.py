"""From document lengths to a plan: which segment goes to which row of which shard.

`segments.py` cuts documents at max_len, `deal.py` turns patterns into rows with `kernels.py`, `permute.py` is the
randomness of both.
"""

from packer.plan.deal import Plan, deal, partition_starts
from packer.plan.segments import LONG_POLICIES, Segments, cut_documents

__all__ = ["LONG_POLICIES", "Plan", "Segments", "cut_documents", "deal", "partition_starts"]
