"""Splits of the labelled pixels into training, validation and test: none, random as in the paper, or spatial by blocks.

Without a split, every label is for training. In a spatial split, no patch of a training pixel overlaps that of a test
pixel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from hyperscene.errors import LabelsUnusable

SplitName = Literal["none", "random", "spatial"]
SPLITS: tuple[SplitName, ...] = get_args(SplitName)

BLOCKS_ACROSS = 12  # blocks of a spatial split along the scene's longer side, at most
RESTARTS = 24  # of the search for training blocks

Pixels = NDArray[np.int64]  # (n, 2): row, col


@dataclass(frozen=True)
class Split:
    """Centres of training, validation and test patches, in row order."""

    name: SplitName
    train: Pixels
    validation: Pixels
    test: Pixels


def split_labels(
    labels: NDArray[np.integer],
    name: SplitName,
    fraction: float,
    val_fraction: float,
    seed: int,
    separation_px: int,
    train_pixels: int | None = None,
    per_class: int | None = None,
) -> Split:
    """Draw a share of every class for training and for validation; labels are 0 (none) or a class 1..K.

    Instead of `fraction`, `train_pixels` gives the total number of training pixels, spread over the classes in
    proportion to their labels, and `per_class` the number for each class. In a spatial split, all other pixels are at
    least `separation_px` rows or columns away from the training pixels.
    """
    for option, share in (("fraction", fraction), ("val-fraction", val_fraction)):
        if not 0 <= share < 1:
            raise LabelsUnusable(f"--{option} must be at least 0 and below 1, not {share}")
    pixels = np.argwhere(labels > 0)
    if name == "none":
        return Split(name, pixels, pixels[:0], pixels[:0])
    classes = labels[labels > 0]
    generator = np.random.default_rng(seed)
    if name == "random":
        may_train = may_test = np.ones(len(pixels), bool)
    else:
        may_train, may_test = _separate(pixels, classes, separation_px, generator)
    if per_class is not None:
        quotas = _equal_quotas(per_class, classes)
    elif train_pixels is not None:
        quotas = _total_quotas(train_pixels, classes, may_train)
    else:
        quotas = _fraction_quotas(classes, fraction)
    train, validation = _draw(classes, may_train, may_test, quotas, val_fraction, generator)
    test = may_test & ~train & ~validation
    if not test.any():
        raise LabelsUnusable(
            "all labelled pixels are used for training or validation and none is left for testing: lower --fraction, "
            "--train-pixels, --per-class or --val-fraction, or label more pixels"
        )
    return Split(name, pixels[train], pixels[validation], pixels[test])


def split_warnings(
    labels: NDArray[np.integer],
    class_names: Sequence[str],
    split: Split,
    train_pixels: int | None = None,
    per_class: int | None = None,
) -> list[str]:
    """Numbers of training pixels that were not reached, and classes without test pixels."""
    warnings = []
    if per_class is not None:
        drawn = np.bincount(labels[tuple(split.train.T)], minlength=len(class_names) + 1)[1:]
        few = [f"{name} ({count})" for name, count in zip(class_names, drawn, strict=True) if count < per_class]
        if few:
            warnings.append(
                f"fewer than {per_class} training pixels for {', '.join(few)}: at most half of a class is used, and "
                "only pixels in the training blocks"
            )
    if train_pixels is not None and len(split.train) != train_pixels:
        why = "at least one per class" if len(split.train) > train_pixels else "all that the training blocks contain"
        warnings.append(f"{len(split.train)} training pixels instead of {train_pixels}: {why}")
    tested = set(labels[tuple(split.test.T)].tolist())
    untested = [name for value, name in enumerate(class_names, start=1) if value not in tested]
    if untested:
        warnings.append(f"no test pixels of {', '.join(untested)}: the scores leave these classes out")
    return warnings


def draw_some(pixels: Pixels, limit: int | None, seed: int) -> Pixels:
    """At most `limit` of the pixels, drawn at random, in their order."""
    if limit is None or limit >= len(pixels):
        return pixels
    chosen = np.random.default_rng(seed).choice(len(pixels), limit, replace=False)
    return pixels[np.sort(chosen)]


def _fraction_quotas(classes: NDArray[np.integer], fraction: float) -> dict[int, int]:
    """Training pixels for each class: a share of it, at least one."""
    values, counts = np.unique(classes, return_counts=True)
    return {int(value): max(1, round(fraction * int(count))) for value, count in zip(values, counts, strict=True)}


def _equal_quotas(per_class: int, classes: NDArray[np.integer]) -> dict[int, int]:
    """Training pixels for each class: `per_class`, but at most half of it, so that some are left for testing."""
    values, counts = np.unique(classes, return_counts=True)
    return {int(value): max(1, min(per_class, int(count) // 2)) for value, count in zip(values, counts, strict=True)}


def _total_quotas(train_pixels: int, classes: NDArray[np.integer], may_train: NDArray[np.bool_]) -> dict[int, int]:
    """Training pixels for each class, `train_pixels` in total: one each, then in proportion to the labels.

    If a class has too few candidates, the other classes get more.
    """
    values, counts = np.unique(classes, return_counts=True)
    available = np.array([(may_train & (classes == value)).sum() for value in values])
    drawn = np.minimum(1, available)
    share = train_pixels * counts / counts.sum()
    while drawn.sum() < train_pixels and (drawn < available).any():
        drawn[np.argmax(np.where(drawn < available, share - drawn, -np.inf))] += 1
    return {int(value): int(count) for value, count in zip(values, drawn, strict=True)}


def _draw(
    classes: NDArray[np.integer],
    may_train: NDArray[np.bool_],
    may_validate: NDArray[np.bool_],
    quotas: dict[int, int],
    val_fraction: float,
    generator: np.random.Generator,
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Masks of the training and the validation pixels: for each class its quota, and the share `val_fraction`."""
    train = np.zeros(len(classes), bool)
    validation = np.zeros(len(classes), bool)
    for value, quota in quotas.items():
        of_class = classes == value
        candidates = generator.permutation(np.flatnonzero(of_class & may_train))
        train[candidates[:quota]] = True
        candidates = generator.permutation(np.flatnonzero(of_class & may_validate & ~train))
        validation[candidates[: round(val_fraction * int(of_class.sum()))]] = True
    return train, validation


def _separate(
    pixels: Pixels, classes: NDArray[np.integer], separation_px: int, generator: np.random.Generator
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Masks of the pixels in training blocks, and of those far enough from all training blocks."""
    block_px = max(separation_px, -(-int(pixels.max() + 1) // BLOCKS_ACROSS))
    # The search often ends with the same blocks from every start, so the grid is shifted at random too.
    origin = generator.integers(0, block_px, 2)
    _, block_of = np.unique((pixels + origin) // block_px, axis=0, return_inverse=True)
    blocks = range(int(block_of.max()) + 1)
    near_block = np.stack([_near(pixels, pixels[block_of == block], separation_px) for block in blocks], axis=1)
    _, class_of = np.unique(classes, return_inverse=True)
    # Pixels of the same class and block that are near the same blocks form a group.
    alike, first, counts = np.unique(
        np.column_stack([class_of, block_of, np.packbits(near_block, axis=1)]),
        axis=0,
        return_index=True,
        return_counts=True,
    )
    groups = Groups(alike[:, 0], alike[:, 1], near_block[first], counts)
    chosen = max((_hill_climb(groups, generator) for _ in range(RESTARTS)), key=lambda found: found.quality).chosen
    may_train: NDArray[np.bool_] = chosen[block_of]
    may_test: NDArray[np.bool_] = np.logical_not(near_block[:, chosen].any(axis=1))
    if not may_test.any():
        raise LabelsUnusable(
            f"no labelled pixel is {separation_px} px or more away from the training blocks, so a spatial split leaves "
            "none for testing: label pixels farther apart, use a smaller --patch, or use --split random"
        )
    return may_train, may_test


def _near(pixels: Pixels, block_pixels: Pixels, distance_px: int) -> NDArray[np.bool_]:
    low, high = block_pixels.min(axis=0) - distance_px, block_pixels.max(axis=0) + distance_px
    inside: NDArray[np.bool_] = ((pixels > low) & (pixels < high)).all(axis=1)
    return inside


@dataclass(frozen=True)
class Groups:
    """Groups of labelled pixels that any choice of blocks treats alike."""

    class_of: NDArray[np.integer]
    block_of: NDArray[np.integer]
    near_block: NDArray[np.bool_]  # (groups, blocks)
    pixels: NDArray[np.integer]


@dataclass(frozen=True)
class TrainingBlocks:
    """The blocks chosen for training, and the quality of the split."""

    chosen: NDArray[np.bool_]
    quality: float


def _hill_climb(groups: Groups, generator: np.random.Generator) -> TrainingBlocks:
    """From a random choice of blocks, flip one at a time while that improves the split.

    A good split has training and test pixels of every class: the quality is the sum over classes of the geometric mean
    of both shares. A class without training pixels costs more than any imbalance.
    """
    near_block = groups.near_block
    blocks = near_block.shape[1]
    total = np.bincount(groups.class_of, groups.pixels)
    per_block = np.zeros((len(total), blocks))
    np.add.at(per_block, (groups.class_of, groups.block_of), groups.pixels)

    def quality(chosen: NDArray[np.bool_], near_count: NDArray[np.int16]) -> float:
        train_share = per_block[:, chosen].sum(axis=1) / total
        free = near_count == 0
        test_share = np.bincount(groups.class_of[free], groups.pixels[free], minlength=len(total)) / total
        return float(np.sqrt(train_share * test_share).sum() + len(total) * (train_share > 0).sum())

    chosen: NDArray[np.bool_] = np.less(generator.random(blocks), 0.3)
    near_count = near_block[:, chosen].sum(axis=1, dtype=np.int16)  # training blocks that a group is near to
    best, improved = quality(chosen, near_count), True
    while improved:
        improved = False
        for block in generator.permutation(blocks):
            flipped = chosen.copy()
            flipped[block] = not chosen[block]
            changed = near_count + near_block[:, block] if flipped[block] else near_count - near_block[:, block]
            if (value := quality(flipped, changed)) > best:
                chosen, near_count, best, improved = flipped, changed, value, True
    return TrainingBlocks(chosen, best)
