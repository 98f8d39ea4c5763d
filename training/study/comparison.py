"""Comparison of a study with the paper's two tables, for the paper's three scenes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

import numpy as np

from hyperscene.training.study.pages import Block, Entry, Paragraph, Row, Table
from hyperscene.training.study.plan import DEFAULT_ROWS, DEFAULT_VARIANT, Amount
from hyperscene.training.study.published import (
    COLUMNS,
    FRACTION,
    PUBLISHED,
    TABLE_TWO,
    VAL_FRACTION,
    PublishedScene,
    Spread,
)
from hyperscene.training.study.results import Method, Record, Study
from hyperscene.training.study.statistics import METRICS, Metric, top_three
from hyperscene.training.study.text import MARKS, counted, labels_of, points, share, unfinished

OTHER_SPLIT = "The paper uses a random split; this study's split is spatial, which is harder."
NOT_RUN_YET = f"No score function has been run with {100 * FRACTION:g} % of the labels yet."
INTERPRETATION = (
    "The paper leaves three things open; here self-attention (SA) is the standard multi-head layer with scaled dot "
    "product and biases; in mixed attention (MSA-CS²) half of the heads use cosine squared and half the scaled dot "
    "product; cross attention (C-) takes keys and values from a second embedding of the patch."
)
AMOUNT = Amount(fraction=FRACTION)

SeedScores = tuple[float, float, float]  # OA, AA and kappa of a seed, as shares from 0 to 1


@dataclass(frozen=True)
class TableCell:
    """A cell of Table I and our score, in percent."""

    variant: str  # our name
    column: str  # the paper's
    metric: Metric
    published: float
    ours: float | None  # mean over seeds; None: not run
    deviation: float | None  # over seeds, where there are several
    seeds: int

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's, in points."""
        return None if self.ours is None else self.ours - self.published


def compare(published: PublishedScene, results: Mapping[str, Iterable[SeedScores]]) -> list[TableCell]:
    """Each cell of the scene's part of Table I, in the paper's order, with our result."""
    cells = []
    for variant, column in COLUMNS.items():
        seeds = list(results.get(variant, ()))
        for index, metric in enumerate(METRICS):
            values = [100 * scored[index] for scored in seeds]
            cells.append(
                TableCell(
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


def compare_with_paper(study: Study, prefix: str = "") -> Iterator[Block]:
    """The paper's tables and ours; nothing if the scene is not one of the paper's."""
    if study.published is None:
        return
    yield from map(Paragraph, _protocol_differences(study))
    results = _scores_under_protocol(study.cells)
    if not results:
        yield Paragraph(NOT_RUN_YET)
    for recipe in sorted(results, key=study.recipes.index):
        compared = compare(PUBLISHED[study.published], results[recipe])
        yield _table_one(study, recipe, compared)
        yield Paragraph(_summary_text(compared), is_finding=True)
    if results:
        yield Paragraph(INTERPRETATION)
    for recipe in sorted({cell["recipe"] for cell in study.cells_of("ablations", AMOUNT)}):
        yield _table_two(study, recipe, list(PUBLISHED).index(study.published))


def _protocol_differences(study: Study) -> Iterator[str]:
    """Where this study's protocol differs from the paper's."""
    if study.split != "random":
        yield OTHER_SPLIT
    if study.val_fraction != VAL_FRACTION:
        yield (
            f"The paper validated on {100 * VAL_FRACTION:g} % of each class and tested on the rest; this study "
            f"validated on {100 * study.val_fraction:g} %."
        )
    if study.test_pixels is not None:
        yield f"The paper tested on all other pixels; this study on {study.test_pixels:,} of them, drawn at random."


def _scores_under_protocol(cells: Iterable[Record]) -> dict[str, dict[str, list[SeedScores]]]:
    """Scores that are comparable with the paper's Table I, by recipe and score function."""
    results: dict[str, dict[str, list[SeedScores]]] = {}
    for cell in cells:
        if cell["part"] == "variants" and cell["amount"] == AMOUNT.record():
            scores = cell["scores"]
            of_recipe = results.setdefault(cell["recipe"], {})
            of_recipe.setdefault(cell["name"], []).append((scores["oa"], scores["aa"], scores["kappa"]))
    return results


# Table I


def _table_one(study: Study, recipe: str, compared: Sequence[TableCell]) -> Table:
    of_metric = {metric: [cell for cell in compared if cell.metric == metric] for metric in METRICS}
    most = max(cell.seeds for cell in compared)
    columns = []
    for cells in of_metric.values():
        ours = top_three([cell.ours if cell.seeds == most else None for cell in cells])
        theirs = top_three([cell.published for cell in cells])
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
        f"In percent, ours {over}, then the paper's and the difference. {MARKS} The paper prints "
        "no deviation, so differences cannot be tested.",
    )


def _our_score(cell: TableCell) -> str:
    return "" if cell.ours is None else share(cell.ours, cell.deviation)


def _papers_score(cell: TableCell) -> str:
    return f"{cell.published:.2f}" + ("" if cell.difference is None else f" ({points(cell.difference)})")


def _name(cell: TableCell, most: int) -> str:
    """Our name, the paper's, and the number of seeds if others have more."""
    fewer = f", {cell.seeds} of {most} seeds" if 0 < cell.seeds < most else ""
    return f"{cell.variant.replace('_', ' ')} ({cell.column}){fewer}"


def _summary_text(compared: Sequence[TableCell]) -> str:
    """How far ours is from the paper's overall accuracies, and which score function is best in each."""
    known = [cell for cell in compared if cell.metric == "oa" and cell.ours is not None]
    differences = [cell.difference for cell in known if cell.difference is not None]
    above = sum(round(value, 2) > 0 for value in differences)
    text = (
        f"Ours is above the paper's overall accuracy with {above} of {counted(len(known), 'score function')}; the "
        f"difference is {points(float(np.mean(differences)))} points on average, from {points(min(differences))} to "
        f"{points(max(differences))}."
    )
    known = [cell for cell in known if cell.seeds == max(cell.seeds for cell in known)]
    if len(known) < 2:
        return text
    ours, theirs = (max(known, key=lambda cell: getattr(cell, side)) for side in ("ours", "published"))
    first = f"{ours.variant.replace('_', ' ')} first"
    return f"{text} Of these, both have {first}." if ours is theirs else (
        f"{text} Of these, ours has {first}, the paper {theirs.variant.replace('_', ' ')}."
    )  # fmt: skip


# Table II


def _table_two(study: Study, recipe: str, scene: int) -> Table:
    """The paper's overall accuracies and ours; rows that were not run have only the paper's."""
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
        "Overall accuracy in percent, mean ± standard deviation over seeds, and the difference from the paper, "
        "which does not say how many runs its deviations are over.",
    )


def _row(label: str, ours: Method | None, printed: Spread, among: Sequence[Method]) -> Row:
    theirs = share(*printed)
    if ours is None:
        return Row(label, [Entry(""), Entry(theirs), Entry("")])
    difference = points(ours.mean - printed[0])
    return Row(label + unfinished(ours, among), [Entry(share(*ours.summary())), Entry(theirs), Entry(difference)])
