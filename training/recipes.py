"""Recipes: how a network is trained, and how far it looks round a label."""

from __future__ import annotations

import math
from dataclasses import dataclass

from model.architecture import Head, ModelConfig


@dataclass(frozen=True)
class Recipe:
    """How the network is trained."""

    name: str
    epochs: int
    batch: int
    learning_rate: float
    weight_decay: float
    one_cycle: bool
    symmetries: bool  # rotations and flips about the centre pixel
    token_share: float  # share of a patch's tokens that a step looks at, drawn anew; mapping looks at all
    clip_norm: float = 1.0
    label_smoothing: float = 0.05
    taught: bool = False  # learns a teacher's answers for the whole scene, not the labels alone
    head: Head = "pooled"  # unless another is asked for
    spectral_path: bool = False
    dropout: float = 0.1
    dropout_by_spectra: float = 0.1  # instead, where a teacher goes by spectra alone: it errs here and there
    mixing: float = 0.0  # of the Beta distribution by which patches are mixed in pairs; 0 mixes none
    averaging: float = 0.0  # share that the average of the weights keeps at a step; 0 takes the last weights
    pretraining_epochs: int = 0  # in which hidden spectra are guessed, before anything is taught


RECIPES = {
    "paper": Recipe("paper", 50, 128, 3e-4, 2e-4, one_cycle=False, symmetries=False, token_share=1.0),
    # Every token of a patch has an answer to learn, so a step teaches 64 times as much as one that asks for the centre.
    "strong": Recipe(
        "strong",
        60,
        32,
        2e-3,
        0.02,
        one_cycle=True,
        symmetries=True,
        token_share=0.25,
        taught=True,
        head="token",
        spectral_path=True,
        dropout=0.0,  # a teacher answers for every pixel of the scene: there is nothing to learn by heart
    ),
}


def learning_rate(recipe: Recipe, step: int, steps: int) -> float:
    """Constant, or one cycle: up over the first 30 % of the steps, down to almost nothing over the rest."""
    if not recipe.one_cycle:
        return recipe.learning_rate
    rise = 0.3 * steps
    if step < rise:
        low, high, progress = recipe.learning_rate / 25, recipe.learning_rate, step / rise
    else:
        low, high, progress = recipe.learning_rate, recipe.learning_rate / 1e4, (step - rise) / (steps - rise)
    return high + (low - high) * (1 + math.cos(math.pi * progress)) / 2


def separation_px(config: ModelConfig, recipe: Recipe) -> int:
    """How far from a training pixel another must lie, in row or in column, for their patches to share nothing.

    A mirrored patch reaches one pixel further than a plain one. Where the head `token` learns from single labels, a
    patch lies anywhere round its pixel. A taught network sees the whole scene: there it is the labels that lie apart.
    """
    reaches_further = config.head == "token" and not recipe.taught
    return config.patch_px + (config.patch_px // 2 if reaches_further else 1)
