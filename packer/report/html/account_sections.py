"""Sections that account for every token, and for the sources of a mixture."""

from __future__ import annotations

from packer.facts import Totals
from packer.plots import Bar, bar_plot, shortened
from packer.report.html.corpus_sections import share
from packer.report.html.section import Section
from packer.report.plain_text import count_of
from packer.stats.report_figures import ReportFigures


def tokens_section(figures: ReportFigures) -> Section:
    """Say what became of every token of the source."""
    totals = figures.totals
    tokens = max(1, totals.tokens)  # a manifest that was changed may have none
    once = totals.tokens_packed - totals.tokens_repeated
    fates: list[tuple[str, int, str]] = []
    if isinstance(totals, Totals) and figures.has_labels:
        fates += [("packed and trained", totals.tokens_trained, "orange")]
        fates += [("packed as context, without loss", once - totals.tokens_trained, "blue")]
    else:
        fates += [("packed", once, "blue")]
    fates += [("truncated", totals.tokens_truncated, "rose")]
    fates += [
        (f"dropped, {reason.replace('_', ' ')}", count, "rose") for reason, count in totals.tokens_dropped.items()
    ]
    if totals.tokens_repeated:
        fates.append(("repeated by --overlap, as context", totals.tokens_repeated, "gray"))
    shown = [fate for index, fate in enumerate(fates) if fate[1] or index == 0]
    if totals.tokens_lost:
        lost = count_of(totals.tokens_lost, "token")
        verdict = f"{lost} of {totals.tokens:,}, {share(totals.tokens_lost / tokens)}, are not in the rows."
    else:
        verdict = f"All {count_of(totals.tokens, 'token')} are in the rows."
    if isinstance(totals, Totals) and figures.has_labels:
        verdict += f" {share(totals.tokens_trained / totals.tokens_packed)} of what is packed is trained."
    bars = [
        Bar(name=name, value=count, text=f"{count:,} ({share(count / tokens)})", color=color)
        for name, count, color in shown
    ]
    plot = bar_plot("What became of every token", bars, name="tokens", largest=tokens)
    rejected = totals.documents_dropped.get("rejected", 0)
    dropped = sum(totals.documents_dropped.values()) - rejected
    unusable = f"{rejected:,} could not be used, " if rejected else ""
    notes = [
        f"Of {count_of(totals.documents, 'document')}, {totals.documents_packed:,} are packed, {unusable}"
        f"{dropped:,} dropped, {totals.documents_split:,} split and {totals.documents_truncated:,} truncated."
    ]
    return Section(name="tokens", question="What became of every token?", verdict=verdict, plot=plot, notes=notes)


def mixture_section(figures: ReportFigures) -> Section | None:
    """Compare what a mixture holds of each source with what was asked for; None without a mixture."""
    parts = figures.stats.mixture
    if not parts:
        return None
    tokens = [part.taken.tokens_kept for part in parts]
    if figures.mix_unit == "epochs":
        asked = [part.weight for part in parts]
        found = [count / part.tokens_kept for count, part in zip(tokens, parts, strict=True)]
        said, unit = _epochs, "epochs"
    else:
        asked = [part.weight / sum(part.weight for part in parts) for part in parts]
        found = [count / max(1, sum(tokens)) for count in tokens]
        said, unit = share, "of the tokens"
    miss = max(abs(one - two) for one, two in zip(found, asked, strict=True))
    answer = "Yes" if miss < 0.005 else "Not quite"
    verdict = f"{answer}: no source differs by more than {said(max(miss, 0.0001))} {unit}."
    bars = [
        Bar(
            name=shortened(part.name),
            value=got,
            text=f"{said(got)}; asked {said(wanted)}",
            color=("green", "purple", "rose", "gray")[number % 4],
            mark=wanted,
        )
        for number, (part, got, wanted) in enumerate(zip(parts, found, asked, strict=True))
    ]
    title = f"Sources by {'epochs' if unit == 'epochs' else 'share of the tokens'}, and lines at what was asked for"
    plot = bar_plot(title, bars, name="mixture", largest=0.0 if unit == "epochs" else 1.0)
    return Section(name="mixture", question="Is the mixture what was asked for?", verdict=verdict, plot=plot)


def _epochs(value: float) -> str:
    return f"{value:.4g}"
