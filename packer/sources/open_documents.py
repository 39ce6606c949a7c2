"""Protocols that a source, preference pairs and a mixture all satisfy, for use outside this package.

opened: OpenDocuments     files found, columns known, no document read
survey: Survey            every document checked; for a mixture, also which documents are taken
order: SourceOrder        the same documents in the order of the files, for comparison with rows
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.engine import Engine, Threads
from packer.facts import MixturePart, SourceIdentity
from packer.progress import Progress, silent
from packer.sources.documents import Input, TokenTable
from packer.stores import AnyPath

if TYPE_CHECKING:
    from packer.sources.decoding.decoded_pieces import SpillSize
    from packer.sources.mixtures.origins import Origins
    from packer.sources.source import Source


class OpenDocuments(Protocol):
    """Documents in a fixed order, opened and ready to read."""

    @property
    def sources(self) -> Mapping[str, Source]:
        """Sources of a mixture by name; a single source has the name ""."""

    @property
    def inputs(self) -> tuple[Input, ...]:
        """Inputs of all sources, one source after the other."""

    @property
    def pad_id(self) -> int | None:
        """Padding token of the tokenizer; for a mixture, of the first source that has one. None if unknown."""

    @property
    def mapped(self) -> bool:
        """Whether all documents can be addressed in memory, so that `spill` has nothing to do."""

    def spill_size(self, folder: AnyPath) -> SpillSize:
        """Estimate how much `spill` will write to `folder`."""

    def spill(
        self,
        folder: AnyPath,
        progress: Progress = silent,
        *,
        engine: Engine = Threads(),  # noqa: B008 (immutable)
    ) -> OpenDocuments:
        """Decode inputs that cannot be mapped; see `Source.spill`."""

    def survey(self, progress: Progress = silent, *, with_extra: bool = False) -> Survey:
        """Check every document, and for a mixture decide how often each document is taken.

        Args:
            progress: callback, called with "lengths", "decode" or "tokenize", in bytes of the files.
            with_extra: keep the extra columns for `Survey.column`.

        Raises:
            SourceError: a source has no documents, or a document or file is invalid.
            PackerError: a mixture has more documents than can be numbered.
        """

    def in_source_order(self) -> SourceOrder:
        """Return the documents in the order of the files; for a mixture, those that are taken."""


class Survey(Protocol):
    """Documents to pack, all of them checked."""

    @property
    def source(self) -> Source:
        """The source; for a mixture, one source with the lists of all its sources, one source after the other."""

    @property
    def identity(self) -> SourceIdentity:
        """Identity of the source or mixture, for the manifest."""

    def lengths(self) -> NDArray[np.int32]:
        """Return the tokens of every document, shape (documents,)."""

    def order(self, lengths: NDArray[np.int32] | None = None) -> NDArray[Any] | None:
        """Interleave the sources of a mixture so that every stretch has the shares of the whole.

        Args:
            lengths: the result of `lengths`, if already computed.

        Returns:
            (documents,) another order of the documents; None for a single source.
        """

    def origins(self, order: NDArray[Any] | None = None) -> Origins | None:
        """Return the source, document and copy behind each document of a mixture; None for a single source.

        Args:
            order: the result of `order`, to number documents in that order; None for their own.
        """

    def lists(self, order: NDArray[Any] | None = None) -> NDArray[Any] | None:
        """Return the list of `source` that each document is, shape (documents,); None if document i is list i."""

    def column(self, name: str) -> pa.ChunkedArray:
        """Return an extra column, one value per list of `source`.

        Raises:
            SourceError: no type holds the values of all sources.
        """


class SourceOrder(Protocol):
    """Documents numbered in the order in which one pass over the files yields them."""

    @property
    def mixture(self) -> tuple[MixturePart, ...]:
        """Sources of a mixture, and counts of what is taken of each; empty for a single source."""

    @property
    def documents(self) -> int | None:
        """Number of documents; None if it is known only after reading."""

    def tables(self) -> Iterator[TokenTable]:
        """Yield all documents in order, checked, in tables of bounded memory."""

    def numbers(self, segments: Mapping[str, NDArray[np.integer]]) -> NDArray[np.int64]:
        """Return the number of the document of each segment.

        Args:
            segments: (segments,) columns "doc_ids" and, in rows of a mixture, "source_ids" and "copy".
        """

    def rejected(self) -> dict[str, int]:
        """Count the rejected documents by reason, with every copy; call this after reading `tables` to the end."""

    def describe(self, document: int) -> str:
        """Return the name of a document for messages."""

    def identity(self) -> SourceIdentity:
        """Return the identity of the source or mixture; call this after reading `tables` to the end."""
