"""The facts that a manifest holds about a source and its rows, as types; light, so that every part can use them.

`facts.py` is the base of all of them: a declared field is its type, its limits, its place in the file and its sentence.
`kinds.py` checks that the fields of a file hold what the types declare. `totals.py` counts documents, tokens and rows,
and `source_identity.py` tells one source from another.
"""

from packer.facts.facts import Facts, kinds_of
from packer.facts.source_identity import FileIdentity, MixturePart, SourceIdentity, TakenDocuments, TextIdentity
from packer.facts.totals import Account, GroupTotals, PlanTotals, Totals

__all__ = [
    "Account",
    "Facts",
    "FileIdentity",
    "GroupTotals",
    "MixturePart",
    "PlanTotals",
    "SourceIdentity",
    "TakenDocuments",
    "TextIdentity",
    "Totals",
    "kinds_of",
]
