"""From answers to an accuracy report: which estimator fits the sample, and what its reader has to know."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperscene.errors import SampleUnusable
from hyperscene.service.assessment.estimation import Assessment, CheckedPoints, ClassEstimate, Estimate, estimate
from hyperscene.service.assessment.finished_map import FinishedMap, Totals
from hyperscene.service.assessment.samples import Answers, Design

LEAST_POINTS = 2  # of a stratum: fewer have no variance
ESTIMATORS = {
    "stratified": "The sample was stratified by the classes of this map: stratified estimators of Olofsson et al. "
    "(2014).",
    "other strata": "The sample was stratified by another map, so points of one class of this map have different "
    "weights: the estimators of Stehman (2014) weight each point by its own stratum. They are as unbiased as those of "
    "a sample of this map; the intervals are usually wider.",
    "poststratified": "The sample was not drawn from this map: points are weighted afterwards, so that each class of "
    "the map counts with its area (poststratified estimator, Card 1982; Olofsson et al. 2014). The number of points "
    "per class is then left to chance, so rare classes have few, and the intervals only hold if every place had the "
    "same chance to be in the sample: plots beside roads, or chosen by hand, may be biased by more than they say.",
}


@dataclass(frozen=True)
class AccuracyReport:
    """All figures of a checked sample, and how they came about."""

    finished: FinishedMap
    estimator: str
    totals: Totals  # of the map, or of what the sample was drawn from
    assessment: Assessment
    points: int
    cannot_tell: int
    unanswered: int
    notes: tuple[str, ...]
    agreement: dict[str, Any] | None = None

    def hectares(self, entry: ClassEstimate) -> Estimate | None:
        """The area of a class; None without a position on Earth."""
        if self.totals.hectares is None:
            return None
        return entry.area_share.scaled(float(self.totals.hectares.sum()))

    def record(self) -> dict[str, Any]:
        """The JSON document."""
        found = self.assessment
        return {
            "map": {"name": self.finished.name, "classes_sha256": self.finished.sha256},
            "estimator": {"name": self.estimator, "explanation": ESTIMATORS[self.estimator]},
            "points": {"used": self.points, "cannot_tell": self.cannot_tell, "unanswered": self.unanswered},
            "confidence_level": 0.95,
            "overall_accuracy": found.overall_accuracy.record(),
            "classes": [self._class_record(number, entry) for number, entry in enumerate(found.classes)],
            "error_matrix": found.matrix.tolist(),
            "error_matrix_shares": np.round(found.shares, 8).tolist(),
            "agreement": self.agreement,
            "notes": list(self.notes),
            "version": version("hyperscene"),
        }

    def _class_record(self, number: int, entry: ClassEstimate) -> dict[str, Any]:
        area = self.hectares(entry)
        return {
            "value": number + 1,
            "name": self.finished.class_names[number],
            "color": self.finished.class_colors[number],
            "mapped": self.totals.record()[number],
            "mapped_points": entry.mapped_points,
            "reference_points": entry.reference_points,
            "users_accuracy": entry.users_accuracy.record(),
            "producers_accuracy": entry.producers_accuracy.record(),
            "area_share": entry.area_share.record(8),
            "area_hectares": None if area is None else area.record(4),
            "remarks": list(entry.remarks),
        }

    def csv_text(self) -> str:
        """One line for each class, then the overall accuracy."""
        parts = ("users_accuracy", "producers_accuracy", "area_share", "area_hectares")
        columns = [f"{part}{suffix}" for part in parts for suffix in ("", "_se", "_low", "_high")]
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerow(["class", "mapped_pixels", "mapped_hectares", "mapped_points", "reference_points", *columns,
                        "remarks"])  # fmt: skip
        document = self.record()
        for entry in document["classes"]:
            figures = [value for part in parts for value in _figures(entry[part])]
            mapped = entry["mapped"]
            table.writerow([entry["name"], mapped["pixels"], mapped["hectares"], entry["mapped_points"],
                            entry["reference_points"], *figures, "; ".join(entry["remarks"])])  # fmt: skip
        table.writerow(["overall accuracy", "", "", "", "", *_figures(document["overall_accuracy"])])
        return text.getvalue()


def _figures(record: dict[str, Any] | None) -> list[Any]:
    return [None] * 4 if record is None else [record[name] for name in ("value", "standard_error", "low", "high")]


def assess(
    finished: FinishedMap, answers: Answers, design: Design | None, *, accepts_other_map: bool = False
) -> AccuracyReport:
    """The report of one interpreter's answers; raises SampleUnusable."""
    usable = replace(answers, pixels=answers.pixels[answers.classes > 0], classes=answers.classes[answers.classes > 0])
    if not len(usable.classes):
        raise SampleUnusable(f"{answers.name} has no class in any answer: fill in the class of the points")
    mapped = finished.classes_at(usable.pixels)
    if design is None:
        estimator, totals, strata, names = "poststratified", finished.totals(), mapped - 1, finished.class_names
    else:
        is_same = design.map_sha256 == finished.sha256
        if not is_same and not accepts_other_map:
            raise SampleUnusable(
                f"the sample was drawn from another map, {design.map_name} with the checksum "
                f"{design.map_sha256[:12]}, not from this one ({finished.sha256[:12]}): give that map, or accept it as "
                "a sample with other strata (--other-map)"
            )
        estimator = "stratified" if is_same else "other strata"
        totals, strata, names = design_totals(design), _designed_strata(usable, design), design.class_names
    found, merged = assess_points(strata, mapped, usable.classes, totals, len(finished.class_names))
    return AccuracyReport(
        finished=finished,
        estimator=estimator,
        totals=totals if estimator != "other strata" else finished.totals(),
        assessment=found,
        points=len(mapped),
        cannot_tell=answers.cannot_tell,
        unanswered=answers.unanswered,
        notes=tuple(_notes(answers, design, [names[number] for number in merged])),
    )


def assess_points(
    strata: NDArray[np.int64],
    mapped: NDArray[np.int64],
    reference: NDArray[np.int64],
    totals: Totals,
    classes: int,
) -> tuple[Assessment, list[int]]:
    """The estimates of points whose strata have these totals; returns also the strata that were joined."""
    strata, weights, pixels, merged = _merge_small(strata, totals.weights, totals.pixels)
    return estimate(CheckedPoints(strata, mapped, reference, weights, pixels, classes)), merged


def design_totals(design: Design) -> Totals:
    """What a sample was drawn from."""
    hectares = None if design.stratum_hectares is None else np.array(design.stratum_hectares)
    return Totals(np.array(design.stratum_pixels, np.int64), hectares, 0)


def _designed_strata(answers: Answers, design: Design) -> NDArray[np.int64]:
    """The stratum of each point, from the design."""
    known = {(row, col): value - 1 for row, col, value in design.points.tolist()}
    strata = [known.get((row, col)) for row, col in answers.pixels.tolist()]
    unknown = [pixel for pixel, stratum in zip(answers.pixels.tolist(), strata, strict=True) if stratum is None]
    if unknown:
        row, col = unknown[0]
        raise SampleUnusable(
            f"points of {answers.name} that are not in the sample's design: {len(unknown)}, the first at row {row}, "
            f"column {col}; do not move or add points, or give other points without a design"
        )
    return np.array(strata, np.int64)


def _merge_small(
    strata: NDArray[np.int64], weights: NDArray[np.float64], pixels: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64], list[int]]:
    """Strata with two points each: smaller ones join the next larger stratum. Returns also which ones joined."""
    if len(strata) < LEAST_POINTS:
        raise SampleUnusable(f"{len(strata)} points are too few for an interval: check {LEAST_POINTS} or more")
    joined = np.arange(len(weights))
    counts = np.bincount(strata, minlength=len(weights))
    merged = []
    for number in np.argsort(counts, kind="stable"):
        if counts[number] >= LEAST_POINTS or pixels[number] == 0:
            continue
        others = [other for other in np.argsort(weights, kind="stable")
                  if other != number and joined[other] == other and (counts[other] or counts[number])
                  and pixels[other]]  # fmt: skip
        if not others:
            continue
        larger = [other for other in others if weights[other] >= weights[number]]
        target = (larger or others[-1:])[0]
        joined[joined == number] = target
        counts[target] += counts[number]
        weights, pixels = weights.copy(), pixels.copy()
        weights[target] += weights[number]
        pixels[target] += pixels[number]
        counts[number], weights[number], pixels[number] = 0, 0, 0
        merged.append(int(number))
    kept = np.flatnonzero(pixels > 0)
    places = np.full(len(weights), -1)
    places[kept] = np.arange(len(kept))
    return places[joined[strata]], weights[kept], pixels[kept], merged


def _notes(answers: Answers, design: Design | None, merged: list[str]) -> list[str]:
    notes = []
    if merged:
        notes.append(
            f"fewer than {LEAST_POINTS} answers lie in {', '.join(merged)}: for the estimates each was joined with the "
            "next larger class of the map, so what is said about it is uncertain"
        )
    if answers.cannot_tell:
        notes.append(
            f"{answers.cannot_tell} points were answered with 'cannot tell' and left out, as if they were like the "
            "other points of their class; if they are harder places, the true accuracy is lower"
        )
    if answers.unanswered:
        notes.append(f"{answers.unanswered} points have no answer yet and were left out")
    if design is not None and design.left_out_pixels:
        notes.append(
            f"{design.left_out_pixels} pixels within {design.buffer_px} pixels of training labels were not sampled: "
            "all figures are about the remaining area"
        )
    return notes


def agreement(first: Answers, second: Answers, classes: int) -> dict[str, Any]:
    """How often two interpreters agree on the points that both answered with a class; Cohen's kappa."""
    other = second.by_pixel()
    found = [(value, other.get(pixel, 0)) for pixel, value in first.by_pixel().items()]
    pairs = np.array([pair for pair in found if all(pair)], np.int64).reshape(-1, 2)
    if not len(pairs):
        raise SampleUnusable(f"{first.name} and {second.name} have no point in common: give two answers to one sample")
    table = np.zeros((classes, classes), np.int64)
    np.add.at(table, tuple((pairs - 1).T), 1)
    same = float(np.trace(table) / len(pairs))
    chance = float((table.sum(axis=0) * table.sum(axis=1)).sum() / len(pairs) ** 2)
    return {
        "first": first.name,
        "second": second.name,
        "points": len(pairs),
        "share": round(same, 6),
        "kappa": round((same - chance) / (1 - chance), 6) if chance < 1 else None,
    }
