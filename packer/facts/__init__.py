"""Types of the facts in a manifest about a source and its rows; imports little, so that any module can use them.

`json_record.py` is their base: declaring a field sets its type, limits, position in the file and description, and what
is read back is checked against the declarations. `totals.py` counts documents, tokens and rows of packs, generations
and shards, `source_identity.py` distinguishes sources, and `rejection.py` says why a record is left out.
"""

from packer.facts.json_record import JsonRecord
from packer.facts.rejection import REASONS, REJECTED, Reason, RejectedRecord
from packer.facts.source_identity import FileIdentity, MixturePart, SourceIdentity, TakenDocuments, TextIdentity
from packer.facts.totals import (
    Account,
    Generation,
    GroupTotals,
    PlanTotals,
    ShardEntry,
    Totals,
    joined_source,
    summed_totals,
)

__all__ = [
    "REASONS",
    "REJECTED",
    "Account",
    "FileIdentity",
    "Generation",
    "GroupTotals",
    "JsonRecord",
    "MixturePart",
    "PlanTotals",
    "Reason",
    "RejectedRecord",
    "ShardEntry",
    "SourceIdentity",
    "TakenDocuments",
    "TextIdentity",
    "Totals",
    "joined_source",
    "summed_totals",
]
