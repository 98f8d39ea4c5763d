"""Our figures beside the paper's, where a study's scene is one of its three: both of its tables, cell by cell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

import numpy as np

from training.findings import Method, Record, Study
from training.pages import Block, Entry, Paragraph, Row, Table
from training.plan import DEFAULT_ROWS, DEFAULT_VARIANT, Amount
from training.published import COLUMNS, FRACTION, PUBLISHED, TABLE_TWO, VAL_FRACTION, PublishedScene, Spread
from training.statistics import METRICS, Metric, marks
from training.wording import MARKS, counted, labels_of, points, share, unfinished

OTHER_SPLIT = "The paper drew its pixels at random; this study's split is spatial, which is harder."
NOT_RUN_YET = f"No score function has been run with {100 * FRACTION:g} % of the labels yet."
OUR_READING = (
    "The paper leaves three things open, which were read like this: self-attention (SA) is the stock multi-head layer, "
    "with a scaled dot product and biases; in mixed attention (MSA-CS²) half of the heads score with cosine squared, "
    "half with the scaled dot product; cross attention (C-) takes keys and values from a second embedding of the patch."
)
AMOUNT = Amount(fraction=FRACTION)

Scored = tuple[float, float, float]  # OA, AA and kappa of a seed, as shares from 0 to 1


@dataclass(frozen=True)
class Compared:
    """A cell of Table I with ours beside it, in percent."""

    variant: str  # our name
    column: str  # the paper's
    metric: Metric
    published: float
    ours: float | None  # mean over seeds; None: not run
    deviation: float | None  # over seeds, where there are several
    seeds: int

    @property
    def difference(self) -> float | None:
        """Points by which ours is higher."""
        return None if self.ours is None else self.ours - self.published


def compare(published: PublishedScene, results: Mapping[str, Iterable[Scored]]) -> list[Compared]:
    """Every cell of the scene's part of Table I, in the paper's order, with the results by variant beside it."""
    cells = []
    for variant, column in COLUMNS.items():
        seeds = list(results.get(variant, ()))
        for place, metric in enumerate(METRICS):
            values = [100 * scored[place] for scored in seeds]
            cells.append(
                Compared(
                    variant,
                    column,
                    metric,
                    getattr(published.figures[variant], metric),
                    mean(values) if values else None,
                    stdev(values) if len(values) > 1 else None,
                    len(values),
                )
            )
    return cells


def papers_figures(study: Study, prefix: str = "") -> Iterator[Block]:
    """The paper's tables as it prints them beside ours; nothing where the scene is none of the paper's."""
    if study.published is None:
        return
    yield from map(Paragraph, _other_protocol(study))
    results = _by_the_protocol(study.cells)
    if not results:
        yield Paragraph(NOT_RUN_YET)
    for recipe in sorted(results, key=study.recipes.index):
        compared = compare(PUBLISHED[study.published], results[recipe])
        yield _table_one(study, recipe, compared)
        yield Paragraph(_in_words(compared), is_finding=True)
    if results:
        yield Paragraph(OUR_READING)
    for recipe in sorted({cell["recipe"] for cell in study.cells_of("ablations", AMOUNT)}):
        yield _table_two(study, recipe, list(PUBLISHED).index(study.published))


def _other_protocol(study: Study) -> Iterator[str]:
    """What keeps ours from being held against the paper's."""
    if study.split != "random":
        yield OTHER_SPLIT
    if study.val_fraction != VAL_FRACTION:
        yield (
            f"The paper validated on {100 * VAL_FRACTION:g} % of each class and tested on the rest; this study "
            f"validated on {100 * study.val_fraction:g} %."
        )
    if study.test_pixels is not None:
        yield f"The paper tested on all other pixels; this study on {study.test_pixels:,} of them, drawn at random."


def _by_the_protocol(cells: Iterable[Record]) -> dict[str, dict[str, list[Scored]]]:
    """What can be held against the paper's Table I: scores with its share of labels, by recipe and score function."""
    results: dict[str, dict[str, list[Scored]]] = {}
    for cell in cells:
        if cell["part"] == "variants" and cell["amount"] == AMOUNT.record():
            scores = cell["scores"]
            of_recipe = results.setdefault(cell["recipe"], {})
            of_recipe.setdefault(cell["name"], []).append((scores["oa"], scores["aa"], scores["kappa"]))
    return results


# Table I


def _table_one(study: Study, recipe: str, compared: Sequence[Compared]) -> Table:
    of_metric = {metric: [cell for cell in compared if cell.metric == metric] for metric in METRICS}
    most = max(cell.seeds for cell in compared)
    columns = []
    for cells in of_metric.values():
        ours = marks([cell.ours if cell.seeds == most else None for cell in cells])
        theirs = marks([cell.published for cell in cells])
        columns += [
            [Entry(_our_score(cell), rank) for cell, rank in zip(cells, ours, strict=True)],
            [Entry(_papers_score(cell), rank) for cell, rank in zip(cells, theirs, strict=True)],
        ]
    rows = [Row(_name(cell, most), entries) for cell, *entries in zip(of_metric["oa"], *columns, strict=True)]
    names = {"oa": "OA", "aa": "AA", "kappa": "kappa"}
    over = f"mean ± standard deviation over {most} seeds" if most > 1 else "one seed"
    return Table(
        f"The paper's Table I and ours, recipe {recipe}, {labels_of(study, AMOUNT)}",
        ["score function", *(head for metric in METRICS for head in (names[metric], "paper's (difference)"))],
        rows,
        f"In percent, ours {over}, then the paper's figure and by how much ours is above it. {MARKS} The paper prints "
        "no deviation, so that a difference cannot be tested.",
    )


def _our_score(cell: Compared) -> str:
    return "" if cell.ours is None else share(cell.ours, cell.deviation)


def _papers_score(cell: Compared) -> str:
    return f"{cell.published:.2f}" + ("" if cell.difference is None else f" ({points(cell.difference)})")


def _name(cell: Compared, most: int) -> str:
    """Our name, the paper's, and how many seeds there are where others have more."""
    fewer = f", {cell.seeds} of {most} seeds" if 0 < cell.seeds < most else ""
    return f"{cell.variant.replace('_', ' ')} ({cell.column}){fewer}"


def _in_words(compared: Sequence[Compared]) -> str:
    """How far ours are from the paper's overall accuracies, and whether both have the same first."""
    known = [cell for cell in compared if cell.metric == "oa" and cell.ours is not None]
    differences = [cell.difference for cell in known if cell.difference is not None]
    above = sum(round(value, 2) > 0 for value in differences)
    said = (
        f"Ours is above the paper's overall accuracy with {above} of {counted(len(known), 'score function')}; the "
        f"difference is {points(float(np.mean(differences)))} points on average, from {points(min(differences))} to "
        f"{points(max(differences))}."
    )
    known = [cell for cell in known if cell.seeds == max(cell.seeds for cell in known)]
    if len(known) < 2:
        return said
    ours, theirs = (max(known, key=lambda cell: getattr(cell, side)) for side in ("ours", "published"))
    first = f"{ours.variant.replace('_', ' ')} first"
    return f"{said} Of these, both have {first}." if ours is theirs else (
        f"{said} Of these, ours has {first}, the paper {theirs.variant.replace('_', ' ')}."
    )  # fmt: skip


# Table II


def _table_two(study: Study, recipe: str, scene: int) -> Table:
    """Overall accuracy as the paper prints it, and ours beside it; rows that were not run have the paper's alone."""
    variants = study.variants(AMOUNT, recipe)
    default = next((one for one in variants if one.cells[0]["name"] == DEFAULT_VARIANT), None)
    changed = study.changes("ablations", AMOUNT, recipe)
    among = [method for methods in changed.values() for method in methods]
    rows: list[Row] = []
    for group, printed in TABLE_TWO.items():
        ours = {DEFAULT_ROWS[group][0]: default, **{method.label: method for method in changed.get(group, ())}}
        rows.append(Row(group))
        rows += [_row(label, ours.get(label), figures[scene], among) for label, figures in printed.items()]
    return Table(
        f"The paper's Table II and ours, recipe {recipe}, {labels_of(study, AMOUNT)}",
        ["configuration", "OA", "paper's", "difference"],
        rows,
        "Overall accuracy in percent, mean ± standard deviation over seeds, and by how much ours is above the paper's, "
        "which does not say over how many runs its deviations are.",
    )


def _row(label: str, ours: Method | None, printed: Spread, among: Sequence[Method]) -> Row:
    theirs = share(*printed)
    if ours is None:
        return Row(label, [Entry(""), Entry(theirs), Entry("")])
    difference = points(ours.mean - printed[0])
    return Row(label + unfinished(ours, among), [Entry(share(*ours.summary())), Entry(theirs), Entry(difference)])
