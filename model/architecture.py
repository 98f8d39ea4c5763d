"""The spatial-spectral Transformer, its configuration, and the graph that is exported."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hyperscene.model.attention import NORMALISE, SQUARING, VARIANTS, MultiHeadAttention, Normalise, Squaring

Positions = Literal["learnable", "sinusoidal", "none"]
Head = Literal["pooled", "centre", "token"]

POSITIONS: tuple[Positions, ...] = get_args(Positions)
HEADS: tuple[Head, ...] = get_args(Head)


@dataclass(frozen=True)
class ModelConfig:
    """The shape of the network; the defaults are the paper's."""

    bands: int
    classes: int
    patch_px: int = 16
    width: int = 64
    depth: int = 4
    heads: int = 4
    mlp_width: int = 128
    dropout: float = 0.1
    attention: str = "cosine_squared"
    normalise: Normalise = "both"
    squaring: Squaring | None = None  # None: as the attention variant has it
    positions: Positions = "learnable"
    head: Head = "pooled"
    spectral_path: bool = False

    def __post_init__(self) -> None:
        _one_of("attention", self.attention, tuple(VARIANTS))
        _one_of("normalise", self.normalise, NORMALISE)
        _one_of("squaring", self.squaring, (None, *SQUARING))
        _one_of("positions", self.positions, POSITIONS)
        _one_of("head", self.head, HEADS)
        for name in ("bands", "classes", "patch_px", "width", "depth", "heads", "mlp_width"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must lie in [0, 1), not {self.dropout}")
        if self.patch_px % 2:
            raise ValueError(
                f"patch size must be even, not {self.patch_px}: a patch covers half of it on each side of its centre"
            )
        if self.width % self.heads:
            raise ValueError(f"width {self.width} must be a multiple of the number of heads, {self.heads}")
        if self.positions == "sinusoidal" and self.width % 4:
            raise ValueError(f"sinusoidal positions need a width that is a multiple of 4, not {self.width}")
        variant = VARIANTS[self.attention]
        if variant.mixed and self.heads < 2:
            raise ValueError(f"{self.attention} needs at least 2 heads, one of each kind")
        if variant.similarity != "cosine" and (self.normalise != "both" or self.squaring is not None):
            raise ValueError(f"normalise and squaring change cosine scores only; {self.attention} has none")


class Randomness(threading.local):
    """The generator that a thread draws dropout from; None for torch's default, which all threads share."""

    generator: torch.Generator | None = None


_randomness = Randomness()


@contextmanager
def seeded_dropout(seed: int) -> Iterator[None]:
    """Draw the dropout of this thread, on a CPU, from a generator of its own."""
    _randomness.generator = torch.Generator().manual_seed(seed)
    try:
        yield
    finally:
        _randomness.generator = None


class Dropout(nn.Dropout):
    """Dropout whose random numbers do not depend on other threads, see `seeded_dropout`."""

    def forward(self, tokens: Tensor) -> Tensor:
        generator = _randomness.generator
        if generator is None or tokens.device.type != "cpu" or not self.training or not self.p:
            return super().forward(tokens)
        kept = torch.empty_like(tokens).bernoulli_(1 - self.p, generator=generator)
        return tokens * kept.div_(1 - self.p)


class EncoderBlock(nn.Module):
    """A pre-norm encoder block: attention, then a small MLP, each with a residual connection."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width)
        self.attention = MultiHeadAttention(
            config.width, config.heads, config.attention, config.normalise, config.squaring
        )
        if VARIANTS[config.attention].crossed:
            self.context_norm = nn.LayerNorm(config.width)
        self.mlp_norm = nn.LayerNorm(config.width)
        self.mlp = nn.Sequential(
            nn.Linear(config.width, config.mlp_width),
            nn.GELU(),
            nn.Linear(config.mlp_width, config.width),
        )
        self.dropout = Dropout(config.dropout)

    def forward(self, tokens: Tensor, context: Tensor | None = None) -> Tensor:
        if context is not None:
            context = self.context_norm(context)
        attended: Tensor = tokens + self.dropout(self.attention(self.attention_norm(tokens), context))
        refined: Tensor = attended + self.dropout(self.mlp(self.mlp_norm(attended)))
        return refined


class Stream(nn.Module):
    """Spectral and positional embedding of a patch: spectra in, tokens out."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.spectral = nn.Linear(config.bands, config.width, bias=False)
        tokens = config.patch_px**2
        if config.positions == "learnable":
            self.positions = nn.Parameter(torch.empty(tokens, config.width))
            nn.init.trunc_normal_(self.positions, std=0.02)
        elif config.positions == "sinusoidal":
            self.register_buffer("positions", sinusoidal_positions(config.patch_px, config.width), persistent=False)
        else:
            self.register_buffer("positions", torch.zeros(tokens, 1), persistent=False)

    def forward(self, embedded: Tensor, kept: Tensor | None = None) -> Tensor:
        """Add positions to embedded patches (n, tokens, width); `kept` holds the indices of the tokens, if not all."""
        return embedded + (self.positions if kept is None else self.positions[kept])


class Transformer(nn.Module):
    """Standardised patches (n, patch, patch, bands) in, logits out: (n, classes), or one per pixel for `token`."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.stream = Stream(config)
        # Cross variants: the paper has a second token stream and does not say where it comes from. Here it is a second
        # embedding of the same patch, shared by all layers.
        self.context_stream = Stream(config) if VARIANTS[config.attention].crossed else None
        self.blocks = nn.ModuleList(EncoderBlock(config) for _ in range(config.depth))
        self.norm = nn.LayerNorm(config.width)
        self.classifier = nn.Linear(config.width, config.classes)
        self.spectral_path = nn.Linear(config.bands, config.classes) if config.spectral_path else None

    def forward(self, patches: Tensor, kept: Tensor | None = None) -> Tensor:
        """Logits; for training on part of a patch, `kept` (k,) holds the indices of its tokens, the centre's first."""
        spectra = patches.flatten(1, 2)  # (n, tokens, bands)
        return self.shaped(self.logits(spectra if kept is None else spectra[:, kept], kept))

    def set_dropout(self, share: float) -> None:
        """Set the dropout of all layers."""
        self.config = replace(self.config, dropout=share)
        for module in self.modules():
            if isinstance(module, nn.Dropout):
                module.p = share

    def logits(self, spectra: Tensor, kept: Tensor | None = None) -> Tensor:
        """Logits for spectra (n, tokens, bands) of patches: one row per patch, or per token for the head `token`."""
        context = None if self.context_stream is None else self.context_stream.spectral(spectra)
        logits = self.classify(self.features(self.stream.spectral(spectra), context, kept), kept)
        if self.spectral_path is not None:
            logits = logits + self.spectral_path(predicting_tokens(spectra, self.config, kept))
        return logits

    def features(self, embedded: Tensor, embedded_context: Tensor | None = None, kept: Tensor | None = None) -> Tensor:
        """Normalised tokens (n, tokens, width) after the last block."""
        tokens = self.stream(embedded, kept)
        context = None
        if self.context_stream is not None and embedded_context is not None:
            context = self.context_stream(embedded_context, kept)
        for block in self.blocks:
            tokens = block(tokens, context)
        normalised: Tensor = self.norm(tokens)
        return normalised

    def classify(self, tokens: Tensor, kept: Tensor | None = None) -> Tensor:
        """Logits of the head: one row per patch, or one per token."""
        pooled = tokens.mean(dim=1) if self.config.head == "pooled" else predicting_tokens(tokens, self.config, kept)
        logits: Tensor = self.classifier(pooled)
        return logits

    def shaped(self, logits: Tensor) -> Tensor:
        """Logits in their final shape: (n, patch, patch, classes) for the head `token`."""
        if self.config.head == "token":
            return logits.reshape(-1, self.config.patch_px, self.config.patch_px, self.config.classes)
        return logits


class SceneClassifier(nn.Module):
    """The exported graph: cube (rows, cols, bands) and centers (n, 2) in, probabilities out.

    Standardisation and embedding run once per pixel of the cube; patches are gathered from the embedded pixels.
    A patch that crosses the cube's edge is completed by reflection.
    """

    band_mean: Tensor
    band_std: Tensor

    def __init__(self, network: Transformer, band_mean: Tensor, band_std: Tensor, temperature: float = 1.0) -> None:
        super().__init__()
        self.network = network
        self.temperature = temperature
        self.register_buffer("band_mean", band_mean)
        self.register_buffer("band_std", band_std)

    def forward(self, cube: Tensor, centers: Tensor) -> Tensor:
        network, config = self.network, self.network.config
        rows, cols = cube.shape[0], cube.shape[1]
        pixels = ((cube - self.band_mean) / self.band_std).flatten(0, 1)  # (rows * cols, bands)
        patch = patch_indices(centers, config.patch_px, rows, cols).flatten(1)  # (n, tokens)
        embedded = take(network.stream.spectral(pixels), patch)
        context = None
        if network.context_stream is not None:
            context = take(network.context_stream.spectral(pixels), patch)
        logits = network.classify(network.features(embedded, context))
        if network.spectral_path is not None:
            logits = logits + take(network.spectral_path(pixels), predicting_tokens(patch, config))
        return torch.softmax(network.shaped(logits) / self.temperature, dim=-1)


def predicting_tokens(tokens: Tensor, config: ModelConfig, kept: Tensor | None = None) -> Tensor:
    """Tokens (n, tokens, ...) whose pixels are predicted: the centre's, or all for the head `token`."""
    if config.head == "token":
        return tokens
    return tokens[:, centre_token(config.patch_px) if kept is None else 0]


def centre_token(patch_px: int) -> int:
    """The index of the centre pixel's token."""
    return (patch_px // 2) * patch_px + patch_px // 2


def take(pixels: Tensor, indices: Tensor) -> Tensor:
    """Rows of `pixels` at `indices`; an embedding look-up, because that exports as one Gather."""
    return F.embedding(indices, pixels)


def patch_indices(centers: Tensor, patch_px: int, rows: int, cols: int, signs: Tensor | None = None) -> Tensor:
    """Indices (n, patch, patch) of the patches' pixels in a cube flattened to (rows * cols).

    `signs` (n, 2), of 1 and -1, mirrors a patch about its centre pixel; the centre stays where it is.
    """
    offsets = torch.arange(-(patch_px // 2), patch_px // 2, device=centers.device)
    row_offsets = col_offsets = offsets[None, :]
    if signs is not None:
        row_offsets, col_offsets = offsets * signs[:, :1], offsets * signs[:, 1:]
    patch_rows = reflect(centers[:, :1] + row_offsets, rows)
    patch_cols = reflect(centers[:, 1:] + col_offsets, cols)
    return patch_rows[:, :, None] * cols + patch_cols[:, None, :]


def reflect(index: Tensor, size: int) -> Tensor:
    """Indices folded into 0..size-1 by reflection that does not repeat the edge pixel."""
    # A tensor, because the exporter assumes sizes of 2 and more and would drop the clamp that a size of 1 needs.
    period = torch.full_like(index, 2 * (size - 1)).clamp_min(1)
    folded = torch.remainder(index, period)
    return torch.minimum(folded, period - folded)


def sinusoidal_positions(patch_px: int, width: int) -> Tensor:
    """Fixed positions (tokens, width): half of the width encodes the row, half the column."""
    quarter = width // 4
    rates = torch.exp(-math.log(10_000.0) * torch.arange(quarter) / quarter)
    angles = torch.arange(patch_px)[:, None] * rates  # (patch, quarter)
    line = torch.cat([angles.sin(), angles.cos()], dim=1)  # (patch, half)
    rows = line[:, None, :].expand(patch_px, patch_px, width // 2)
    cols = line[None, :, :].expand(patch_px, patch_px, width // 2)
    return torch.cat([rows, cols], dim=-1).flatten(0, 1)


def _one_of(name: str, value: object, choices: tuple[object, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(str, choices))}, not {value}")
