"""Documents of a source that have been checked, so that they can be packed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.facts import SourceIdentity
from packer.inputs.documents import reading
from packer.inputs.token_tables import TokenTable
from packer.sources.source import Source
from packer.stores.mirror import fetch_queued


@dataclass(frozen=True, kw_only=True)
class Documents:
    """Checked documents of a source, numbered in its order; made by `read_documents`.

    Nothing is held per document, except for lengths if they were requested. Can be pickled; addresses of columns are
    computed again.
    """

    source: Source
    """The source, which has been read to its end."""

    identity: SourceIdentity

    lengths: NDArray[np.int32] | None = None
    """(documents,) tokens of each document; None unless they were requested."""

    extra: Mapping[str, pa.ChunkedArray] = field(default_factory=dict)
    """Extra columns, one value per list; empty if they were not requested."""

    def describe(self, document: int) -> str:
        """Return the name of a document for messages: "document 17 (rows.jsonl line 18)"."""
        return self.source.describe(document)

    @cached_property
    def table(self) -> TokenTable:
        """Columns of all documents of a mapped source, by address; `lengths` is empty."""
        with reading(self.source.name):
            fetch_queued()
        return self.source.table(np.zeros(0, np.int32))

    def __getstate__(self) -> dict[str, object]:
        return {each.name: getattr(self, each.name) for each in fields(self)}
