"""A study's results: methods with their scores over seeds, paired comparisons, and a summary."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperscene.model.attention import VARIANTS
from hyperscene.training.baselines import BASELINES
from hyperscene.training.study.folder import read_cells, read_study
from hyperscene.training.study.plan import (
    ABLATIONS,
    CHANGES,
    DEFAULT_RECIPE,
    DEFAULT_VARIANT,
    INGREDIENTS,
    PARTS,
    Amount,
)
from hyperscene.training.study.published import PUBLISHED
from hyperscene.training.study.statistics import METRICS, holm, paired_p, summarise

NOISE_P = 0.05  # a difference with a smaller corrected p is beyond noise
MIN_SEEDS = 3  # of a test: two differences may agree by chance

Record = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Method:
    """A row of a table: one way to classify, and its scores (Scores.record()) by seed."""

    label: str
    scores: Mapping[int, Record]
    cells: tuple[Record, ...] = ()
    is_baseline: bool = False
    is_label_propagation: bool = False  # the pseudo-labels that a network of ours learnt from

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(sorted(self.scores))

    def values(self, metric: str = "oa", seeds: Iterable[int] | None = None) -> list[float]:
        """A metric in percent, by seed."""
        return [100 * self.scores[seed][metric] for seed in (self.seeds if seeds is None else seeds)]

    def summary(self, metric: str = "oa") -> tuple[float, float | None]:
        """Mean and standard deviation in percent; one seed has no deviation."""
        values = self.values(metric)
        mean, sd = summarise(values)
        return mean, sd if len(values) > 1 else None

    @property
    def mean(self) -> float:
        return self.summary()[0]

    @property
    def pixel_points(self) -> float:
        """Points of overall accuracy of one test pixel, at least; 0 if unknown."""
        pixels = [scores.get("pixels", 0) for scores in self.scores.values()]
        return 100 / max(pixels) if all(pixels) else 0.0

    def restricted_to(self, seeds: Iterable[int]) -> Method:
        """The method over these seeds only."""
        kept = set(seeds)
        return replace(
            self,
            scores={seed: scores for seed, scores in self.scores.items() if seed in kept},
            cells=tuple(cell for cell in self.cells if cell["seed"] in kept),
        )


@dataclass(frozen=True, eq=False)
class Study:
    """A study as read from its folder or packed file."""

    path: Path
    name: str
    scene: Record
    split: str
    code_version: str
    cells: tuple[Record, ...]
    val_fraction: float
    test_pixels: int | None  # None: all pixels that neither train nor validate
    published: str | None  # which of the paper's scenes it is
    commands: tuple[str, ...]
    machines: tuple[Record, ...]

    @property
    def title(self) -> str:
        return f"{self.name}, {self.split} split"

    @cached_property
    def amounts(self) -> tuple[Amount, ...]:
        """The amounts, from few labels to many."""
        found = {Amount(**cell["amount"]) for cell in self.cells}
        return tuple(sorted(found, key=self.labels_of))

    @cached_property
    def recipes(self) -> tuple[str, ...]:
        """The recipes: the paper's first, the default last."""
        found = {cell["recipe"] for cell in self.cells if cell["part"] == "variants"}
        return tuple(sorted(found, key=recipe_order))

    def labels_of(self, amount: Amount) -> float:
        """The number of training pixels, mean over seeds."""
        return float(np.mean([cell["split"]["train"] for cell in self.cells if Amount(**cell["amount"]) == amount]))

    def cells_of(self, part: str, amount: Amount | None = None, recipe: str | None = None) -> list[Record]:
        """Cells of a part, by name and seed; `recipe` None means any."""
        return [
            cell
            for cell in self.cells
            if cell["part"] == part
            and (amount is None or Amount(**cell["amount"]) == amount)
            and (recipe is None or cell["recipe"] == recipe)
        ]

    def variants(self, amount: Amount, recipe: str) -> list[Method]:
        """The rows of Table I, in the paper's order."""
        return _methods(self.cells_of("variants", amount, recipe), VARIANTS)

    def baselines(self, amount: Amount) -> list[Method]:
        """The baselines as methods."""
        return _methods(self.cells_of("baselines", amount), BASELINES, is_baseline=True)

    def ours(self, amount: Amount) -> list[Method]:
        """The default network by each recipe: its label propagation, its patches, and its map."""
        found = []
        for recipe in self.recipes:
            cells = [cell for cell in self.cells_of("variants", amount, recipe) if cell["name"] == DEFAULT_VARIANT]
            propagated = tuple(cell for cell in cells if cell.get("label_propagation"))
            scores = {cell["seed"]: cell["label_propagation"] for cell in propagated}
            name = f"ours ({recipe}), label propagation alone"
            found.append(Method(name, scores, propagated, is_label_propagation=True))
            found.append(_method(f"ours ({recipe})", [cell for cell in cells if cell.get("judged_by") != "map"]))
            mapped = [cell for cell in cells if cell.get("mapped")]
            scores = {cell["seed"]: cell["mapped"]["scores"] for cell in mapped}
            found.append(Method(f"ours ({recipe}), map", scores, tuple(mapped)))
        return [method for method in found if method.scores]

    def changes(self, part: str, amount: Amount, recipe: str) -> dict[str, list[Method]]:
        """Ablations or ingredients by group, without the default network."""
        cells, order = self.cells_of(part, amount, recipe), CHANGES[part]
        groups: dict[str, list[Record]] = {}
        for cell in sorted(cells, key=lambda cell: position_in(cell["name"], order)):
            groups.setdefault(cell.get("group") or "Other", []).append(cell)
        return {group: _methods(found, order) for group, found in groups.items()}


def recipe_order(name: str) -> tuple[bool, bool, str]:
    """Sort key: the paper's recipe first, the default last."""
    return name == DEFAULT_RECIPE, name != "paper", name


def load_study(path: Path) -> Study:
    """Read a study with the cells that are finished."""
    described = read_study(path)
    published = described["published"]
    in_file = readable(described["scene"]["name"])
    return Study(
        path=path,
        name=described["title"] or (PUBLISHED[published].title if published else in_file),
        scene=described["scene"],
        split=described["split"],
        code_version=described["code_version"],
        cells=tuple(read_cells(path)),
        val_fraction=described["val_fraction"],
        test_pixels=described["test_pixels"],
        published=published,
        commands=tuple(described["commands"]),
        machines=tuple(described["machines"]),
    )


def readable(file_name: str) -> str:
    """A file name as a title: without its suffix, with blanks instead of underscores."""
    return " ".join(re.split(r"[_\s]+", Path(file_name).stem)).strip() or file_name


def _methods(cells: Sequence[Record], order: Iterable[str], is_baseline: bool = False) -> list[Method]:
    names = sorted({cell["name"] for cell in cells}, key=lambda name: position_in(name, order))
    return [_method(None, [cell for cell in cells if cell["name"] == name], is_baseline) for name in names]


def _method(label: str | None, cells: Sequence[Record], is_baseline: bool = False) -> Method:
    scores = {cell["seed"]: cell["scores"] for cell in cells}
    return Method(label or (cells[0]["label"] if cells else ""), scores, tuple(cells), is_baseline)


def seeds_of(methods: Iterable[Method]) -> set[int]:
    """Every seed that any of the methods has."""
    return {seed for method in methods for seed in method.seeds}


def with_common_seeds(methods: Sequence[Method]) -> list[Method]:
    """Restrict methods to common seeds, so that one with more seeds can be compared with the others.

    The seeds are those that leave the most comparable cells. A method that lacks some of them keeps those it has.
    """

    def cells_with(seeds: tuple[int, ...]) -> tuple[int, int]:
        return len(seeds) * sum(set(seeds) <= set(method.seeds) for method in methods), len(seeds)

    chosen = max((method.seeds for method in methods), key=cells_with, default=())
    return [cut for cut in (method.restricted_to(chosen) for method in methods) if cut.scores]


def complete(methods: Sequence[Method]) -> list[Method]:
    """The methods with the most seeds; means over fewer seeds are not ranked."""
    most = max((len(method.seeds) for method in methods), default=0)
    return [method for method in methods if len(method.seeds) == most]


@dataclass(frozen=True, eq=False)
class Comparison:
    """One method against another over the seeds that both have."""

    first: Method
    second: Method
    by_seed: tuple[float, ...]  # differences of overall accuracy in points; positive if the first is better
    p: float | None  # corrected for all comparisons made together; None without a test

    @property
    def difference(self) -> float:
        return float(np.mean(self.by_seed))

    @property
    def is_beyond_noise(self) -> bool:
        return self.p is not None and self.p < NOISE_P

    @property
    def reversed(self) -> Comparison:
        """The comparison with the two methods exchanged."""
        return Comparison(self.second, self.first, tuple(-value for value in self.by_seed), self.p)


def compare(pairs: Sequence[tuple[Method, Method]]) -> list[Comparison]:
    """Paired tests of overall accuracy, corrected together after Holm; pairs without a common seed are left out."""
    sides = []
    for first, second in pairs:
        seeds = sorted(set(first.seeds) & set(second.seeds))
        if seeds:
            sides.append((first, second, first.values(seeds=seeds), second.values(seeds=seeds)))
    tested = [
        paired_p(ours, theirs, first.pixel_points) if len(ours) >= MIN_SEEDS else None
        for first, _, ours, theirs in sides
    ]
    corrected = iter(holm([p for p in tested if p is not None]))
    return [
        Comparison(first, second, tuple(np.subtract(ours, theirs).tolist()), None if p is None else next(corrected))
        for (first, second, ours, theirs), p in zip(sides, tested, strict=True)
    ]


def compare_all(methods: Sequence[Method]) -> list[Comparison]:
    """Each method against each one with a lower mean."""
    ordered = sorted(methods, key=lambda method: -method.mean)
    return compare([(first, second) for index, first in enumerate(ordered) for second in ordered[index + 1 :]])


def compare_to(reference: Method, methods: Sequence[Method]) -> list[Comparison]:
    """One method against each of the others."""
    return compare([(reference, method) for method in methods])


def best(methods: Sequence[Method]) -> Method | None:
    """The method with the highest mean among those with all seeds."""
    return max(complete(methods), key=lambda method: method.mean, default=None)


def main_method(ours: Sequence[Method]) -> Method | None:
    """Our main method: the default recipe's map if all of its seeds have one, else its patches."""
    of_recipe = [method for method in ours if method.cells[0]["recipe"] == ours[-1].cells[0]["recipe"]]
    return complete(of_recipe)[-1] if of_recipe else None


def compare_main_method(study: Study, amount: Amount) -> list[Comparison]:
    """Our main method against our other methods and the baselines.

    Label propagation is tested separately, so that it does not make the correction of the other tests stricter.
    """
    ours, baselines = study.ours(amount), study.baselines(amount)
    chosen = main_method(ours)
    if chosen is None:
        return []
    others = [one for one in (*ours, *baselines) if one is not chosen]
    propagations = [one for one in others if one.is_label_propagation]
    others = [one for one in others if not one.is_label_propagation]
    return [*compare_to(chosen, propagations), *compare_to(chosen, others)]


def seconds_of(cells: Iterable[Record]) -> float:
    """Computing time of the cells in total."""
    return float(sum(sum((cell.get("seconds") or {}).values()) for cell in cells))


def class_shares(method: Method) -> list[tuple[float, float | None] | None]:
    """Mean and deviation of each class's accuracy in percent; None for a class without test pixels."""
    shares = []
    for rows in zip(*(method.scores[seed]["per_class"] for seed in method.seeds), strict=True):
        values = [100 * row["accuracy"] for row in rows if row["accuracy"] is not None]
        mean, sd = summarise(values) if values else (0.0, 0.0)
        shares.append((mean, sd if len(values) > 1 else None) if values else None)
    return shares


def confusion_of(cells: Sequence[Record]) -> NDArray[np.int64]:
    """Sum of the confusion matrices, truth in rows."""
    return np.sum([cell["confusion"] for cell in cells], axis=0, dtype=np.int64)


def summarise_study(path: Path) -> list[dict[str, Any]]:
    """One row for all seeds of a cell: mean and standard deviation of its scores and of those of its map."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for cell in read_cells(path):
        groups.setdefault(_row_key(cell), []).append(cell)
    rows = []
    for _, cells in sorted(groups.items()):
        maps = [cell["mapped"]["scores"] for cell in cells if cell["mapped"]]
        row = {name: cells[0][name] for name in ("part", "name", "label", "group", "recipe", "amount")}
        row |= {
            "seeds": sorted(cell["seed"] for cell in cells),
            "scores": _mean_scores([cell["scores"] for cell in cells]),
            "mapped": _mean_scores(maps) if maps else None,
        }
        rows.append(row)
    return rows


def _row_key(cell: dict[str, Any]) -> tuple[Any, ...]:
    """What the seeds of a row have in common; sorts like the tables."""
    amount = Amount(**cell["amount"])
    labels = (amount.fraction or 0.0, amount.per_class or 0, amount.train_pixels or 0)
    names = (*VARIANTS, *BASELINES, *ABLATIONS, *INGREDIENTS)
    return position_in(cell["part"], PARTS), labels, cell["recipe"] or "", position_in(cell["name"], names)


def position_in(name: str, order: Iterable[str]) -> tuple[int, str]:
    """Sort key of a name in an order; unknown names come last."""
    known = list(order)
    return (known.index(name) if name in known else len(known), name)


def _mean_scores(scores: list[dict[str, Any]]) -> dict[str, dict[str, float | None]]:
    """Mean and deviation by metric; one seed has no deviation."""
    found: dict[str, dict[str, float | None]] = {}
    for metric in METRICS:
        mean, deviation = summarise([each[metric] for each in scores])
        found[metric] = {"mean": round(mean, 6), "sd": round(deviation, 6) if len(scores) > 1 else None}
    return found
