"""Patches of a scene on the training device: where they lie, which of their tokens are looked at, how many at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from model.architecture import ModelConfig, Transformer, centre_token, patch_indices
from training.datasets import LabelledScene
from training.recipes import Recipe
from training.splits import Pixels

# Attention matrices of 8 whole patches (8 x 4 heads x 256 x 256 floats) stay in a 32 MB L3 cache; those of 64 do not.
# AMD EPYC, 2 cores, forward and backward: about 40 patches/s at 64, 108 at 16, 91 to 113 at 8, 80 at 2.
CPU_TOKENS_AT_ONCE = 8 * 256
CUDA_PREDICT_BATCH = 256
# An epoch that looks at the whole scene: patches at random places, one for so many of its pixels.
PIXELS_PER_PATCH = 16
MOST_PATCHES = 1024


class PatchSource:
    """The standardised scene on the training device, from which patches are gathered."""

    def __init__(self, scene: LabelledScene, patch_px: int, device: torch.device) -> None:
        self.rows, self.cols, _ = scene.cube.shape
        self.patch_px = patch_px
        self.pixels = torch.from_numpy(scene.standardised()).flatten(0, 1).to(device)  # (rows * cols, bands)

    def places(self, centers: Tensor, symmetry: Tensor | None = None) -> Tensor:
        """Places (n, patch, patch) of the patches' pixels; `symmetry` picks one of the eight for each patch."""
        if symmetry is None:
            return patch_indices(centers, self.patch_px, self.rows, self.cols)
        signs = torch.stack([1 - 2 * (symmetry & 1), 1 - (symmetry & 2)], dim=1)
        places = patch_indices(centers, self.patch_px, self.rows, self.cols, signs)
        return torch.where((symmetry & 4).bool()[:, None, None], places.transpose(1, 2), places)


@dataclass(frozen=True)
class Batch:
    """Patches of one optimiser step, before their pixels are gathered."""

    places: Tensor  # (n, patch, patch)
    seed: int  # of the parts of the patches that are looked at


def patches_in_epoch(recipe: Recipe, centers: Tensor) -> int:
    """How many patches an epoch has that looks at the whole scene, whose valid pixels are `centers`."""
    return max(recipe.batch, min(MOST_PATCHES, len(centers) // PIXELS_PER_PATCH))


def draw_batches(
    source: PatchSource,
    centers: Tensor,
    config: ModelConfig,
    recipe: Recipe,
    device: torch.device,
    patches: int | None = None,
) -> Iterator[Batch]:
    """One epoch: every centre once, or so many of them, in random order, each in a patch of its own."""
    order = torch.randperm(len(centers))[:patches]
    half = config.patch_px // 2
    for chosen in order.split(recipe.batch):
        count = len(chosen)
        patch_centers = centers[chosen.to(device)]
        if config.head == "token" and not recipe.taught:
            # The patch lies anywhere round the pixel, its mirror images included, with a centre on the scene.
            shift = torch.randint(-half + 1, half, (count, 2)).to(device)
            limit = torch.tensor([source.rows - 1, source.cols - 1], device=device)
            patch_centers = (patch_centers + shift).clamp_min(0).minimum(limit)
        symmetry = torch.randint(0, 8, (count,)).to(device) if recipe.symmetries else None
        yield Batch(source.places(patch_centers, symmetry), int(torch.randint(0, 2**31, (1,))))


def micro_batch(places: Tensor) -> int:
    """How many of the patches (n, tokens) go through the network at once: on a GPU all."""
    return max(1, CPU_TOKENS_AT_ONCE // places.shape[1]) if places.device.type == "cpu" else len(places)


def looked_at(
    batch: Batch, config: ModelConfig, recipe: Recipe, generator: torch.Generator
) -> tuple[Tensor, Tensor | None]:
    """Places (n, tokens) of the pixels that a step looks at, and which tokens of a patch those are, None for all."""
    kept = draw_kept(config, recipe, generator)
    places = batch.places.flatten(1)
    return (places if kept is None else places[:, kept]), kept


def draw_kept(config: ModelConfig, recipe: Recipe, generator: torch.Generator) -> Tensor | None:
    """Tokens to look at, the centre's first and the rest at random; None for all.

    Where single labels are learnt from and each token answers for itself, a label's own token must not be left out.
    """
    if recipe.token_share >= 1 or (config.head == "token" and not recipe.taught):
        return None
    tokens, centre = config.patch_px**2, centre_token(config.patch_px)
    wanted = round(recipe.token_share * tokens) - 1
    others = torch.randperm(tokens - 1, generator=generator, device=generator.device)[:wanted]
    others = others + (others >= centre)
    return torch.cat([others.new_tensor([centre]), others])


def gather_patches(network: Transformer, source: PatchSource, centers: Pixels) -> Iterator[Tensor]:
    """Patches round the centres, as many at once as suits the device, for a network that only answers."""
    network.eval()
    device = source.pixels.device
    at_once = max(1, CPU_TOKENS_AT_ONCE // network.config.patch_px**2) if device.type == "cpu" else CUDA_PREDICT_BATCH
    with torch.inference_mode():
        for chunk in torch.from_numpy(centers).split(at_once):
            if len(chunk):
                yield source.pixels[source.places(chunk.to(device))]


@cache
def is_fast_in_bfloat16(device: torch.device) -> bool:
    """Whether a training step computes in half the bits, where torch thinks that safe; weights keep all of theirs."""
    capabilities = torch.cpu.get_capabilities()
    return device.type == "cuda" or bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))
