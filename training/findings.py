"""What a study's files say: methods with their scores over seeds, compared in pairs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.attention import VARIANTS
from training.folder import read_study
from training.plan import BASELINES, CHANGES, DEFAULT_RECIPE, DEFAULT_VARIANT, Amount
from training.published import PUBLISHED
from training.statistics import holm, paired_p, summarise
from training.summary import read_cells, standing

NOISE_P = 0.05  # a difference is beyond noise where its corrected p lies below
FEWEST_SEEDS = 3  # of a test: two differences that happen to be alike look like certainty

Record = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Method:
    """A row of a table: one way to classify, and its scores (Scores.record()) by seed."""

    label: str
    scores: Mapping[int, Record]
    cells: tuple[Record, ...] = ()
    is_baseline: bool = False
    is_teacher: bool = False  # what a network of ours learnt from, alone

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(sorted(self.scores))

    def values(self, metric: str = "oa", seeds: Iterable[int] | None = None) -> list[float]:
        """In percent, seed by seed."""
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
    def step(self) -> float:
        """Points of overall accuracy that one test pixel stands for, at the least; 0 where that is not known."""
        pixels = [scores.get("pixels", 0) for scores in self.scores.values()]
        return 100 / max(pixels) if all(pixels) else 0.0

    def cut(self, seeds: Iterable[int]) -> Method:
        """The same over no other seeds than these."""
        kept = set(seeds)
        return replace(
            self,
            scores={seed: scores for seed, scores in self.scores.items() if seed in kept},
            cells=tuple(cell for cell in self.cells if cell["seed"] in kept),
        )


@dataclass(frozen=True, eq=False)
class Study:
    """A study's folder, read."""

    directory: Path
    name: str
    scene: Record
    split: str
    code_version: str
    cells: tuple[Record, ...]
    val_fraction: float = 0.01
    test_pixels: int | None = None  # None: all that neither train nor validate
    published: str | None = None  # which of the paper's scenes it is
    commands: tuple[str, ...] = ()
    machines: tuple[Record, ...] = ()

    @property
    def title(self) -> str:
        return f"{self.name}, {self.split} split"

    @cached_property
    def amounts(self) -> tuple[Amount, ...]:
        """From few labels to many."""
        found = {Amount(**cell["amount"]) for cell in self.cells}
        return tuple(sorted(found, key=self.labels_of))

    @cached_property
    def recipes(self) -> tuple[str, ...]:
        """The paper's first, the default one last."""
        found = {cell["recipe"] for cell in self.cells if cell["part"] == "variants"}
        return tuple(sorted(found, key=recipe_place))

    def labels_of(self, amount: Amount) -> float:
        """How many pixels train, on average over seeds."""
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
        """What people use today."""
        return _methods(self.cells_of("baselines", amount), BASELINES, is_baseline=True)

    def ours(self, amount: Amount) -> list[Method]:
        """The default network by each recipe: what taught it, pixel by pixel, and by the map that is delivered."""
        found = []
        for recipe in self.recipes:
            cells = [cell for cell in self.cells_of("variants", amount, recipe) if cell["name"] == DEFAULT_VARIANT]
            taught = [cell for cell in cells if cell.get("teacher")]
            teacher = {cell["seed"]: cell["teacher"] for cell in taught}
            found.append(Method(f"ours ({recipe}), teacher alone", teacher, tuple(taught), is_teacher=True))
            found.append(_method(f"ours ({recipe})", [cell for cell in cells if cell.get("judged_by") != "map"]))
            mapped = [cell for cell in cells if cell.get("mapped")]
            scores = {cell["seed"]: cell["mapped"]["scores"] for cell in mapped}
            found.append(Method(f"ours ({recipe}), map", scores, tuple(mapped)))
        return [method for method in found if method.scores]

    def changes(self, part: str, amount: Amount, recipe: str) -> dict[str, list[Method]]:
        """Ablations or ingredients by group, without the default network."""
        cells, order = self.cells_of(part, amount, recipe), CHANGES[part]
        groups: dict[str, list[Record]] = {}
        for cell in sorted(cells, key=lambda cell: standing(cell["name"], order)):
            groups.setdefault(cell.get("group") or "Other", []).append(cell)
        return {group: _methods(found, order) for group, found in groups.items()}


def recipe_place(name: str) -> tuple[bool, bool, str]:
    """The paper's recipe comes first, the default one last."""
    return name == DEFAULT_RECIPE, name != "paper", name


def load_study(directory: Path) -> Study:
    """Read what is there of a study; cells that are not finished are not there."""
    described = read_study(directory)
    published = described.get("published")
    in_file = readable(described["scene"]["name"])
    return Study(
        directory=directory,
        name=described.get("title") or (PUBLISHED[published].title if published else in_file),
        scene=described["scene"],
        split=described["split"],
        code_version=described.get("code_version", ""),
        cells=tuple(read_cells(directory)),
        val_fraction=described.get("val_fraction", 0.01),
        test_pixels=described.get("test_pixels"),
        published=published,
        commands=tuple(described.get("commands") or ()),
        machines=tuple(described.get("machines") or ()),
    )


def readable(file_name: str) -> str:
    """A file's name as a title: without its ending, with blanks for what stands in their place."""
    return " ".join(re.split(r"[_\s]+", Path(file_name).stem)).strip() or file_name


def _methods(cells: Sequence[Record], order: Iterable[str], is_baseline: bool = False) -> list[Method]:
    names = sorted({cell["name"] for cell in cells}, key=lambda name: standing(name, order))
    return [_method(None, [cell for cell in cells if cell["name"] == name], is_baseline) for name in names]


def _method(label: str | None, cells: Sequence[Record], is_baseline: bool = False) -> Method:
    scores = {cell["seed"]: cell["scores"] for cell in cells}
    return Method(label or (cells[0]["label"] if cells else ""), scores, tuple(cells), is_baseline)


def seeds_of(methods: Iterable[Method]) -> set[int]:
    """Every seed that any of the methods has."""
    return {seed for method in methods for seed in method.seeds}


def even(methods: Sequence[Method]) -> list[Method]:
    """Methods over the same seeds: those that give the most cells that can be compared.

    Where some are ahead by a seed, the rest would be no rivals to them otherwise. One that lacks some of the seeds
    keeps those it has.
    """

    def cells_with(seeds: tuple[int, ...]) -> tuple[int, int]:
        return len(seeds) * sum(set(seeds) <= set(method.seeds) for method in methods), len(seeds)

    chosen = max((method.seeds for method in methods), key=cells_with, default=())
    return [cut for cut in (method.cut(chosen) for method in methods) if cut.scores]


def complete(methods: Sequence[Method]) -> list[Method]:
    """Those with as many seeds as any has: means over fewer seeds are no rivals yet."""
    most = max((len(method.seeds) for method in methods), default=0)
    return [method for method in methods if len(method.seeds) == most]


@dataclass(frozen=True, eq=False)
class Comparison:
    """One method against another over the seeds that both have."""

    first: Method
    second: Method
    by_seed: tuple[float, ...]  # differences of overall accuracies in points; above 0 where the first is better
    p: float | None  # corrected for all comparisons made at once; None where no test can be made

    @property
    def difference(self) -> float:
        return float(np.mean(self.by_seed))

    @property
    def is_beyond_noise(self) -> bool:
        return self.p is not None and self.p < NOISE_P

    @property
    def turned(self) -> Comparison:
        """The same, seen from the other side."""
        return Comparison(self.second, self.first, tuple(-value for value in self.by_seed), self.p)


def compare(pairs: Sequence[tuple[Method, Method]]) -> list[Comparison]:
    """Paired tests of overall accuracy, corrected together after Holm; pairs without a common seed are left out."""
    sides = []
    for first, second in pairs:
        seeds = sorted(set(first.seeds) & set(second.seeds))
        if seeds:
            sides.append((first, second, first.values(seeds=seeds), second.values(seeds=seeds)))
    tested = [
        paired_p(ours, theirs, first.step) if len(ours) >= FEWEST_SEEDS else None for first, _, ours, theirs in sides
    ]
    corrected = iter(holm([p for p in tested if p is not None]))
    return [
        Comparison(first, second, tuple(np.subtract(ours, theirs).tolist()), None if p is None else next(corrected))
        for (first, second, ours, theirs), p in zip(sides, tested, strict=True)
    ]


def compare_all(methods: Sequence[Method]) -> list[Comparison]:
    """Every method against every one that is worse by its mean."""
    ordered = sorted(methods, key=lambda method: -method.mean)
    return compare([(first, second) for place, first in enumerate(ordered) for second in ordered[place + 1 :]])


def compare_with(reference: Method, methods: Sequence[Method]) -> list[Comparison]:
    """One method against each of the others."""
    return compare([(reference, method) for method in methods])


def best(methods: Sequence[Method]) -> Method | None:
    """The highest mean among those with all seeds."""
    return max(complete(methods), key=lambda method: method.mean, default=None)


def headline(ours: Sequence[Method]) -> Method | None:
    """What we stand for: the default recipe's map where it was made with all of its seeds, else its pixels."""
    of_recipe = [method for method in ours if method.cells[0]["recipe"] == ours[-1].cells[0]["recipe"]]
    return complete(of_recipe)[-1] if of_recipe else None


def compare_headline(study: Study, amount: Amount) -> list[Comparison]:
    """What we stand for against everything beside it: our other ways, and the baselines.

    Its teacher is tested apart: it is no rival, and must not make the tests of others stricter.
    """
    ours, baselines = study.ours(amount), study.baselines(amount)
    chosen = headline(ours)
    if chosen is None:
        return []
    others = [one for one in (*ours, *baselines) if one is not chosen]
    teachers = [one for one in others if one.is_teacher]
    rivals = [one for one in others if not one.is_teacher]
    return [*compare_with(chosen, teachers), *compare_with(chosen, rivals)]


def seconds_of(cells: Iterable[Record]) -> float:
    """Computing time of cells, all in all."""
    return float(sum(sum((cell.get("seconds") or {}).values()) for cell in cells))


def class_shares(method: Method) -> list[tuple[float, float | None] | None]:
    """Mean and deviation over seeds of each class's accuracy in percent; None where no seed had a pixel of it."""
    shares = []
    for rows in zip(*(method.scores[seed]["per_class"] for seed in method.seeds), strict=True):
        values = [100 * row["accuracy"] for row in rows if row["accuracy"] is not None]
        mean, sd = summarise(values) if values else (0.0, 0.0)
        shares.append((mean, sd if len(values) > 1 else None) if values else None)
    return shares


def confusion_of(cells: Sequence[Record]) -> NDArray[np.int64]:
    """All seeds together, truth in rows."""
    return np.sum([cell["confusion"] for cell in cells], axis=0, dtype=np.int64)
