"""Patches of a scene on the training device: which pixels they cover, which tokens a step samples, how many fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from hyperscene.model.architecture import ModelConfig, Transformer, centre_token, patch_indices
from hyperscene.training.data.datasets import LabelledScene
from hyperscene.training.data.splits import Pixels
from hyperscene.training.fit.recipes import Recipe

# Attention matrices of 4 whole patches per core (4 x 4 heads x 256 x 256 floats) stay in a 32 MB L3 cache; those of 64
# do not. A batch of `strong` makes two micro-batches, one per core. With four of half the size, a step takes 1.3 times
# the processor time (AMD EPYC, 2 cores).
CPU_TOKENS_AT_ONCE = 4 * 256
CUDA_PREDICT_BATCH = 256
# An epoch over the whole scene: one patch for so many of its pixels.
PIXELS_PER_PATCH = 12
MOST_PATCHES = 1024


class PatchSource:
    """The standardised scene on the training device, from which patches are gathered."""

    def __init__(self, scene: LabelledScene, patch_px: int, device: torch.device) -> None:
        self.rows, self.cols, _ = scene.cube.shape
        self.patch_px = patch_px
        self.pixels = torch.from_numpy(scene.standardised()).flatten(0, 1).to(device)  # (rows * cols, bands)

    def pixel_indices(self, centers: Tensor, symmetry: Tensor | None = None) -> Tensor:
        """Indices (n, patch, patch) into `pixels`; `symmetry` (n) selects one of the eight symmetries of a square."""
        if symmetry is None:
            return patch_indices(centers, self.patch_px, self.rows, self.cols)
        signs = torch.stack([1 - 2 * (symmetry & 1), 1 - (symmetry & 2)], dim=1)
        indices = patch_indices(centers, self.patch_px, self.rows, self.cols, signs)
        return torch.where((symmetry & 4).bool()[:, None, None], indices.transpose(1, 2), indices)


@dataclass(frozen=True)
class Batch:
    """Patches of one optimiser step, before their pixels are gathered."""

    indices: Tensor  # (n, patch, patch)
    seed: int  # for the sampling of tokens


def patches_in_epoch(recipe: Recipe, centers: Tensor) -> int:
    """Patches of an epoch over the whole scene, whose valid pixels are `centers`."""
    return max(recipe.batch, min(MOST_PATCHES, len(centers) // PIXELS_PER_PATCH))


def draw_batches(
    source: PatchSource, centers: Tensor, config: ModelConfig, recipe: Recipe, patches: int | None = None
) -> Iterator[Batch]:
    """One epoch in random order: a patch for each centre, or for `patches` of them."""
    order = torch.randperm(len(centers))[:patches]
    half, device = config.patch_px // 2, source.pixels.device
    for chosen in order.split(recipe.batch):
        count = len(chosen)
        patch_centers = centers[chosen.to(device)]
        if config.head == "token" and not recipe.pseudo_labels:
            # The labelled pixel lies anywhere in its patch, and the patch's centre on the scene.
            shift = torch.randint(-half + 1, half, (count, 2)).to(device)
            limit = torch.tensor([source.rows - 1, source.cols - 1], device=device)
            patch_centers = (patch_centers + shift).clamp_min(0).minimum(limit)
        symmetry = torch.randint(0, 8, (count,)).to(device) if recipe.symmetries else None
        yield Batch(source.pixel_indices(patch_centers, symmetry), int(torch.randint(0, 2**31, (1,))))


def micro_batch_size(indices: Tensor) -> int:
    """How many of the patches (n, tokens) go through the network at once; on a GPU all."""
    return max(1, CPU_TOKENS_AT_ONCE // indices.shape[1]) if indices.device.type == "cpu" else len(indices)


def sample_tokens(
    batch: Batch, config: ModelConfig, recipe: Recipe, generator: torch.Generator
) -> tuple[Tensor, Tensor | None]:
    """Pixel indices (n, tokens) of the tokens that a step uses, and which tokens of a patch they are; None for all."""
    kept = draw_tokens(config, recipe, generator)
    indices = batch.indices.flatten(1)
    return (indices if kept is None else indices[:, kept]), kept


def draw_tokens(config: ModelConfig, recipe: Recipe, generator: torch.Generator) -> Tensor | None:
    """Random tokens of a patch, the centre's first; None for all.

    With the head `token` and single labels, all tokens are used, so that a labelled one is never left out.
    """
    if recipe.token_share >= 1 or (config.head == "token" and not recipe.pseudo_labels):
        return None
    tokens, centre = config.patch_px**2, centre_token(config.patch_px)
    wanted = round(recipe.token_share * tokens) - 1
    others = torch.randperm(tokens - 1, generator=generator, device=generator.device)[:wanted]
    others = others + (others >= centre)
    return torch.cat([others.new_tensor([centre]), others])


def gather_patches(network: Transformer, source: PatchSource, centers: Pixels) -> Iterator[Tensor]:
    """Patches round the centres for inference, as many at once as suits the device."""
    network.eval()
    device = source.pixels.device
    at_once = max(1, CPU_TOKENS_AT_ONCE // network.config.patch_px**2) if device.type == "cpu" else CUDA_PREDICT_BATCH
    with torch.inference_mode():
        for chunk in torch.from_numpy(centers).split(at_once):
            if len(chunk):
                yield source.pixels[source.pixel_indices(chunk.to(device))]
