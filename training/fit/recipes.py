"""Recipes: the settings of a training run, and how far apart training and test pixels must be."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hyperscene.model.architecture import Head, ModelConfig


@dataclass(frozen=True)
class Recipe:
    """The settings of a training run."""

    name: str
    epochs: int
    batch: int
    learning_rate: float
    weight_decay: float
    one_cycle: bool
    symmetries: bool  # rotations and flips about the centre pixel
    token_share: float  # share of a patch's tokens that a training step samples; mapping uses all
    clip_norm: float = 1.0
    label_smoothing: float = 0.05
    pseudo_labels: bool = False  # label propagation over the whole scene first; the network learns its result
    head: Head = "pooled"  # unless --head is given
    spectral_path: bool = False
    dropout: float = 0.1
    spectra_only_dropout: float = 0.1  # instead, where pseudo-labels come from spectra only: errors are scattered


# Settings in checkpoints and study cells of earlier versions, and their names today.
RENAMED_SETTINGS = {"taught": "pseudo_labels", "dropout_by_spectra": "spectra_only_dropout"}
RECIPES = {
    "paper": Recipe("paper", 50, 128, 3e-4, 2e-4, one_cycle=False, symmetries=False, token_share=1.0),
    # Each of the 64 tokens that a step samples from a patch is supervised by its own pseudo-label.
    "strong": Recipe(
        "strong",
        36,
        32,
        3e-3,
        0.02,
        one_cycle=True,
        symmetries=True,
        token_share=0.25,
        pseudo_labels=True,
        head="token",
        spectral_path=True,
        dropout=0.0,  # every pixel of the scene has a pseudo-label: there is little to overfit to
    ),
}


def learning_rate(recipe: Recipe, step: int, steps: int) -> float:
    """Constant, or one cycle: up to the peak over the first 30 % of the steps, down to nearly zero over the rest."""
    if not recipe.one_cycle:
        return recipe.learning_rate
    rise = 0.3 * steps
    if step < rise:
        low, high, progress = recipe.learning_rate / 25, recipe.learning_rate, step / rise
    else:
        low, high, progress = recipe.learning_rate, recipe.learning_rate / 1e4, (step - rise) / (steps - rise)
    return high + (low - high) * (1 + math.cos(math.pi * progress)) / 2


def separation_px(config: ModelConfig, recipe: Recipe) -> int:
    """Distance in rows or columns from a training pixel at which another pixel's patch does not overlap its patches.

    A mirrored patch reaches one pixel further than a plain one. If the head `token` learns from single labels, the
    pixel may lie anywhere in its patch. With pseudo-labels, patches cover the whole scene; only labels are kept apart.
    """
    reaches_further = config.head == "token" and not recipe.pseudo_labels
    return config.patch_px + (config.patch_px // 2 if reaches_further else 1)
