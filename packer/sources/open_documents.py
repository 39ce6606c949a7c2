"""The protocols of what is packed: a source, preference pairs or a mixture, alike for everything above this package.

opened: OpenDocuments     files found, columns known, no document read
survey: Survey            every document checked, and for a mixture which of them are taken
order: SourceOrder        the same documents in the order of the files, to be compared with rows
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.facts import MixturePart, SourceIdentity
from packer.progress import Progress, silent
from packer.sources.documents import Input, TokenTable

if TYPE_CHECKING:
    from packer.sources.decoded_size import SpillSize
    from packer.sources.origins import Origins
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
        """Padding token of the tokenizer, or of the first that has one; None if none is known."""

    @property
    def mapped(self) -> bool:
        """Whether all documents can be addressed in memory, so that `spill` has nothing to do."""

    def spill_size(self, folder: Path) -> SpillSize:
        """Estimate what `spill` is going to write into this folder."""

    def spill(self, folder: Path, progress: Progress = silent, *, workers: int = 1) -> OpenDocuments:
        """Decode once what cannot be mapped; see `Source.spill`."""

    def survey(self, progress: Progress = silent, *, with_extra: bool = False) -> Survey:
        """Check every document, and decide which documents of a mixture are taken how often.

        Args:
            progress: callback, called with "lengths", "decode" or "tokenize", in bytes of the files.
            with_extra: keep the other columns for `Survey.column`.

        Raises:
            SourceError: a source holds no document, or a document or file is wrong.
            PackerError: a mixture has more documents than can be numbered.
        """

    def in_source_order(self) -> SourceOrder:
        """Return the documents in the order of the files; of a mixture, those that are taken."""


class Survey(Protocol):
    """The documents that are packed, all of them checked."""

    @property
    def source(self) -> Source:
        """The source of all lists; of a mixture, the lists of its sources one after the other."""

    @property
    def identity(self) -> SourceIdentity:
        """The source, or the mixture and what is taken of each source; for the manifest."""

    def lengths(self) -> NDArray[np.int32]:
        """Tokens of every document: shape (documents,)."""

    def order(self, lengths: NDArray[np.int32] | None = None) -> NDArray[Any] | None:
        """Interleave the sources of a mixture, so that every stretch has the shares of the whole.

        Args:
            lengths: what `lengths` returns, if it is there already.

        Returns:
            (documents,) the documents in another order, by number; None if there is one source only.
        """

    def origins(self, order: NDArray[Any] | None = None) -> Origins | None:
        """Say which document of which source each document of a mixture is; None for one source.

        Args:
            order: what `order` returns, to number documents in that order; None for their own.
        """

    def lists(self, order: NDArray[Any] | None = None) -> NDArray[Any] | None:
        """Which list of `source` each document is: shape (documents,); None if document i is list i."""

    def column(self, name: str) -> pa.ChunkedArray:
        """One of the other columns, a value per list of `source`.

        Raises:
            SourceError: no type holds its values in all sources.
        """


class SourceOrder(Protocol):
    """Documents numbered in the order in which one pass over the files meets them."""

    @property
    def mixture(self) -> tuple[MixturePart, ...]:
        """Sources of a mixture and what is taken of each; empty for a single source."""

    def tables(self) -> Iterator[TokenTable]:
        """Yield all documents in order, checked, in tables of bounded memory."""

    def numbers(self, segments: Mapping[str, NDArray[np.integer]]) -> NDArray[np.int64]:
        """Number the documents of segments.

        Args:
            segments: (segments,) columns "doc_ids" and, in rows of a mixture, "source_ids" and "copy".
        """

    def describe(self, document: int) -> str:
        """Name a document for a message."""

    def identity(self) -> SourceIdentity:
        """Return what the manifest says of the source; to be asked for when `tables` has been read to its end."""
