"""Histograms: shares of several totals in the same bins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from packer.plots.line_plot import HEIGHT, axis_top, grid
from packer.plots.palette import fill, stroke
from packer.plots.svg_elements import Plot, element, label, legend, percentage, tooltip

_LEFT = 0.12
_MOST_TICKS = 7


def histogram_plot(
    title: str,
    bins: Sequence[str],
    series: Mapping[str, tuple[str, Sequence[float]]],
    *,
    ticks: Sequence[str],
    shown: Callable[[float], str],
    marks: Mapping[str, float] | None = None,
    name: str = "",
) -> Plot:
    """Draw the shares of each series in bins of equal width, side by side.

    Args:
        title: what the plot shows.
        bins: range of each bin in words, at least one.
        series: (color, share of each bin) by name.
        ticks: label of each edge of the bins, one more than bins, or "" for none; as many are written as fit.
        shown: function that formats a share.
        marks: positions in bins, 0 to the number of bins, by name; each is a vertical line.
        name: name of the plot in a page.
    """
    entries, top = legend({each: color for each, (color, _) in series.items()})
    largest = max(max(shares) for _, shares in series.values())
    scale, width = HEIGHT / axis_top(largest), (1 - _LEFT) / len(bins)
    parts = [grid(largest)]
    for place, (each, (color, shares)) in enumerate(series.items()):
        for index, share in enumerate(shares):
            if share > 0:
                height = max(share * scale, 1.0)
                x = _LEFT + width * (index + 0.08 + 0.84 * place / len(series))
                box: dict[str, object] = {"x": percentage(x), "width": percentage(0.84 * width / len(series))}
                box |= {"y": HEIGHT - height, "height": height}
                parts.append(element("rect", box | fill(color), tooltip(f"{bins[index]}: {shown(share)} of {each}")))
    labelled = [index for index, tick in enumerate(ticks) if tick]
    for index in labelled[:: -(-len(labelled) // _MOST_TICKS)]:
        anchor = {"text-anchor": "end" if index == len(ticks) - 1 else "middle"}
        edge = percentage(_LEFT + width * index)
        parts.append(label(ticks[index], x=edge, y=HEIGHT + 18, color="muted", attributes=anchor))
    for said, where in (marks or {}).items():
        mark = percentage(_LEFT + width * where)
        across: dict[str, object] = {"x1": mark, "x2": mark, "y1": -6, "y2": HEIGHT, "stroke-dasharray": "3 3"}
        side = {"text-anchor": "end" if where > len(bins) / 2 else "start", "font-size": 11}
        parts += [element("line", across | stroke("ink")), label(said, x=mark, y=-9, attributes=side)]
    area = element("svg", {"y": top + 24, "height": HEIGHT + 24, "overflow": "visible"}, *parts)
    return Plot(title=title, name=name, height=top + 24 + HEIGHT + 24, body=entries + area)
