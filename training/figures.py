"""The pictures of a study's report: each a function of plain arrays that gives a matplotlib figure.

Colours in THEME stand for what a page may show otherwise in the dark: `embed_svg` names them instead of painting them.
What a colour tells, a marker, a number or a position tells too.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray

from training.statistics import BINS

INK, QUIET, LINE, GROUND = "#14201b", "#52605a", "#d3dbd6", "#ffffff"
BLUE, ORANGE, GREEN, PURPLE, OCHRE, GREY = "#0060a8", "#c74a00", "#00795a", "#9a4a8c", "#8f6400", "#5a5f66"

# Every colour by name: on paper, and in the dark. The six of the series stay apart in the common colour blindnesses.
THEME = {
    "ink": (INK, "#e8efeb"),
    "quiet": (QUIET, "#a5b3ac"),
    "line": (LINE, "#34403a"),
    "ground": (GROUND, "#171e1b"),
    "blue": (BLUE, "#5fb0f0"),
    "orange": (ORANGE, "#ff8f4d"),
    "green": (GREEN, "#3fcf9f"),
    "purple": (PURPLE, "#e19bd0"),
    "ochre": (OCHRE, "#e8bb4a"),
    "grey": (GREY, "#b0b6bd"),
}
SERIES = (BLUE, ORANGE, GREEN, PURPLE, OCHRE, GREY)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")

HALO = "#fefefe"  # behind numbers on colours that stay the same in the dark
LABEL: Any = {"boxstyle": "round,pad=0.12", "facecolor": HALO, "edgecolor": "none", "alpha": 0.75}

WIDTH_IN = 8.4
ROW_IN = 0.27
LONGEST_NAME = 30
LARGE_POINTS, OUTLYING = 5.0, 20.0  # a difference that hides others: so large, and so many times as large as most
TALLEST_PANEL_IN = 5.0
SMALLEST_SPAN = 2.0  # points of accuracy that an axis shows at least: less would make noise look large
MAP_PX = 700  # a scene's longer side is thinned to this
SHADES = mpl.colormaps["cividis"].resampled(64)  # as many as an eye tells apart; more only make a file larger
FEWEST_ANSWERS = 20  # in a bin of confidence whose share of right answers says something
MOST_NUMBERED = 26  # classes whose shares still fit into the squares of a confusion matrix

STYLE: Any = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same picture on every machine
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.facecolor": "none",
    "figure.facecolor": GROUND,
    "text.color": INK,
    "text.parse_math": False,  # a class may be called "$"
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": LINE,
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "svg.fonttype": "path",
    "svg.hashsalt": "hyperscene",
}
styled = mpl.rc_context(STYLE)

Array = NDArray[Any]


def _name(text: str, longest: int = LONGEST_NAME) -> str:
    return text if len(text) <= longest else text[: longest - 1].rstrip() + "…"


# Accuracies


@styled
def spread(
    labels: Sequence[str], series: Mapping[str, Sequence[Sequence[float]]], breaks: Sequence[int] = ()
) -> Figure:
    """One row a method: a small dot for every seed, a large one for their mean; `breaks` are rows to rule off above."""
    figure = Figure(figsize=(WIDTH_IN, ROW_IN * len(labels) + 1.0), layout="constrained")
    axes = figure.add_subplot()
    for (name, rows), color, marker in zip(series.items(), SERIES, MARKERS, strict=False):
        for place, values in enumerate(rows):
            if len(values):
                at = place + _shift(series, name, place)
                seeds: dict[str, Any] = {"marker": marker, "ms": 3.5, "mfc": "none", "mec": color, "mew": 0.8}
                axes.plot(values, np.full(len(values), at), linestyle="none", **seeds)
                axes.plot([np.mean(values)], [at], marker=marker, ms=7, color=color, zorder=3)
        axes.plot([], [], linestyle="none", marker=marker, ms=7, color=color, label=name)
    for place in breaks:
        axes.axhline(place - 0.5, color=QUIET, linewidth=0.8)
    _rows(axes, labels)
    axes.set_xlabel("overall accuracy, %")
    figure.legend(loc="outside upper left", ncols=len(series), handletextpad=0.3, columnspacing=1.4)
    return figure


def _shift(series: Mapping[str, Sequence[Sequence[float]]], name: str, place: int) -> float:
    """How far below the middle of its row a series is drawn, so that those with values there stay apart."""
    present = [other for other, rows in series.items() if len(rows[place])]
    return 0.36 * ((present.index(name) + 0.5) / len(present) - 0.5)


def _rows(axes: Axes, labels: Sequence[str]) -> None:
    axes.set_yticks(range(len(labels)), [_name(label, 52) for label in labels])
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="both")
    axes.set_axisbelow(True)


@dataclass(frozen=True)
class Margin:
    """Differences of two methods over the same seeds, in points."""

    label: str
    values: Sequence[float]
    is_beyond_noise: bool


@styled
def margins(rows: Sequence[Margin], axis_label: str, breaks: Sequence[int] = ()) -> Figure:
    """Differences from a reference: a dot a seed, their mean; filled where the paired test finds it beyond noise."""
    figure = Figure(figsize=(WIDTH_IN, ROW_IN * len(rows) + 1.0), layout="constrained")
    axes = figure.add_subplot()
    for place, row in enumerate(rows):
        mean = float(np.mean(row.values))
        color = BLUE if mean >= 0 else ORANGE
        marker = "o" if mean >= 0 else "s"
        at = np.full(len(row.values), place)
        axes.plot([min(row.values), max(row.values)], [place, place], color=color, linewidth=1)
        axes.plot(row.values, at, linestyle="none", marker="|", ms=7, color=color)
        face = color if row.is_beyond_noise else GROUND
        axes.plot([mean], [place], marker=marker, ms=7, mfc=face, mec=color, mew=1.3, zorder=3)
    for place in breaks:
        axes.axhline(place - 0.5, color=QUIET, linewidth=0.8)
    axes.axvline(0, color=INK, linewidth=1)
    _rows(axes, [row.label for row in rows])
    is_stretched = _stretch_small(axes, np.array([np.mean(row.values) for row in rows]))
    axes.set_xlabel(f"{axis_label}{', stretched round 0' * is_stretched}")
    shown = [
        Line2D([], [], linestyle="none", marker=marker, ms=7, mfc=face, mec=color, mew=1.3, label=text)
        for marker, face, color, text in (
            ("o", BLUE, BLUE, "above, beyond noise"),
            ("s", ORANGE, ORANGE, "below, beyond noise"),
            ("o", GROUND, BLUE, "above, within noise"),
            ("s", GROUND, ORANGE, "below, within noise"),
        )
    ]
    shown.append(Line2D([], [], linestyle="none", marker="|", ms=7, color=QUIET, label="one seed"))
    figure.legend(handles=shown, loc="outside upper left", ncols=len(shown), handletextpad=0.3, columnspacing=1.2)
    return figure


def _stretch_small(axes: Axes, means: Array) -> bool:
    """Give differences room that one far larger one would press together; whether that was needed."""
    sizes = np.abs(means)
    if sizes.max() < LARGE_POINTS or sizes.max() < OUTLYING * np.median(sizes):
        return False
    axes.set_xscale("symlog", linthresh=0.5, linscale=1.0)
    low, high = axes.get_xlim()
    sizes_shown = (0.2, 0.5, 1.0, 3.0, 10.0, 30.0, 100.0)
    ticks = [0.0, *sizes_shown, *(-size for size in sizes_shown)]
    axes.set_xticks(sorted(tick for tick in ticks if low <= tick <= high))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}".replace("-", "\N{MINUS SIGN}"))
    axes.minorticks_off()
    return True


@styled
def difference_matrix(labels: Sequence[str], difference: Array, is_beyond_noise: Array) -> Figure:
    """By how many points each row's method is above each column's; marked where a paired test confirms it.

    Methods come in the order of their means, so that only the upper triangle says something.
    """
    count = len(labels)
    side = min(0.42, 5.6 / count)
    figure = Figure(figsize=(2.8 + side * count, 1.4 + side * count), layout="constrained")
    axes = figure.add_subplot()
    for row in range(count):
        for col in range(row + 1, count):
            beyond = bool(is_beyond_noise[row, col])
            square: dict[str, Any] = {"xy": (col - 0.5, row - 0.5), "width": 1, "height": 1}
            if beyond:
                axes.add_patch(Rectangle(**square, facecolor=BLUE, alpha=0.28, linewidth=0))
            axes.add_patch(Rectangle(**square, fill=False, edgecolor=LINE, linewidth=0.7))
            value = f"{difference[row, col]:.1f}"
            weight, color = ("bold", INK) if beyond else ("normal", QUIET)
            axes.text(col, row, value, ha="center", va="center", fontsize=7.5, weight=weight, color=color)
    names = [_name(label) for label in labels]
    axes.set_xticks(range(1, count), names[1:], rotation=45, ha="left", rotation_mode="anchor")
    axes.set_yticks(range(count - 1), names[:-1])
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.set(xlim=(0.45, count - 0.45), ylim=(count - 1.45, -0.55), aspect="equal")
    axes.spines[:].set_visible(False)
    return figure


@dataclass(frozen=True)
class Point:
    """A mean over seeds, its standard deviation where there is one, and where it lies on the axis."""

    at: float
    mean: float
    sd: float | None


@dataclass(frozen=True)
class Line:
    """A method over several amounts of labels."""

    label: str
    points: Sequence[Point]
    is_baseline: bool


@styled
def accuracy_by_labels(lines: Sequence[Line]) -> Figure:
    """Overall accuracy against the number of training labels: baselines are dashed, with hollow marks."""
    figure = Figure(figsize=(WIDTH_IN, 4.2), layout="constrained")
    axes = figure.add_subplot()
    ticks = sorted({point.at for line in lines for point in line.points})
    for place, line in enumerate(lines):
        color, marker = SERIES[place % len(SERIES)], MARKERS[place % len(MARKERS)]
        # Side by side, so that the bars of methods of like accuracy do not hide each other.
        at = [point.at * 1.012 ** (place - len(lines) / 2) for point in line.points]
        means, bars = [point.mean for point in line.points], [point.sd or 0.0 for point in line.points]
        style, face = ("--", GROUND) if line.is_baseline else ("-", color)
        axes.errorbar(
            at, means, bars, color=color, marker=marker, ms=6.5, mfc=face, linestyle=style, linewidth=1.6, elinewidth=1,
            capsize=2.5, label=_name(line.label, 44),
        )  # fmt: skip
    axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{tick:.0f}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set(xlabel="labelled pixels to train on", ylabel="overall accuracy, %")
    axes.grid()
    figure.legend(loc="outside right center")
    return figure


@styled
def accuracy_by_speed(blends: Mapping[str, Sequence[tuple[int, float, float]]]) -> Figure:
    """Overall accuracy against the time of a map; of every blend (stride, seconds, accuracy in percent)."""
    figure = Figure(figsize=(WIDTH_IN, 4.0), layout="constrained")
    axes = figure.add_subplot()
    for (name, points), color, marker in zip(blends.items(), SERIES, MARKERS, strict=False):
        _, seconds, accuracy = zip(*sorted(points), strict=True)
        axes.plot(seconds, accuracy, color=color, marker=marker, ms=8, linewidth=1.2, label=f"blend {name}")
    _stride_names(axes, blends)
    every = [seconds for points in blends.values() for _, seconds, _ in points]
    axes.set_xscale("log")
    ticks = _round_ticks(min(every), max(every))
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    accuracies = [accuracy for points in blends.values() for _, _, accuracy in points]
    middle = (min(accuracies) + max(accuracies)) / 2
    half = 0.66 * max(max(accuracies) - min(accuracies), SMALLEST_SPAN)
    axes.set(xlim=(ticks[0] / 1.15, ticks[-1] * 1.15), ylim=(middle - half, middle + half))
    axes.set(xlabel="seconds for the whole scene", ylabel="overall accuracy, %")
    axes.grid()
    figure.legend(loc="outside upper left", ncols=len(blends))
    return figure


def _stride_names(axes: Axes, blends: Mapping[str, Sequence[tuple[int, float, float]]]) -> None:
    """The stride is written once, over the most accurate of the points that share it."""
    strides = sorted({stride for points in blends.values() for stride, _, _ in points})
    for stride in strides:
        of_stride = [(y, x) for points in blends.values() for found, x, y in points if found == stride]
        y, x = max(of_stride)
        axes.annotate(
            f"stride {stride}", (x, y), (0, 9), textcoords="offset points", ha="center", fontsize=8.5, color=INK,
            bbox={**LABEL, "facecolor": GROUND},
        )  # fmt: skip


def _round_ticks(low: float, high: float) -> list[float]:
    """Ticks 1, 2, 5, 10, ... that span a range; at least two."""
    steps = [factor * 10.0**power for power in range(-4, 8) for factor in (1, 2, 5)]
    first = max(place for place, step in enumerate(steps) if step <= low or place == 0)
    last = min(place for place, step in enumerate(steps) if step >= high or place == len(steps) - 1)
    return [round(step, 6) for step in steps[first : max(last, first + 1) + 1]]


# Classes


@styled
def class_accuracies(
    names: Sequence[str], pixels: Sequence[int], series: Mapping[str, Sequence[tuple[float, float | None] | None]]
) -> Figure:
    """One row a class: each method's share found, in percent, with its standard deviation over seeds."""
    figure = Figure(figsize=(WIDTH_IN, 0.3 * len(names) + 1.0), layout="constrained")
    axes = figure.add_subplot()
    shift = np.linspace(-0.24, 0.24, len(series)) if len(series) > 1 else [0.0]
    for (name, values), color, marker, down in zip(series.items(), SERIES, MARKERS, shift, strict=False):
        known = [(place + down, *value) for place, value in enumerate(values) if value is not None]
        if known:
            at, means, sds = zip(*known, strict=True)
            axes.errorbar(
                means, at, xerr=[sd or 0.0 for sd in sds], linestyle="none", marker=marker, ms=5.5, color=color,
                elinewidth=1, label=_name(name, 44),
            )  # fmt: skip
    _rows(
        axes,
        [
            f"{place}  {_name(name)} ({count:,})"
            for place, (name, count) in enumerate(zip(names, pixels, strict=True), 1)
        ],
    )
    left = max(min(axes.get_xlim()[0], 100 - SMALLEST_SPAN), -3)
    axes.set_xlim(left, 100 + 0.03 * (100 - left))
    axes.set_xticks([tick for tick in axes.get_xticks() if left <= tick <= 100])
    axes.set_xlabel("accuracy of the class, %")
    figure.legend(loc="outside upper left", ncols=3, handletextpad=0.3, columnspacing=1.4)
    return figure


@styled
def confusion_matrix(names: Sequence[str], counts: Array) -> Figure:
    """Where the pixels of each true class (rows) went, in percent of the class."""
    classes = len(names)
    totals = counts.sum(axis=1)
    shares = 100 * counts / np.maximum(totals, 1)[:, None]
    side = min(0.42, 6.0 / classes)
    figure = Figure(figsize=(max(4.4, 2.9 + side * classes), 1.0 + side * classes), layout="constrained")
    axes = figure.add_subplot()
    for row, col in zip(*np.nonzero(counts), strict=True):
        share = float(shares[row, col])
        color = BLUE if row == col else ORANGE
        alpha = 0.08 + 0.62 * math.sqrt(share / 100)  # the root keeps small shares visible
        axes.add_patch(Rectangle((col - 0.5, row - 0.5), 1, 1, facecolor=color, alpha=alpha, linewidth=0))
        if classes <= MOST_NUMBERED and share >= 0.5:
            size = 7.5 if side >= 0.33 else 6
            axes.text(col, row, f"{share:.0f}", ha="center", va="center", fontsize=size, color=INK)
    numbers = [str(place) for place in range(1, classes + 1)]
    axes.set_xticks(range(classes), numbers)
    axes.set_yticks(range(classes), [f"{_name(name)}  {number}" for name, number in zip(names, numbers, strict=True)])
    axes.set_xticks(np.arange(classes + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(classes + 1) - 0.5, minor=True)
    axes.grid(which="minor", linewidth=0.5)
    axes.tick_params(which="both", length=0)
    axes.set(
        xlim=(-0.5, classes - 0.5),
        ylim=(classes - 0.5, -0.5),
        aspect="equal",
        xlabel="class found",
        ylabel="true class",
    )
    if classes > MOST_NUMBERED:
        axes.tick_params(labelsize=6.5)
    axes.spines[:].set_visible(False)
    return figure


# The scene


@dataclass(frozen=True)
class MapArrays:
    """What the maps of a scene are drawn from, all on its grid."""

    rgb: Array  # (rows, cols, 3) uint8
    truth: Array  # (rows, cols); 0 is no label
    split: Array  # (rows, cols); 1 trains, 2 validates, 3 tests
    classes: Array  # (rows, cols); 0 is no data
    confidence: Array  # (rows, cols)


@styled
def class_maps(maps: MapArrays, names: Sequence[str], colors: Sequence[str]) -> Figure:
    """Truth, split and class map; below them the scene, the errors and the confidence."""
    step = -(-max(maps.truth.shape) // MAP_PX)
    thin = (slice(None, None, step),) * 2
    truth, classes = maps.truth[thin], maps.classes[thin]
    figure, panels, panel_in = _map_panels(truth.shape[0], truth.shape[1], len(names))
    palette = ListedColormap(["#00000000", *colors])
    shown: dict[str, Any] = {"interpolation": "none", "cmap": palette, "vmin": -0.5, "vmax": len(colors) + 0.5}
    panels[0].imshow(truth, **shown)
    _number_regions(panels[0], truth)
    _draw_split(panels[1], maps.split, step)
    panels[2].imshow(classes, **shown)
    _number_regions(panels[2], np.where(truth == classes, classes, 0))
    panels[3].imshow(maps.rgb[thin], interpolation="none")
    _draw_errors(panels[4], maps, step)
    known = np.where(classes > 0, maps.confidence[thin], np.nan)
    drawn = panels[5].imshow(known, interpolation="none", cmap=SHADES, vmin=0, vmax=1)
    inset = panels[5].inset_axes((0, -0.16 / panel_in, 1, 0.09 / panel_in))
    bar = figure.colorbar(drawn, cax=inset, orientation="horizontal", ticks=[0, 0.5, 1])
    bar.outline.set_visible(False)
    inset.tick_params(labelsize=7.5, length=2, pad=1)
    inset.get_xticklabels()[0].set_horizontalalignment("left")
    inset.get_xticklabels()[-1].set_horizontalalignment("right")
    for panel, title in zip(panels, ("truth", "split", "class map", "scene", "errors", "confidence"), strict=True):
        panel.set_title(title)
        panel.set(xticks=[], yticks=[])
        panel.spines[:].set(visible=True, color=LINE)
    swatches = [
        Patch(facecolor=color, edgecolor=QUIET, linewidth=0.5, label=f"{place} {_name(name, 28)}")
        for place, (name, color) in enumerate(zip(names, colors, strict=True), 1)
    ]
    figure.legend(handles=swatches, loc="outside lower left", ncols=4, handlelength=1.2, columnspacing=1.2)
    return figure


def _map_panels(rows: int, cols: int, classes: int) -> tuple[Figure, list[Axes], float]:
    """Six panels of the scene's shape and their height: three in a row, or two of a flat scene, which needs width."""
    across = 3 if rows >= 0.45 * cols else 2
    down = 6 // across
    panel_in = min((WIDTH_IN / across - 0.1) * rows / cols, TALLEST_PANEL_IN)
    height = down * (panel_in + 0.55) + 0.19 * -(-classes // 4) + 0.2
    figure = Figure(figsize=(WIDTH_IN, height), layout="constrained")
    return figure, list(figure.subplots(down, across).ravel()), panel_in


def _number_regions(axes: Axes, classes: Array) -> None:
    """Write each class's number where it is farthest from everything else."""
    from scipy.ndimage import distance_transform_edt

    smallest = max(classes.shape) / 50
    for value in np.unique(classes[classes > 0]):
        inside = distance_transform_edt(np.pad(classes == value, 1))[1:-1, 1:-1]
        row, col = np.unravel_index(inside.argmax(), inside.shape)
        if inside.max() >= smallest:
            at: dict[str, Any] = {"x": float(col), "y": float(row), "ha": "center", "va": "center"}
            axes.text(**at, s=str(value), fontsize=7.5, color="black", bbox=LABEL)


def _draw_split(axes: Axes, split: Array, step: int) -> None:
    area = np.zeros((*split[::step, ::step].shape, 4))
    area[split[::step, ::step] == 3] = mpl.colors.to_rgba(GREY, 0.45)
    axes.imshow(area, interpolation="none")
    counts = [int((split == value).sum()) for value in (1, 2, 3)]
    for value, color, marker in ((1, BLUE, "o"), (2, ORANGE, "^")):
        rows, cols = np.nonzero(split == value)
        size = 9 if len(rows) < 300 else 4 if len(rows) < 2000 else 1.5
        axes.scatter(cols / step, rows / step, s=size, c=color, marker=marker, linewidths=0, rasterized=len(rows) > 500)
    axes.set_xlabel("● {} train   ▲ {} validate   ■ {:,} test".format(*counts), fontsize=8)


def _draw_errors(axes: Axes, maps: MapArrays, step: int) -> None:
    truth, classes, split = (array[::step, ::step] for array in (maps.truth, maps.classes, maps.split))
    is_test = split == 3
    area = np.zeros((*truth.shape, 4))
    area[is_test & (truth == classes)] = mpl.colors.to_rgba(GREY, 0.35)
    area[is_test & (truth != classes)] = mpl.colors.to_rgba(ORANGE)
    axes.imshow(area, interpolation="none")
    tested = maps.split == 3
    wrong = float((maps.truth != maps.classes)[tested].mean()) if tested.any() else 0.0
    axes.set_xlabel(f"{100 * wrong:.1f} % of the test pixels", fontsize=8)


@styled
def embedding(points: Array, classes: Array, names: Sequence[str], colors: Sequence[str]) -> Figure:
    """Features of test pixels in two dimensions, each class with a colour and its number at its middle."""
    figure = Figure(figsize=(WIDTH_IN, 4.9), layout="constrained")
    axes = figure.add_subplot()
    marks = []
    for value in [int(value) for value in np.unique(classes) if value > 0]:
        of_class, color, marker = points[classes == value], colors[value - 1], MARKERS[(value - 1) % len(MARKERS)]
        x, y = of_class.T
        axes.scatter(
            x, y, s=11, c=color, marker=marker, linewidths=0.25, edgecolors="#00000066", alpha=0.85, rasterized=True
        )
        x, y = of_class[np.linalg.norm(of_class - np.median(of_class, axis=0), axis=1).argmin()]
        axes.text(
            x, y, str(value), ha="center", va="center", fontsize=9.5, weight="bold", color="black", zorder=5, bbox=LABEL
        )
        name = f"{value} {_name(names[value - 1], 28)}"
        marks.append(Line2D([], [], linestyle="none", marker=marker, ms=6, mfc=color, mec=QUIET, mew=0.5, label=name))
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set(visible=True, color=LINE)
    figure.legend(handles=marks, loc="outside right center", handletextpad=0.3)
    return figure


@styled
def attention_maps(patches: Array, attention: Array, titles: Sequence[str]) -> Figure:
    """One row a pixel: its patch, what its token attends to in every layer (mean of heads), and the last layer's heads.

    patches: (m, patch, patch, 3) uint8; attention: (m, layers, heads, patch, patch), which sums to 1 over a patch.
    """
    count, layers, heads, patch_px, _ = attention.shape
    even = attention * patch_px**2  # 1 is an even share
    columns = 1 + layers + heads
    side = min(1.0, (WIDTH_IN - 1.5) / columns)
    figure = Figure(figsize=(WIDTH_IN, count * (side + 0.09) + 1.0), layout="constrained")
    panels = figure.subplots(count, columns, squeeze=False)
    pictures = np.concatenate([even.mean(axis=2), even[:, -1]], axis=1)  # (m, layers + heads, patch, patch)
    low, high = np.percentile(pictures, [1, 99.5])
    shown: dict[str, Any] = {
        "interpolation": "none",
        "cmap": SHADES,
        "vmin": float(low),
        "vmax": float(max(high, low + 1e-6)),
    }
    drawn = None
    for row in range(count):
        panels[row, 0].imshow(patches[row], interpolation="none")
        for col in range(layers + heads):
            drawn = panels[row, col + 1].imshow(pictures[row, col], **shown)
        said = "\n".join(textwrap.fill(part, 17) for part in titles[row].splitlines())
        panels[row, 0].set_ylabel(said, rotation=0, ha="right", va="center", fontsize=8)
    head_names = [f"layer {layer}" for layer in range(1, layers + 1)] + [
        f"L{layers} head {head}" for head in range(1, heads + 1)
    ]
    for panel, title in zip(panels[0], ["patch", *head_names], strict=True):
        panel.set_title(title, fontsize=8)
    for panel in panels.ravel():
        centre = patch_px // 2
        frame = Rectangle((centre - 0.5, centre - 0.5), 1, 1, fill=False, edgecolor=HALO, linewidth=1.1)
        frame.set_path_effects([withStroke(linewidth=2.2, foreground="black")])
        panel.add_patch(frame)
        panel.set(xticks=[], yticks=[])
        panel.spines[:].set_visible(False)
    assert drawn is not None
    bar = figure.colorbar(drawn, ax=panels.ravel().tolist(), location="bottom", shrink=0.45, aspect=34, pad=0.02)
    bar.outline.set_visible(False)
    bar.set_label("attention of the centre pixel, times an even share", fontsize=8)
    bar.ax.tick_params(labelsize=8)
    return figure


@styled
def reliability(curves: Mapping[str, tuple[Sequence[tuple[float, float, float]], float | None]]) -> Figure:
    """How often answers of a confidence are right; a curve is (confidence, accuracy, count) by bin, and its ECE."""
    figure = Figure(figsize=(WIDTH_IN, 4.3), layout="constrained")
    axes, counts = figure.subplots(1, 2, width_ratios=(1.25, 1))
    axes.plot([0, 100], [0, 100], color=QUIET, linewidth=1, linestyle=":", label="as often right as said")
    width = 0.8 / max(1, len(curves))
    for place, (name, (rows, error)) in enumerate(curves.items()):
        color, marker, hatch = ((ORANGE, "s", ""), (BLUE, "o", "////"))[place % 2]
        confidence, right, count = np.array([row for row in rows if row[2] > 0], float).reshape(-1, 3).T
        said = name if error is None else f"{name}: ECE {100 * error:.1f} %"
        is_sure = count >= FEWEST_ANSWERS
        for chosen, look in (
            (is_sure, {"mfc": color, "linewidth": 1.4, "label": said}),
            (~is_sure, {"mfc": GROUND, "linestyle": "none"}),
        ):
            at = 100 * confidence[chosen], 100 * right[chosen]
            axes.plot(*at, color=color, marker=marker, ms=5.5, **look)
        at = np.minimum(confidence * BINS, BINS - 1) // 1 + (place - (len(curves) - 1) / 2) * width
        counts.bar(
            at, 100 * count / count.sum(), width, color=color, hatch=hatch, edgecolor=GROUND, linewidth=0, label=name
        )
    edges = np.arange(0, BINS + 1, BINS // 5)
    counts.set_xticks(edges - 0.5, [f"{100 * edge / BINS:.0f}" for edge in edges])
    axes.set(xlim=(0, 101), ylim=(0, 101), xlabel="confidence, %", ylabel="right, %", aspect="equal")
    counts.set(xlabel="confidence, %", ylabel="test pixels, %")
    axes.grid()
    counts.grid(axis="y")
    counts.set_axisbelow(True)
    axes.legend(loc="best")
    counts.legend(loc="upper left")
    return figure
