"""Which labelled pixels train, validate and test: the paper's random split, and blocks that share no patch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from service.errors import LabelsUnusable

SplitName = Literal["random", "spatial"]
SPLITS: tuple[SplitName, ...] = get_args(SplitName)

BLOCKS_ACROSS = 12  # a spatial split cuts the scene's longer side into at most this many blocks
RESTARTS = 24  # of the search for a good choice of training blocks

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
    """Draw a share of every class to train and to validate; labels are 0 (none) or a class 1..K.

    `train_pixels` asks for so many training pixels in all instead, spread over the classes as the labels are, and
    `per_class` for so many of every class. In a spatial split, other pixels lie at least `separation_px` from those
    that train, in row or in column.
    """
    for option, share in (("fraction", fraction), ("val-fraction", val_fraction)):
        if not 0 <= share < 1:
            raise LabelsUnusable(f"--{option} must be at least 0 and below 1, not {share}")
    pixels = np.argwhere(labels > 0)
    classes = labels[labels > 0]
    generator = np.random.default_rng(seed)
    if name == "random":
        may_train = may_test = np.ones(len(pixels), bool)
    else:
        may_train, may_test = _apart(pixels, classes, separation_px, generator)
    if per_class is not None:
        quotas = _equal_quotas(per_class, classes)
    elif train_pixels is not None:
        quotas = _quotas_of(train_pixels, classes, may_train)
    else:
        quotas = _quotas(classes, fraction)
    train, validation = _draw(classes, may_train, may_test, quotas, val_fraction, generator)
    test = may_test & ~train & ~validation
    if not test.any():
        raise LabelsUnusable(
            "every labelled pixel trains or validates and none is left to test: lower --fraction, --train-pixels, "
            "--per-class or --val-fraction, or label more pixels"
        )
    return Split(name, pixels[train], pixels[validation], pixels[test])


def split_warnings(
    labels: NDArray[np.integer],
    class_names: Sequence[str],
    split: Split,
    train_pixels: int | None = None,
    per_class: int | None = None,
) -> list[str]:
    """What was asked for and could not be had, and of which classes the scores do not speak."""
    warnings = []
    if per_class is not None:
        drawn = np.bincount(labels[tuple(split.train.T)], minlength=len(class_names) + 1)[1:]
        few = [f"{name} ({count})" for name, count in zip(class_names, drawn, strict=True) if count < per_class]
        if few:
            warnings.append(
                f"fewer than {per_class} pixels train of {', '.join(few)}: at most half of a class does, and no more "
                "than lie in the training blocks"
            )
    if train_pixels is not None and len(split.train) != train_pixels:
        why = "at least one of every class" if len(split.train) > train_pixels else "all that the training blocks have"
        warnings.append(f"{len(split.train)} pixels train instead of {train_pixels}: {why}")
    tested = set(labels[tuple(split.test.T)].tolist())
    untested = [name for value, name in enumerate(class_names, start=1) if value not in tested]
    if untested:
        warnings.append(f"no test pixels of {', '.join(untested)}: the scores do not speak of them")
    return warnings


def draw_some(pixels: Pixels, limit: int | None, seed: int) -> Pixels:
    """So many of the pixels, drawn at random, in their order; all where no fewer are asked for."""
    if limit is None or limit >= len(pixels):
        return pixels
    chosen = np.random.default_rng(seed).choice(len(pixels), limit, replace=False)
    return pixels[np.sort(chosen)]


def _quotas(classes: NDArray[np.integer], fraction: float) -> dict[int, int]:
    """How many pixels of each class train: a share of them, at least one."""
    values, counts = np.unique(classes, return_counts=True)
    return {int(value): max(1, round(fraction * int(count))) for value, count in zip(values, counts, strict=True)}


def _equal_quotas(per_class: int, classes: NDArray[np.integer]) -> dict[int, int]:
    """So many pixels of each class, but no more than half of it, so that some are left to test."""
    values, counts = np.unique(classes, return_counts=True)
    return {int(value): max(1, min(per_class, int(count) // 2)) for value, count in zip(values, counts, strict=True)}


def _quotas_of(train_pixels: int, classes: NDArray[np.integer], may_train: NDArray[np.bool_]) -> dict[int, int]:
    """So many pixels in all, one of each class and the rest where a class lacks most of its share.

    A class that has too few pixels to draw from gives what it has, and others make up for it.
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
    """Per class: its quota of pixels to train, and `val_fraction` of them to validate."""
    train = np.zeros(len(classes), bool)
    validation = np.zeros(len(classes), bool)
    for value, quota in quotas.items():
        of_class = classes == value
        candidates = generator.permutation(np.flatnonzero(of_class & may_train))
        train[candidates[:quota]] = True
        candidates = generator.permutation(np.flatnonzero(of_class & may_validate & ~train))
        validation[candidates[: round(val_fraction * int(of_class.sum()))]] = True
    return train, validation


def _apart(
    pixels: Pixels, classes: NDArray[np.integer], separation_px: int, generator: np.random.Generator
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Pixels of the training blocks, and the pixels far enough from all of those; the others are left out of both."""
    block_px = max(separation_px, -(-int(pixels.max() + 1) // BLOCKS_ACROSS))
    # The best choice of blocks is often the same from every start; another seed's grid lies elsewhere.
    origin = generator.integers(0, block_px, 2)
    _, block_of = np.unique((pixels + origin) // block_px, axis=0, return_inverse=True)
    blocks = range(int(block_of.max()) + 1)
    near_block = np.stack([_near(pixels, pixels[block_of == block], separation_px) for block in blocks], axis=1)
    _, class_of = np.unique(classes, return_inverse=True)
    # Pixels of one class and block that are near to the same blocks count as one, many times over.
    alike, first, counts = np.unique(
        np.column_stack([class_of, block_of, np.packbits(near_block, axis=1)]),
        axis=0,
        return_index=True,
        return_counts=True,
    )
    groups = Groups(alike[:, 0], alike[:, 1], near_block[first], counts)
    chosen = max((_climb(groups, generator) for _ in range(RESTARTS)), key=lambda choice: choice.worth).blocks
    may_train: NDArray[np.bool_] = chosen[block_of]
    may_test: NDArray[np.bool_] = np.logical_not(near_block[:, chosen].any(axis=1))
    if not may_test.any():
        raise LabelsUnusable(
            f"no labelled pixel lies {separation_px} px or more from the blocks that train, so a spatial split leaves "
            "none to test: label pixels farther apart, take a smaller --patch, or use --split random"
        )
    return may_train, may_test


def _near(pixels: Pixels, block_pixels: Pixels, distance_px: int) -> NDArray[np.bool_]:
    low, high = block_pixels.min(axis=0) - distance_px, block_pixels.max(axis=0) + distance_px
    inside: NDArray[np.bool_] = ((pixels > low) & (pixels < high)).all(axis=1)
    return inside


@dataclass(frozen=True)
class Groups:
    """Labelled pixels, gathered where no choice of blocks could tell them apart."""

    class_of: NDArray[np.integer]
    block_of: NDArray[np.integer]
    near_block: NDArray[np.bool_]  # (groups, blocks)
    pixels: NDArray[np.integer]


@dataclass(frozen=True)
class Choice:
    """Blocks chosen to train, and how good a split they make."""

    blocks: NDArray[np.bool_]
    worth: float


def _climb(groups: Groups, generator: np.random.Generator) -> Choice:
    """From a random choice of blocks, flip one at a time while that makes the split better.

    A good split has, of every class, pixels to train on and pixels to test on: the sum over classes of the geometric
    mean of both shares. A class that nobody could train on weighs more than any balance.
    """
    near_block = groups.near_block
    blocks = near_block.shape[1]
    total = np.bincount(groups.class_of, groups.pixels)
    per_block = np.zeros((len(total), blocks))
    np.add.at(per_block, (groups.class_of, groups.block_of), groups.pixels)

    def worth(chosen: NDArray[np.bool_], covers: NDArray[np.int16]) -> float:
        train_share = per_block[:, chosen].sum(axis=1) / total
        free = covers == 0
        test_share = np.bincount(groups.class_of[free], groups.pixels[free], minlength=len(total)) / total
        return float(np.sqrt(train_share * test_share).sum() + len(total) * (train_share > 0).sum())

    chosen: NDArray[np.bool_] = np.less(generator.random(blocks), 0.3)
    covers = near_block[:, chosen].sum(axis=1, dtype=np.int16)  # how many training blocks a group is too near to
    best, improved = worth(chosen, covers), True
    while improved:
        improved = False
        for block in generator.permutation(blocks):
            flipped = chosen.copy()
            flipped[block] = not chosen[block]
            changed = covers + near_block[:, block] if flipped[block] else covers - near_block[:, block]
            if (value := worth(flipped, changed)) > best:
                chosen, covers, best, improved = flipped, changed, value, True
    return Choice(chosen, best)
