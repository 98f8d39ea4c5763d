"""Folders of synthetic studies with plausible cells and arrays, for tests of the report.

python -m tests.studies DIR writes a large one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hyperscene.model.attention import VARIANTS
from hyperscene.training.baselines import BASELINES
from hyperscene.training.data.classes import distinct_color
from hyperscene.training.evaluate import score
from hyperscene.training.study import tables
from hyperscene.training.study.folder import FORMAT, encode_arrays
from hyperscene.training.study.pages import Block, Paragraph, Table
from hyperscene.training.study.plan import ABLATIONS, DEFAULT_VARIANT, Amount, Cell
from hyperscene.training.study.results import Study, load_study

SIXTEEN = (
    "Alfalfa", "Corn-notill", "Corn-mintill", "Corn", "Grass-pasture", "Grass-trees", "Grass-pasture-mowed",
    "Hay-windrowed", "Oats", "Soybean-notill", "Soybean-mintill", "Soybean-clean", "Wheat", "Woods",
    "Buildings-Grass-Trees-Drives", "Stone-Steel-Towers",
)  # fmt: skip
# By how many points of error a method differs from cosine squared with the paper's recipe.
OFFSETS = {
    "cosine": 0.3, "scaled_dot_product": 0.9, "dot_product": 3.5, "additive": -0.2, "self_attention": 0.4,
    "mixed_cosine_squared": -0.4, "cross_scaled_dot_product": 1.6, "cross_cosine_squared": 1.2, "cross_cosine": 1.4,
    "cross_additive": 5.0, "logistic_regression": 9.0, "tuned_regression": 8.5, "random_forest": 14.0, "svm": 7.0,
    "tuned_svm": 6.0, "shrinkage_lda": 7.5, "cnn_3d": 4.0,
    "normalise_none": 1.6, "patch_8": 2.5, "noise_30": 0.4, "noise_20": 3.0, "noise_10": 12.0, "depth_2": 0.8,
}  # fmt: skip
SCORED_PIXELS = 4000


class SyntheticStudy:
    """Writes cells whose scores depend on their names."""

    def __init__(
        self,
        directory: Path,
        name: str = "Indian_pines.mat",
        split: str = "random",
        classes: Sequence[str] = SIXTEEN,
        shape: tuple[int, int] = (60, 64),
        error: float = 14.0,
        **more: Any,
    ) -> None:
        self.directory = directory
        self.split = split
        self.names = tuple(classes)
        self.error = error
        self.truth = fields(shape, len(classes))
        counts = np.bincount(self.truth.ravel(), minlength=len(classes) + 1)[1:]
        self.pixels = np.maximum(counts, 4)
        (directory / "cells").mkdir(parents=True)
        scene = {
            "name": name, "labels": "labels.mat", "rows": shape[0], "cols": shape[1], "bands": 200, "digest": "0" * 64,
            "class_names": list(classes), "class_colors": [distinct_color(index) for index in range(len(classes))],
            "class_pixels": self.pixels.tolist(),
        }  # fmt: skip
        study = {
            "format": FORMAT, "scene": scene, "split": split, "val_fraction": 0.01, "test_pixels": None,
            "published": None, "code_version": "0.1.0", "commands": [], "machines": [], "title": None,
        }  # fmt: skip
        self._write(directory / "study.json", study | more)

    def _write(self, path: Path, document: dict[str, Any]) -> None:
        path.write_text(json.dumps(document), encoding="utf-8")

    def labels_of(self, amount: Amount) -> int:
        return amount.train_pixels or max(len(self.names), round((amount.fraction or 0) * int(self.pixels.sum())))

    def add(
        self,
        cell: Cell,
        error: float | None = None,
        judged_by: str | None = None,
        propagation_error: float | None = None,
    ) -> dict[str, Any]:
        """A finished cell; `error` in percent, else what its name, recipe and amount make likely.

        `judged_by` is None in older cells; `propagation_error` is that of label propagation, in percent.
        """
        generator = np.random.default_rng([sum(map(ord, cell.id)), cell.seed])
        of_split = np.random.default_rng([cell.seed, self.labels_of(cell.amount)]).normal(0, 0.7)
        if error is None:
            fewer = (100 / self.labels_of(cell.amount)) ** 0.35
            strong = 5.0 if cell.recipe == "strong" else 0.0
            error = (self.error - strong + OFFSETS.get(cell.name, 0.0)) * fewer
            error += of_split + generator.normal(0, 0.5)
        record = self._record(cell, max(error, 0.2), generator)
        record["judged_by"] = judged_by
        record["label_propagation"] = (
            None if propagation_error is None else self._scores(propagation_error, generator)[1]
        )
        self._write(self.directory / "cells" / f"{cell.id}.json", record)
        return record

    def add_with_accuracy(self, cell: Cell, error: float) -> None:
        """A finished cell whose every accuracy is 100 minus the error."""
        record = self.add(cell)
        record["scores"] |= {"oa": 1 - error / 100, "aa": 1 - error / 100, "kappa": 1 - error / 100}
        self._write(self.directory / "cells" / f"{cell.id}.json", record)

    def _record(self, cell: Cell, error: float, generator: np.random.Generator) -> dict[str, Any]:
        is_ours = cell.name == DEFAULT_VARIANT
        confusion, scores = self._scores(error, generator)
        labels = self.labels_of(cell.amount)
        test = int(self.pixels.sum()) - 2 * labels
        mapped = {"stride": 4, "blend": "angle", "scores": self._scores(error * 0.75, generator)[1]}
        calibration = {"ece_before": 0.061 + error / 900, "ece_after": 0.012 + error / 2000, "temperature": 0.71}
        is_network = cell.part != "baselines"
        return {
            "id": cell.id, "part": cell.part, "name": cell.name, "label": cell.label, "group": cell.group,
            "recipe": cell.recipe, "amount": cell.amount.record(), "seed": cell.seed,
            "split": {"name": self.split, "train": labels, "validation": labels, "test": test},
            "scores": scores, "confusion": confusion,
            "mapped": mapped if is_ours else None,
            "calibration": calibration if is_network else None,
            "chosen": self._chosen(cell, generator) if cell.recipe == "strong" else None,
            "weights": 162_000 if is_network else None,
            "seconds": {"fit": round(float(generator.uniform(60, 90)), 3) if is_network else 0.8, "predict": 4.0},
            "code_version": "0.1.0",
        }  # fmt: skip

    def _chosen(self, cell: Cell, generator: np.random.Generator) -> dict[str, float | str]:
        """Settings as label propagation records them."""
        accuracy = 0.75 + 0.0004 * self.labels_of(cell.amount) + float(generator.normal(0, 0.01))
        return {
            "fidelity_weight": (0.1, "spectra alone", 0.1)[cell.seed % 3],
            **({"smoothed": True} if cell.seed % 3 == 2 else {}),
            "held_out_accuracy": round(accuracy, 4),
            "held_out_accuracy_of_spectra_alone": round(accuracy - 0.03, 4),
            "held_out_distance_px": round(float(generator.uniform(8, 11)), 1),
            "target_distance_px": 41.0,
        }

    def _scores(self, error: float, generator: np.random.Generator) -> tuple[list[list[int]], dict[str, Any]]:
        """A confusion in which rare classes are harder and each class has a favourite to be taken for."""
        classes = len(self.names)
        share = self.pixels / self.pixels.sum()
        truth = generator.choice(classes, SCORED_PIXELS, p=share)
        hardness = np.clip(error / 100 * (share.mean() / share) ** 0.4 * np.linspace(0.5, 1.5, classes), 0, 0.9)
        hardness *= error / 100 / (hardness * share).sum()
        wrong = generator.random(SCORED_PIXELS) < hardness[truth]
        favourite = (truth + generator.choice([1, 1, 1, 2, 5], SCORED_PIXELS)) % classes
        found = np.where(wrong, favourite, truth)
        confusion = np.zeros((classes, classes), int)
        np.add.at(confusion, (truth, found), 1)
        return confusion.tolist(), score(truth + 1, found + 1, self.names).record()

    def add_table_one(
        self, amounts: Sequence[Amount], recipes: Sequence[str], seeds: int, variants: Sequence[str] = tuple(VARIANTS)
    ) -> None:
        """Score functions and baselines."""
        for amount in amounts:
            for seed in range(seeds):
                for name in BASELINES:
                    self.add(Cell("baselines", name, None, amount, seed))
                for recipe in recipes:
                    for name in variants:
                        self.add(Cell("variants", name, recipe, amount, seed))

    def add_table_two(self, amount: Amount, recipe: str, seeds: int) -> None:
        """Ablations."""
        for seed in range(seeds):
            for name in ABLATIONS:
                self.add(Cell("ablations", name, recipe, amount, seed))

    def add_inspection(self, amount: Amount, recipe: str = "strong", points: int = 1500) -> None:
        """Add the cell with the arrays of the figures."""
        cell = Cell("inspection", DEFAULT_VARIANT, recipe, amount, 0)
        record = self.add(cell) | {"arrays": encode_arrays(self._arrays(amount, points))}
        record["speed"] = [
            {"stride": stride, "blend": blend, "oa": 0.9 + gain - stride * 0.004, "seconds": 95 / stride**1.9,
             "patches": self.truth.size // stride**2}
            for blend, gain, strides in (("none", 0, (1,)), ("linear", 0.006, (2, 4, 8)), ("angle", 0.021, (2, 4, 8)))
            for stride in strides
        ]  # fmt: skip
        middles = (np.arange(15) + 0.5) / 15
        counts = np.round(4000 * middles**4).astype(int)
        record["reliability"] = {
            "before": [[m, min(1.0, m**0.6), int(n)] for m, n in zip(middles, counts[::1], strict=True)],
            "after": [
                [m, min(1.0, m**0.95), int(n)] for m, n in zip(middles, np.roll(counts, 0) * middles**2, strict=True)
            ],
        }
        self._write(self.directory / "cells" / f"{cell.id}.json", record)

    def _arrays(self, amount: Amount, points: int) -> dict[str, np.ndarray]:
        generator = np.random.default_rng(0)
        truth, classes = self.truth, len(self.names)
        rows, cols = truth.shape
        labelled = np.argwhere(truth > 0)
        order = generator.permutation(len(labelled))
        labels = min(self.labels_of(amount), len(labelled) // 3)
        split = np.where(truth > 0, 3, 0).astype(np.uint8)
        split[tuple(labelled[order[:labels]].T)] = 1
        split[tuple(labelled[order[labels : 2 * labels]].T)] = 2
        found = nearest_fields(truth)
        blots = generator.random((rows // 6 + 1, cols // 6 + 1)) < 0.1
        wrong = np.kron(blots, np.ones((6, 6), bool))[:rows, :cols] & (generator.random(truth.shape) < 0.8)
        found = np.where(wrong, found % classes + 1, found).astype(np.uint16)
        light = 0.5 + 0.3 * np.random.default_rng(5).random(classes + 1)
        rgb = np.stack([255 * np.roll(light, k)[found] * generator.uniform(0.85, 1, truth.shape) for k in range(3)], -1)
        feature_classes = generator.choice(np.arange(1, classes + 1), points)
        middles = generator.normal(0, 22, (classes + 1, 2))
        centres = labelled[generator.choice(len(labelled), 5, replace=False)]
        patches = np.stack(
            [np.pad(rgb, ((8, 8), (8, 8), (0, 0)), "reflect")[r : r + 16, c : c + 16] for r, c in centres]
        )
        alike = np.abs(patches - patches[:, 8:9, 8:9]).sum(-1)[:, None, None]  # (m, 1, 1, patch, patch)
        sharpness = np.linspace(0.001, 0.02, 16).reshape(1, 4, 4, 1, 1)
        weights = np.exp(-alike * sharpness)
        return {
            "truth": truth, "split": split, "classes": found, "rgb": rgb.astype(np.uint8),
            "confidence": (np.where(wrong, 0.55, 0.93) - generator.random(truth.shape) / 9).astype(np.float32),
            "feature_classes": feature_classes,
            "embedding": middles[feature_classes] + generator.normal(0, 3.5, (points, 2)),
            "attention_pixels": centres, "attention_patches": patches.astype(np.uint8),
            "attention": (weights / weights.sum((-2, -1), keepdims=True)).astype(np.float32),
        }  # fmt: skip


def fields(shape: tuple[int, int], classes: int) -> np.ndarray:
    """Labelled fields with unlabelled lanes between them."""
    generator = np.random.default_rng(3)
    count = 3 * classes
    middles = generator.uniform(0, 1, (count, 2)) * shape
    row, col = np.meshgrid(*map(np.arange, shape), indexing="ij")
    distance = np.sqrt((row[..., None] - middles[:, 0]) ** 2 + (col[..., None] - middles[:, 1]) ** 2)
    nearest = np.sort(distance, axis=-1)
    owner = distance.argmin(axis=-1) % classes + 1
    return np.where(nearest[..., 1] - nearest[..., 0] > 1.6, owner, 0).astype(np.uint16)


def nearest_fields(truth: np.ndarray) -> np.ndarray:
    """The truth with its lanes filled."""
    from scipy.ndimage import distance_transform_edt

    nearest = distance_transform_edt(truth == 0, return_distances=False, return_indices=True)
    return truth[tuple(nearest)]


def write_large(directory: Path) -> None:
    """Indian Pines at two amounts with both tables, and three scenes split spatially."""
    shares = (Amount(fraction=0.01), Amount(fraction=0.05))
    machine = {"processor": "AMD EPYC 7R13", "cores": 2, "threads": 2}
    made_by = {"machines": [machine], "commands": ["hyperscene study --scene Indian_pines.mat --labels labels.mat"]}
    pines = SyntheticStudy(directory / "pines-random", shape=(145, 145), title="Indian Pines", **made_by)
    pines.add_table_one(shares, ("paper", "strong"), 5)
    pines.add_table_two(shares[0], "paper", 5)
    pines.add_inspection(shares[0])
    amounts = tuple(Amount(train_pixels=count) for count in (100, 200, 500))
    berlin = ("roof", "pavement", "grass", "tree", "soil")
    for folder, name, classes, shape, error in (
        ("pines-spatial", "Indian_pines.mat", SIXTEEN, (145, 145), 30.0),
        ("salinas-spatial", "SalinasA_corrected.mat", SIXTEEN[:6], (83, 86), 9.0),
        ("berlin-spatial", "HyMap02_berlin.bsq", berlin, (100, 67), 26.0),
    ):
        study = SyntheticStudy(directory / folder, name, "spatial", classes, shape, error)
        study.add_table_one(amounts, ("paper", "strong"), 5, (DEFAULT_VARIANT,))
        study.add_inspection(amounts[0])
    begun = SyntheticStudy(directory / "begun", "begun.tif", shape=(40, 200), classes=berlin)
    begun.add_table_one(shares[:1], ("strong",), 1, tuple(VARIANTS)[:4])
    begun.add(Cell("variants", DEFAULT_VARIANT, "strong", shares[0], 1))


Section = Callable[[Study, str], Iterator[Block]]


def blocks_of(made: SyntheticStudy, section: Section = tables.score_functions) -> list[Block]:
    return list(section(load_study(made.directory), ""))


def findings_of(blocks: Sequence[Block]) -> str:
    return " ".join(block.text for block in blocks if isinstance(block, Paragraph) and block.is_finding)


def table_of(blocks: Sequence[Block]) -> Table:
    return next(block for block in blocks if isinstance(block, Table))


def add_variants(made: SyntheticStudy, errors: dict[str, list[float]]) -> None:
    """Score functions whose accuracies are set, seed by seed, as 100 minus the error."""
    for name, values in errors.items():
        for seed, error in enumerate(values):
            part = "baselines" if name in BASELINES else "variants"
            made.add_with_accuracy(Cell(part, name, "paper", Amount(fraction=0.01), seed), error)


if __name__ == "__main__":
    write_large(Path(sys.argv[1]))
