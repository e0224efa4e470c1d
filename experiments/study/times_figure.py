"""The figure of a study's job: accuracy over time by algorithm, and each run's time to the target."""

import math
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from algorithms import Entry
from report.bands import band
from report.figures import curve_look, draw_band, legend_of_curves
from report.metrics import Curve
from report.statistics import median
from report.style import note_below
from report.tables import span, target_text


def draw_times(figure: Figure, rows: Mapping[Entry, Sequence[tuple[Curve, float]]], target: float, title: str) -> None:
    """Above, the accuracy over time of each algorithm's runs as a band, up to the end of the first run; below, each
    run's time to the target, or its end with an open marker if it did not reach it, and the median.

    Args:
        rows: by algorithm, the curve of each run, and its seconds to the target, which may be infinite.
    """
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 0.35 * len(rows) + 0.2])
    for number, (entry, runs) in enumerate(rows.items()):
        curves = [curve for curve, _ in runs if curve]
        its = band(curves) if curves else None
        if its is not None:
            look = curve_look(entry, len(its.at), number, len(rows))
            draw_band(above, its, 1.0, look)
        look = {"color": entry.look.colour, "linestyle": ""}
        ended = [seconds for _, seconds in runs if math.isfinite(seconds)]
        missed = [curve[-1][0] for curve, seconds in runs if curve and math.isinf(seconds)]
        below.plot(ended, [number] * len(ended), marker=entry.look.marker, alpha=0.7, **look)
        below.plot(missed, [number] * len(missed), marker=">", fillstyle="none", **look)
        middle = median([seconds for _, seconds in runs]).value
        if math.isfinite(middle):
            below.plot([middle, middle], [number - 0.35, number + 0.35], color=entry.look.colour, linewidth=2)
    above.axhline(target, color="black", linewidth=0.8, linestyle=":")
    above.set_title(title, loc="left")
    above.set_ylabel("test accuracy")
    best = [accuracy for runs in rows.values() for curve, _ in runs for _, accuracy in curve]
    above.set_ylim(target - 0.25, max([target, *best]) + 0.01)
    below.set_yticks(range(len(rows)), [entry.title for entry in rows])
    below.set_ylim(len(rows) - 0.5, -0.5)
    below.set_xlim(left=0)
    below.set_xlabel(f"time (s); of the points: to test accuracy {target_text(target)}")
    runs_each = span({len(runs) for runs in rows.values()})
    legend_of_curves(figure, above)
    figure.set_figheight(6.0)
    note_below(
        figure,
        f"Lines and upright strokes: medians of {runs_each} runs; bands: their intervals, up to the first run's end. "
        f"Arrows: runs that ended without {target_text(target)}.",
    )
