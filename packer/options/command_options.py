"""The options that do not affect the bytes of a packed dataset: where an output goes, and what is printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from packer.errors import OptionError
from packer.options.choices import Compression, EngineName, ExportTarget, ReportPlot
from packer.options.headings import GENERAL, OUTPUT, RANKS, READING, ROWS
from packer.options.option import About
from packer.options.pack_options import LONGEST_ROW
from packer.options.values import as_length


def _ascending(lengths: str | int | Sequence[int]) -> tuple[int, ...]:
    """Return distinct row lengths in ascending order: "4k,512" -> (512, 4096).

    Raises:
        OptionError: one is not a whole number.
    """
    if isinstance(lengths, int):
        return (lengths,)
    words = lengths.split(",") if isinstance(lengths, str) else lengths
    try:
        return tuple(sorted({int(as_length(word)) for word in words}))
    except ValueError:
        raise OptionError(
            f"{lengths!r} is not a list of row lengths: write 4096, or 512,1024,2048 for several"
        ) from None


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputOptions:
    """Options of everything that writes a folder."""

    output: Annotated[
        Path | None,
        About(
            "Folder to write.", OUTPUT, flags=("-o", "--output"), default_words="the name of the input with an ending"
        ),
    ] = None
    workers: Annotated[
        int | None,
        About("Number of threads.", OUTPUT, least=1, metavar="N", default_words="the number of available cores"),
    ] = None
    sync: Annotated[
        bool,
        About(
            "Call fsync for every file and folder.",
            OUTPUT,
            off="Skip fsync: faster, but not safe against a power failure.",
        ),
    ] = True
    overwrite: Annotated[bool, About("Replace an existing output as soon as the new one is complete.", OUTPUT)] = False


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineOptions:
    """Options that say who does the work. They do not change the bytes."""

    engine: Annotated[
        EngineName,
        About("Where tasks run: in threads on this machine, or on a Ray cluster with the same storage.", RANKS),
    ] = "threads"
    ray_address: Annotated[
        str | None,
        About(
            "Address of the Ray cluster; auto is the cluster that this machine belongs to.",
            RANKS,
            metavar="ADDRESS",
            default_words="a cluster of this machine alone",
        ),
    ] = None
    rank: Annotated[
        int | None,
        About("Number of this process, from 0, if several pack into one folder.", RANKS, least=0, metavar="R"),
    ] = None
    ranks: Annotated[
        str | None,
        About(
            "Number of these processes; env reads both numbers from the variables of torchrun, Slurm or SkyPilot.",
            RANKS,
            metavar="N",
        ),
    ] = None
    rank_timeout: Annotated[
        float,
        About("Seconds without a sign of life after which other ranks take over.", RANKS, least=0.1, metavar="SECONDS"),
    ] = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceOption:
    """The option that names what was packed."""

    sources: Annotated[
        tuple[str, ...],
        About(
            "Dataset that was packed. Repeat it, in order, for all sources of a mixture, for all paths of a source, "
            "and for what was appended.",
            READING,
            flags=("--source",),
            metavar="DATASET",
            says_repeats=True,
        ),
    ] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportOptions:
    """Options of an export."""

    to: Annotated[ExportTarget, About("Trainer that reads the files; parquet keeps all columns as they are.", OUTPUT)]
    compression: Annotated[Compression, About("Compression of the Parquet pages.", OUTPUT)] = "zstd"


@dataclass(frozen=True, kw_only=True, slots=True)
class StatsOptions:
    """Options of statistics and comparisons."""

    batch_size: Annotated[
        int,
        About("Documents per optimizer step in training without packing.", GENERAL, least=1, metavar="N"),
    ] = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class RowLengthsOption:
    """The option of `packer stats` that names one row length or several."""

    max_len: Annotated[
        tuple[int, ...],
        About(
            "Number of tokens in a row, or several to compare, as in 512,1k,2k; not for packed datasets.",
            ROWS,
            least=1,
            most=LONGEST_ROW,
            metavar="N[,N...]",
            default_words="4096",
            convert=_ascending,
        ),
    ] = (4096,)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportOptions:
    """Options of a report."""

    report: Annotated[
        Path | None,
        About("HTML file to write: a report with plots, which needs no network.", OUTPUT, metavar="FILE.html"),
    ] = None
    with_text: Annotated[
        bool,
        About(
            "Show the beginnings of documents in the report, which otherwise holds no text; needs --tokenizer.", OUTPUT
        ),
    ] = False


@dataclass(frozen=True, kw_only=True, slots=True)
class PlotOptions:
    """Options of a single plot of a report."""

    plot: Annotated[Path | None, About("SVG file to write: one plot of the report.", OUTPUT, metavar="FILE.svg")] = None
    plot_of: Annotated[ReportPlot, About("The plot that --plot writes.", OUTPUT, metavar="NAME")] = "rows"


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckOptions:
    """Options of `packer check`."""

    attn: Annotated[
        str | None,
        About(
            "Attention implementation that must be safe for the command to succeed.",
            GENERAL,
            metavar="NAME",
            default_words="any",
        ),
    ] = None
    position_offset: Annotated[
        int,
        About("Position of the first token of a document, as in packer.batches: 2 for RoBERTa.", GENERAL, metavar="N"),
    ] = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class JsonOption:
    """The option of every command that prints a result."""

    as_json: Annotated[bool, About("Print JSON instead of text.", GENERAL, flags=("--json",))] = False


@dataclass(frozen=True, kw_only=True, slots=True)
class SummaryOption:
    """The option of every command that prints the summary of a pack."""

    verbose: Annotated[
        bool, About("Print every figure of the summary, also zeros.", GENERAL, flags=("-v", "--verbose"))
    ] = False


@dataclass(frozen=True, kw_only=True, slots=True)
class DoctorOptions:
    """The options of `packer doctor`."""

    compile_kernels: Annotated[
        bool,
        About("Compile all kernels into the cache, as for a container image.", GENERAL, flags=("--compile",)),
    ] = False


@dataclass(frozen=True, kw_only=True, slots=True)
class DebugOption:
    """The option of every command."""

    debug: Annotated[bool, About("Show the traceback of an error.", GENERAL)] = False
