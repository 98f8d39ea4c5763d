"""The figures of a study's report: each function takes arrays and returns a matplotlib figure.

A marker, a number or a position repeats what a colour shows.
"""

from __future__ import annotations

import io
import math
import textwrap
import warnings
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

from hyperscene.training.fit.calibration import BINS

INK, QUIET, LINE, GROUND = "#14201b", "#52605a", "#d3dbd6", "#ffffff"
BLUE, ORANGE, GREEN, PURPLE, OCHRE, GREY = "#0060a8", "#c74a00", "#00795a", "#9a4a8c", "#8f6400", "#5a5f66"

# These six stay apart in the common forms of colour blindness.
SERIES = (BLUE, ORANGE, GREEN, PURPLE, OCHRE, GREY)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")

HALO = "#fefefe"  # behind numbers on coloured ground
LABEL: Any = {"boxstyle": "round,pad=0.12", "facecolor": HALO, "edgecolor": "none", "alpha": 0.75}

WIDTH_IN = 8.4
DPI = 130
ROW_IN = 0.27
MAX_NAME_LENGTH = 30
LARGE_DIFFERENCE, OUTLYING = 5.0, 20.0  # a difference of so many points, and so many times the median, hides the others
MAX_PANEL_IN = 5.0
MIN_AXIS_SPAN = 2.0  # points of accuracy on an axis, at least: less would make noise look large
MAP_PX = 700  # a scene's longer side is subsampled to this
SHADES = mpl.colormaps["cividis"].resampled(64)  # enough for the eye; more make the file larger
MIN_PREDICTIONS = 20  # in a bin of confidence, for its accuracy to mean anything
MAX_NUMBERED_CLASSES = 26  # classes whose shares fit into the squares of a confusion matrix

STYLE: Any = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same figure on every machine
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
}
styled = mpl.rc_context(STYLE)


@styled
def draw_png(figure: Figure) -> bytes:
    """The figure as a PNG file; the same figure has the same bytes."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a name in a script that the font lacks
        figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    return buffer.getvalue()


Array = NDArray[Any]


def _name(text: str, longest: int = MAX_NAME_LENGTH) -> str:
    return text if len(text) <= longest else text[: longest - 1].rstrip() + "…"


# Accuracies


@styled
def accuracy_by_method(
    labels: Sequence[str], series: Mapping[str, Sequence[Sequence[float]]], breaks: Sequence[int] = ()
) -> Figure:
    """One row a method: a small mark for each seed, a large one for the mean; a rule above each row in `breaks`."""
    figure = Figure(figsize=(WIDTH_IN, ROW_IN * len(labels) + 1.0), layout="constrained")
    axes = figure.add_subplot()
    for (name, rows), color, marker in zip(series.items(), SERIES, MARKERS, strict=False):
        for index, values in enumerate(rows):
            if len(values):
                at = index + _shift(series, name, index)
                seeds: dict[str, Any] = {"marker": marker, "ms": 3.5, "mfc": "none", "mec": color, "mew": 0.8}
                axes.plot(values, np.full(len(values), at), linestyle="none", **seeds)
                axes.plot([np.mean(values)], [at], marker=marker, ms=7, color=color, zorder=3)
        axes.plot([], [], linestyle="none", marker=marker, ms=7, color=color, label=name)
    for index in breaks:
        axes.axhline(index - 0.5, color=QUIET, linewidth=0.8)
    _rows(axes, labels)
    axes.set_xlabel("overall accuracy, %")
    figure.legend(loc="outside upper left", ncols=len(series), handletextpad=0.3, columnspacing=1.4)
    return figure


def _shift(series: Mapping[str, Sequence[Sequence[float]]], name: str, index: int) -> float:
    """The vertical offset of a series within a row, so that series do not overlap."""
    present = [other for other, rows in series.items() if len(rows[index])]
    return 0.36 * ((present.index(name) + 0.5) / len(present) - 0.5)


def _rows(axes: Axes, labels: Sequence[str]) -> None:
    axes.set_yticks(range(len(labels)), [_name(label, 52) for label in labels])
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="both")
    axes.set_axisbelow(True)


@dataclass(frozen=True)
class DifferenceRow:
    """Differences of two methods over the same seeds, in points."""

    label: str
    values: Sequence[float]
    is_beyond_noise: bool


@styled
def differences_by_row(rows: Sequence[DifferenceRow], axis_label: str, breaks: Sequence[int] = ()) -> Figure:
    """Differences from a reference: a tick for each seed and their mean, filled if it is beyond noise."""
    figure = Figure(figsize=(WIDTH_IN, ROW_IN * len(rows) + 1.0), layout="constrained")
    axes = figure.add_subplot()
    for index, row in enumerate(rows):
        mean = float(np.mean(row.values))
        color = BLUE if mean >= 0 else ORANGE
        marker = "o" if mean >= 0 else "s"
        at = np.full(len(row.values), index)
        axes.plot([min(row.values), max(row.values)], [index, index], color=color, linewidth=1)
        axes.plot(row.values, at, linestyle="none", marker="|", ms=7, color=color)
        face = color if row.is_beyond_noise else GROUND
        axes.plot([mean], [index], marker=marker, ms=7, mfc=face, mec=color, mew=1.3, zorder=3)
    for index in breaks:
        axes.axhline(index - 0.5, color=QUIET, linewidth=0.8)
    axes.axvline(0, color=INK, linewidth=1)
    _rows(axes, [row.label for row in rows])
    is_stretched = _stretch_small(axes, np.array([np.mean(row.values) for row in rows]))
    axes.set_xlabel(f"{axis_label}{', stretched around 0' * is_stretched}")
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
    """Stretch the axis around 0 if one difference is far larger than the others; returns whether it did."""
    sizes = np.abs(means)
    if sizes.max() < LARGE_DIFFERENCE or sizes.max() < OUTLYING * np.median(sizes):
        return False
    axes.set_xscale("symlog", linthresh=0.5, linscale=1.0)
    low, high = axes.get_xlim()
    tick_sizes = (0.2, 0.5, 1.0, 3.0, 10.0, 30.0, 100.0)
    ticks = [0.0, *tick_sizes, *(-size for size in tick_sizes)]
    axes.set_xticks(sorted(tick for tick in ticks if low <= tick <= high))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}".replace("-", "\N{MINUS SIGN}"))
    axes.minorticks_off()
    return True


@dataclass(frozen=True)
class Point:
    """A mean over seeds with its standard deviation, at a position on the axis."""

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
    for index, line in enumerate(lines):
        color, marker = SERIES[index % len(SERIES)], MARKERS[index % len(MARKERS)]
        # Shifted sideways, so that the bars of similar methods do not hide each other.
        at = [point.at * 1.012 ** (index - len(lines) / 2) for point in line.points]
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


# Classes


@styled
def class_accuracies(
    names: Sequence[str], pixels: Sequence[int], series: Mapping[str, Sequence[tuple[float, float | None] | None]]
) -> Figure:
    """One row a class: the accuracy of each method in percent, with its standard deviation over seeds."""
    figure = Figure(figsize=(WIDTH_IN, 0.3 * len(names) + 1.0), layout="constrained")
    axes = figure.add_subplot()
    shift = np.linspace(-0.24, 0.24, len(series)) if len(series) > 1 else [0.0]
    for (name, values), color, marker, down in zip(series.items(), SERIES, MARKERS, shift, strict=False):
        known = [(index + down, *value) for index, value in enumerate(values) if value is not None]
        if known:
            at, means, sds = zip(*known, strict=True)
            axes.errorbar(
                means, at, xerr=[sd or 0.0 for sd in sds], linestyle="none", marker=marker, ms=5.5, color=color,
                elinewidth=1, label=_name(name, 44),
            )  # fmt: skip
    _rows(
        axes,
        [
            f"{index}  {_name(name)} ({count:,})"
            for index, (name, count) in enumerate(zip(names, pixels, strict=True), 1)
        ],
    )
    left = max(min(axes.get_xlim()[0], 100 - MIN_AXIS_SPAN), -3)
    axes.set_xlim(left, 100 + 0.03 * (100 - left))
    axes.set_xticks([tick for tick in axes.get_xticks() if left <= tick <= 100])
    axes.set_xlabel("accuracy of the class, %")
    figure.legend(loc="outside upper left", ncols=3, handletextpad=0.3, columnspacing=1.4)
    return figure


@styled
def confusion_matrix(names: Sequence[str], counts: Array) -> Figure:
    """The classes that the pixels of each true class (rows) are mapped to, in percent of the class."""
    classes = len(names)
    totals = counts.sum(axis=1)
    shares = 100 * counts / np.maximum(totals, 1)[:, None]
    side = min(0.42, 6.0 / classes)
    figure = Figure(figsize=(max(4.4, 2.9 + side * classes), 1.0 + side * classes), layout="constrained")
    axes = figure.add_subplot()
    for row, col in zip(*np.nonzero(counts), strict=True):
        share = float(shares[row, col])
        color = BLUE if row == col else ORANGE
        alpha = 0.08 + 0.62 * math.sqrt(share / 100)  # the square root keeps small shares visible
        axes.add_patch(Rectangle((col - 0.5, row - 0.5), 1, 1, facecolor=color, alpha=alpha, linewidth=0))
        if classes <= MAX_NUMBERED_CLASSES and share >= 0.5:
            size = 7.5 if side >= 0.33 else 6
            axes.text(col, row, f"{share:.0f}", ha="center", va="center", fontsize=size, color=INK)
    numbers = [str(index) for index in range(1, classes + 1)]
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
    if classes > MAX_NUMBERED_CLASSES:
        axes.tick_params(labelsize=6.5)
    axes.spines[:].set_visible(False)
    return figure


# The scene


@dataclass(frozen=True)
class MapLayers:
    """The arrays of the map figure, all on the scene's grid."""

    rgb: Array  # (rows, cols, 3) uint8
    truth: Array  # (rows, cols); 0 is no label
    split: Array  # (rows, cols); 1 trains, 2 validates, 3 tests
    classes: Array  # (rows, cols); 0 is no data
    confidence: Array  # (rows, cols)


@styled
def class_maps(maps: MapLayers, names: Sequence[str], colors: Sequence[str]) -> Figure:
    """Truth, split and class map; below them the scene, the errors and the confidence."""
    step = -(-max(maps.truth.shape) // MAP_PX)
    subsampled = (slice(None, None, step),) * 2
    truth, classes = maps.truth[subsampled], maps.classes[subsampled]
    figure, panels, panel_in = _map_panels(truth.shape[0], truth.shape[1], len(names))
    palette = ListedColormap(["#00000000", *colors])
    shown: dict[str, Any] = {"interpolation": "none", "cmap": palette, "vmin": -0.5, "vmax": len(colors) + 0.5}
    panels[0].imshow(truth, **shown)
    _number_regions(panels[0], truth)
    _draw_split(panels[1], maps.split, step)
    panels[2].imshow(classes, **shown)
    _number_regions(panels[2], np.where(truth == classes, classes, 0))
    panels[3].imshow(maps.rgb[subsampled], interpolation="none")
    _draw_errors(panels[4], maps, step)
    known = np.where(classes > 0, maps.confidence[subsampled], np.nan)
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
        Patch(facecolor=color, edgecolor=QUIET, linewidth=0.5, label=f"{index} {_name(name, 28)}")
        for index, (name, color) in enumerate(zip(names, colors, strict=True), 1)
    ]
    figure.legend(handles=swatches, loc="outside lower left", ncols=4, handlelength=1.2, columnspacing=1.2)
    return figure


def _map_panels(rows: int, cols: int, classes: int) -> tuple[Figure, list[Axes], float]:
    """Six panels of the scene's shape and their height: three in a row, or two for a wide scene."""
    across = 3 if rows >= 0.45 * cols else 2
    down = 6 // across
    panel_in = min((WIDTH_IN / across - 0.1) * rows / cols, MAX_PANEL_IN)
    height = down * (panel_in + 0.55) + 0.19 * -(-classes // 4) + 0.2
    figure = Figure(figsize=(WIDTH_IN, height), layout="constrained")
    return figure, list(figure.subplots(down, across).ravel()), panel_in


def _number_regions(axes: Axes, classes: Array) -> None:
    """Write each class's number at the point farthest from other classes."""
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


def _draw_errors(axes: Axes, maps: MapLayers, step: int) -> None:
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
    """Features of test pixels in two dimensions, with each class's number at its centre."""
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
    """One row a pixel: its patch, its attention in every layer (mean of heads), and in each head of the last layer.

    patches: (m, patch, patch, 3) uint8; attention: (m, layers, heads, patch, patch), which sums to 1 over a patch.
    """
    count, layers, heads, patch_px, _ = attention.shape
    relative = attention * patch_px**2  # 1 is uniform attention
    columns = 1 + layers + heads
    side = min(1.0, (WIDTH_IN - 1.5) / columns)
    figure = Figure(figsize=(WIDTH_IN, count * (side + 0.09) + 1.0), layout="constrained")
    panels = figure.subplots(count, columns, squeeze=False)
    images = np.concatenate([relative.mean(axis=2), relative[:, -1]], axis=1)  # (m, layers + heads, patch, patch)
    low, high = np.percentile(images, [1, 99.5])
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
            drawn = panels[row, col + 1].imshow(images[row, col], **shown)
        label = "\n".join(textwrap.fill(part, 17) for part in titles[row].splitlines())
        panels[row, 0].set_ylabel(label, rotation=0, ha="right", va="center", fontsize=8)
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
    bar.set_label("attention of the centre pixel, relative to uniform attention", fontsize=8)
    bar.ax.tick_params(labelsize=8)
    return figure


@styled
def reliability(curves: Mapping[str, tuple[Sequence[tuple[float, float, float]], float | None]]) -> Figure:
    """Reliability diagram; a curve is (confidence, accuracy, count) by bin, and its ECE."""
    figure = Figure(figsize=(WIDTH_IN, 4.3), layout="constrained")
    axes, counts = figure.subplots(1, 2, width_ratios=(1.25, 1))
    axes.plot([0, 100], [0, 100], color=QUIET, linewidth=1, linestyle=":", label="perfect calibration")
    width = 0.8 / max(1, len(curves))
    for index, (name, (rows, error)) in enumerate(curves.items()):
        color, marker, hatch = ((ORANGE, "s", ""), (BLUE, "o", "////"))[index % 2]
        confidence, right, count = np.array([row for row in rows if row[2] > 0], float).reshape(-1, 3).T
        text = name if error is None else f"{name}: ECE {100 * error:.1f} %"
        has_enough = count >= MIN_PREDICTIONS
        for chosen, look in (
            (has_enough, {"mfc": color, "linewidth": 1.4, "label": text}),
            (~has_enough, {"mfc": GROUND, "linestyle": "none"}),
        ):
            at = 100 * confidence[chosen], 100 * right[chosen]
            axes.plot(*at, color=color, marker=marker, ms=5.5, **look)
        at = np.minimum(confidence * BINS, BINS - 1) // 1 + (index - (len(curves) - 1) / 2) * width
        counts.bar(
            at, 100 * count / count.sum(), width, color=color, hatch=hatch, edgecolor=GROUND, linewidth=0, label=name
        )
    edges = np.arange(0, BINS + 1, BINS // 5)
    counts.set_xticks(edges - 0.5, [f"{100 * edge / BINS:.0f}" for edge in edges])
    axes.set(xlim=(0, 101), ylim=(0, 101), xlabel="confidence, %", ylabel="accuracy, %", aspect="equal")
    counts.set(xlabel="confidence, %", ylabel="test pixels, %")
    axes.grid()
    counts.grid(axis="y")
    counts.set_axisbelow(True)
    axes.legend(loc="best")
    counts.legend(loc="upper left")
    return figure
