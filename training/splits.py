"""Which labelled pixels train, validate and test: the paper's random split, and blocks that share no patch."""

from __future__ import annotations

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
    patch_px: int,
) -> Split:
    """Draw a share of every class to train and to validate; labels are 0 (none) or a class 1..K."""
    for option, share in (("fraction", fraction), ("val-fraction", val_fraction)):
        if not 0 <= share < 1:
            raise LabelsUnusable(f"--{option} must be at least 0 and below 1, not {share}")
    pixels = np.argwhere(labels > 0)
    classes = labels[labels > 0]
    generator = np.random.default_rng(seed)
    if name == "random":
        may_train = may_test = np.ones(len(pixels), bool)
    else:
        may_train, may_test = _apart(pixels, classes, patch_px, generator)
    train, validation = _draw(classes, may_train, may_test, fraction, val_fraction, generator)
    test = may_test & ~train & ~validation
    return Split(name, pixels[train], pixels[validation], pixels[test])


def _draw(
    classes: NDArray[np.integer],
    may_train: NDArray[np.bool_],
    may_validate: NDArray[np.bool_],
    fraction: float,
    val_fraction: float,
    generator: np.random.Generator,
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Per class: `fraction` of its pixels to train, at least one, and `val_fraction` to validate."""
    train = np.zeros(len(classes), bool)
    validation = np.zeros(len(classes), bool)
    for value in np.unique(classes):
        of_class = classes == value
        total = int(of_class.sum())
        candidates = generator.permutation(np.flatnonzero(of_class & may_train))
        train[candidates[: max(1, round(fraction * total))]] = True
        candidates = generator.permutation(np.flatnonzero(of_class & may_validate & ~train))
        validation[candidates[: round(val_fraction * total)]] = True
    return train, validation


def _apart(
    pixels: Pixels, classes: NDArray[np.integer], patch_px: int, generator: np.random.Generator
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Pixels of the training blocks, and the pixels whose patches share nothing with any patch of those.

    Two patches share no pixel when their centres lie at least `patch_px` apart in row or in column. Pixels too near to
    a training block are left out of both sides.
    """
    block_px = max(patch_px, -(-int(pixels.max() + 1) // BLOCKS_ACROSS))
    _, block_of = np.unique(pixels // block_px, axis=0, return_inverse=True)
    blocks = range(int(block_of.max()) + 1)
    near_block = np.stack([_near(pixels, pixels[block_of == block], patch_px) for block in blocks], axis=1)
    _, class_of = np.unique(classes, return_inverse=True)
    chosen = max(
        (_climb(class_of, block_of, near_block, generator) for _ in range(RESTARTS)), key=lambda choice: choice.worth
    ).blocks
    may_train: NDArray[np.bool_] = chosen[block_of]
    may_test: NDArray[np.bool_] = np.logical_not(near_block[:, chosen].any(axis=1))
    if not may_test.any():
        raise LabelsUnusable(
            f"no labelled pixel lies {patch_px} px or more from the blocks that train, so a spatial split leaves none "
            "to test: label pixels farther apart, take a smaller --patch, or use --split random"
        )
    return may_train, may_test


def _near(pixels: Pixels, block_pixels: Pixels, distance_px: int) -> NDArray[np.bool_]:
    low, high = block_pixels.min(axis=0) - distance_px, block_pixels.max(axis=0) + distance_px
    inside: NDArray[np.bool_] = ((pixels > low) & (pixels < high)).all(axis=1)
    return inside


@dataclass(frozen=True)
class Choice:
    """Blocks chosen to train, and how good a split they make."""

    blocks: NDArray[np.bool_]
    worth: float


def _climb(
    class_of: NDArray[np.intp],
    block_of: NDArray[np.intp],
    near_block: NDArray[np.bool_],
    generator: np.random.Generator,
) -> Choice:
    """From a random choice of blocks, flip one at a time while that makes the split better.

    A good split has, of every class, pixels to train on and pixels to test on: the sum over classes of the geometric
    mean of both shares. A class that nobody could train on weighs more than any balance.
    """
    blocks = near_block.shape[1]
    total = np.bincount(class_of)
    per_block = np.zeros((len(total), blocks))
    np.add.at(per_block, (class_of, block_of), 1)

    def worth(chosen: NDArray[np.bool_], covers: NDArray[np.int16]) -> float:
        train_share = per_block[:, chosen].sum(axis=1) / total
        test_share = np.bincount(class_of[covers == 0], minlength=len(total)) / total
        return float(np.sqrt(train_share * test_share).sum() + len(total) * (train_share > 0).sum())

    chosen: NDArray[np.bool_] = np.less(generator.random(blocks), 0.3)
    covers = near_block[:, chosen].sum(axis=1, dtype=np.int16)  # how many training blocks a pixel is too near to
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
