"""Multi-head attention with a score function chosen by name: the eleven of the paper and their ablations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Similarity = Literal["cosine", "dot", "additive"]
Normalise = Literal["both", "query", "key", "none"]
Squaring = Literal["cosine", "absolute", "squared", "temperature_squared"]

NORMALISE: tuple[Normalise, ...] = get_args(Normalise)
SQUARING: tuple[Squaring, ...] = get_args(Squaring)

# A vector below this squared length has no direction: it stays (nearly) zero, so its scores are 0 and never NaN.
SMALLEST_SQUARED_NORM = 1e-12
# Additive score: the largest component of a query or key, so that exp(2 x) stays a normal float32, and how many values
# of pairs a GPU computes at once.
LARGEST_PART = 43.0
PAIR_VALUES_AT_ONCE = 2**26


@dataclass(frozen=True)
class Variant:
    """The settings behind a score function's name."""

    similarity: Similarity
    squaring: Squaring = "cosine"
    scaled: bool = False  # divide the dot product by sqrt(head width)
    biased: bool = False  # projections with bias
    mixed: bool = False  # the second half of the heads scores with the scaled dot product
    crossed: bool = False  # keys and values come from a second token stream


# The paper does not define two of these. "Self-attention" is taken as the standard multi-head layer: scaled dot product
# and projections with bias. "Mixed self-attention with cosine squared" is taken as one layer in which half of the heads
# score with cosine squared and half with the scaled dot product.
VARIANTS: dict[str, Variant] = {
    "cosine_squared": Variant("cosine", "squared"),
    "cosine": Variant("cosine"),
    "scaled_dot_product": Variant("dot", scaled=True),
    "dot_product": Variant("dot"),
    "additive": Variant("additive"),
    "self_attention": Variant("dot", scaled=True, biased=True),
    "mixed_cosine_squared": Variant("cosine", "squared", mixed=True),
    "cross_scaled_dot_product": Variant("dot", scaled=True, crossed=True),
    "cross_cosine_squared": Variant("cosine", "squared", crossed=True),
    "cross_cosine": Variant("cosine", crossed=True),
    "cross_additive": Variant("additive", crossed=True),
}


class MultiHeadAttention(nn.Module):
    """Tokens in, tokens out; `context` holds the keys' and values' tokens of the cross variants."""

    def __init__(
        self,
        width: int,
        heads: int,
        attention: str = "cosine_squared",
        normalise: Normalise = "both",
        squaring: Squaring | None = None,
    ) -> None:
        super().__init__()
        self.variant = VARIANTS[attention]
        self.heads = heads
        self.project = nn.Linear(width, 3 * width, bias=self.variant.biased)  # queries, keys, values in one product
        self.output = nn.Linear(width, width, bias=self.variant.biased)
        self.score = _score_function(self.variant, heads, width // heads, normalise, squaring)

    def forward(self, tokens: Tensor, context: Tensor | None = None) -> Tensor:
        queries, keys, values = self._projections(tokens, context)  # (n, heads, tokens, width / heads) each
        weights = torch.softmax(self.score(queries, keys), dim=-1)  # (n, heads, tokens, tokens)
        merged = (weights @ values).transpose(1, 2).flatten(2)
        mixed: Tensor = self.output(merged)
        return mixed

    def _projections(self, tokens: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        if context is None:
            queries, keys, values = self.project(tokens).chunk(3, dim=-1)
        else:
            width = tokens.shape[-1]
            queries = F.linear(tokens, self.project.weight[:width])
            keys, values = F.linear(context, self.project.weight[width:]).chunk(2, dim=-1)
        return self._split(queries), self._split(keys), self._split(values)

    def _split(self, tokens: Tensor) -> Tensor:
        count, width = tokens.shape[1:]
        return tokens.reshape(-1, count, self.heads, width // self.heads).transpose(1, 2)


class CosineScore(nn.Module):
    """Score by the angle between query and key; without normalisation, also by their lengths."""

    def __init__(self, heads: int, normalise: Normalise, squaring: Squaring) -> None:
        super().__init__()
        self.normalise = normalise
        self.squaring = squaring
        if squaring == "temperature_squared":
            # One learnable temperature per head, kept positive by its logarithm; at 0 it is plain cosine squared.
            self.log_temperature = nn.Parameter(torch.zeros(heads, 1, 1))

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        if self.normalise in ("both", "query"):
            queries = unit(queries)
        if self.normalise in ("both", "key"):
            keys = unit(keys)
        cosine = queries @ keys.transpose(-2, -1)
        if self.squaring == "cosine":
            return cosine
        if self.squaring == "absolute":
            return cosine.abs()
        if self.squaring == "squared":
            return square(cosine)
        return square(cosine) * torch.exp(-self.log_temperature)


class DotScore(nn.Module):
    """Score by the inner product, magnitude and angle together."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        return (queries * self.scale) @ keys.transpose(-2, -1)


class AdditiveScore(nn.Module):
    """Score by w . tanh(W_q q + W_k k + b), with separate weights for every head."""

    def __init__(self, heads: int, head_width: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(head_width)
        self.query_weight = nn.Parameter(torch.empty(heads, head_width, head_width).uniform_(-bound, bound))
        self.key_weight = nn.Parameter(torch.empty(heads, head_width, head_width).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(heads, 1, head_width))
        self.score_weight = nn.Parameter(torch.empty(heads, 1, head_width, 1).uniform_(-bound, bound))

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        query_part = queries @ self.query_weight + self.bias  # (n, heads, tokens, head width)
        key_part = keys @ self.key_weight
        weight = self.score_weight.flatten(1)  # (heads, head width)
        if torch.compiler.is_exporting():
            return added_tanh(_power(query_part), _power(key_part), weight)
        count, heads, tokens, _ = query_part.shape
        weights = weight.expand(count, -1, -1).flatten(0, 1)
        scores = all_added_tanh(query_part.flatten(0, 1), key_part.flatten(0, 1), weights)
        return scores.reshape(count, heads, tokens, -1).to(queries.dtype)


def added_tanh(query_power: Tensor, key_power: Tensor, weight: Tensor) -> Tensor:
    """w . tanh(q + k) for every pair of queries (..., i, width) and keys (..., j, width), given exp(2 q) and exp(2 k).

    tanh(q + k) = 1 - 2 / (1 + exp(2 q) exp(2 k)): one exponential per token instead of a tanh per pair.
    """
    weight = weight.unsqueeze(-1)  # (..., width, 1)
    pairs = _complement(query_power, key_power).flatten(-3, -2)  # (..., i * j, width)
    scores: Tensor = weight.sum(dim=-2, keepdim=True) - 2 * (pairs @ weight)
    return scores.reshape(*query_power.shape[:-1], key_power.shape[-2])


def _complement(query_power: Tensor, key_power: Tensor) -> Tensor:
    """(1 - tanh) / 2 of all pairs (..., i, j, width)."""
    return (query_power.unsqueeze(-2) * key_power.unsqueeze(-3)).add_(1).reciprocal_()


def _power(part: Tensor) -> Tensor:
    """exp(2 x), x clamped to LARGEST_PART: wrong only if a query's and a key's x exceed it with opposite signs."""
    precise = part.to(torch.promote_types(part.dtype, torch.float32))
    return torch.exp(2 * precise.clamp(-LARGEST_PART, LARGEST_PART))


class AddedTanh(torch.autograd.Function):
    """`added_tanh` that recomputes the values of all pairs in the backward pass instead of keeping them.

    Otherwise a step of the additive score is bound by memory.
    """

    @staticmethod
    def forward(ctx: Any, queries: Tensor, keys: Tensor, weight: Tensor) -> Tensor:
        """Scores (m, i, j) of queries (m, i, width), keys (m, j, width) and weights (m, width)."""
        ctx.save_for_backward(queries, keys, weight)
        query_power, key_power = _power(queries), _power(keys)
        make = looped_scores if queries.device.type == "cpu" else blockwise_scores
        with torch.autocast(queries.device.type, enabled=False):
            return make(query_power, key_power, weight.to(query_power.dtype))

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """d tanh(x) = 1 - tanh(x)^2 = 4 c (1 - c), where c = (1 - tanh(x)) / 2."""
        queries, keys, weight = ctx.saved_tensors
        query_power, key_power = _power(queries), _power(keys)
        gradient = outer[0].to(query_power.dtype)  # (m, i, j)
        make = looped_slopes if queries.device.type == "cpu" else blockwise_slopes
        with torch.autocast(queries.device.type, enabled=False):
            by_query, by_key, complement = make(query_power, key_power, gradient)
            scale, by_weight = 4 * weight.unsqueeze(1), gradient.sum(dim=(1, 2))[:, None] - 2 * complement
        return (
            (by_query * scale).to(queries.dtype),
            (by_key * scale).to(keys.dtype),
            by_weight.to(weight.dtype),
        )


all_added_tanh: Callable[[Tensor, Tensor, Tensor], Tensor] = AddedTanh.apply


def looped_scores(query_power: Tensor, key_power: Tensor, weight: Tensor) -> Tensor:
    """`added_tanh` by compiled loops on a CPU."""
    from hyperscene.model.additive_kernels import add_scores  # here, because numba is slow to load

    count, rows, _ = query_power.shape
    scores = weight.sum(dim=1)[:, None, None].expand(count, rows, key_power.shape[1]).contiguous()
    add_scores(*_arrays(query_power, key_power.mT, weight, scores))
    return scores


def looped_slopes(query_power: Tensor, key_power: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """With gradients g of the scores: g c (1 - c) summed over keys and over queries, and g c summed over both."""
    from hyperscene.model.additive_kernels import add_slopes

    by_query, by_key = torch.zeros_like(query_power), torch.zeros_like(key_power.mT.contiguous())
    complement = torch.zeros_like(query_power[:, 0])
    add_slopes(*_arrays(query_power, key_power.mT, gradient, by_query, by_key, complement))
    return by_query, by_key.mT, complement


def _arrays(*tensors: Tensor) -> Iterator[Any]:
    """The tensors as contiguous numpy arrays; outputs must be contiguous already, or a copy is written."""
    return (tensor.detach().contiguous().numpy() for tensor in tensors)


def blockwise_scores(query_power: Tensor, key_power: Tensor, weight: Tensor) -> Tensor:
    """`added_tanh` on any device, block by block of pairs."""
    scores = query_power.new_empty(len(query_power), query_power.shape[1], key_power.shape[1])
    for some, rows in _blocks(query_power, key_power):
        scores[some, rows] = added_tanh(query_power[some, rows], key_power[some], weight[some])
    return scores


def blockwise_slopes(query_power: Tensor, key_power: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same as `looped_slopes` on any device."""
    by_query, by_key = torch.empty_like(query_power), torch.zeros_like(key_power)
    complement = torch.zeros_like(query_power[:, 0])
    for some, rows in _blocks(query_power, key_power):
        pairs = _complement(query_power[some, rows], key_power[some])  # (m, i, j, width)
        outer = gradient[some, rows]
        complement[some] += (outer.flatten(1).unsqueeze(1) @ pairs.flatten(1, 2)).squeeze(1)
        slope = torch.addcmul(pairs, pairs, pairs, value=-1).mul_(outer.unsqueeze(-1))
        by_query[some, rows] = slope.sum(dim=2)
        by_key[some] += slope.sum(dim=1)
    return by_query, by_key, complement


def _blocks(queries: Tensor, keys: Tensor) -> Iterator[tuple[slice, slice]]:
    """Slices of the batch of heads, and of their queries, whose pairs are computed at once."""
    per_row = keys.shape[1] * keys.shape[2]
    rows = max(1, min(queries.shape[1], PAIR_VALUES_AT_ONCE // per_row))
    some = max(1, PAIR_VALUES_AT_ONCE // (per_row * queries.shape[1]))
    for first in range(0, len(queries), some):
        for row in range(0, queries.shape[1], rows):
            yield slice(first, first + some), slice(row, row + rows)


class MixedScore(nn.Module):
    """The first half of the heads scores with one function, the rest with another."""

    def __init__(self, first: nn.Module, second: nn.Module, first_heads: int) -> None:
        super().__init__()
        self.first = first
        self.second = second
        self.first_heads = first_heads

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        split = self.first_heads
        first = self.first(queries[:, :split], keys[:, :split])
        second = self.second(queries[:, split:], keys[:, split:])
        return torch.cat([first, second], dim=1)


def unit(vectors: Tensor) -> Tensor:
    """Vectors scaled to length 1; a zero vector stays zero."""
    if torch.compiler.is_exporting():
        return vectors * _inverse_length((vectors * vectors).sum(dim=-1, keepdim=True))
    return _unit(vectors)


def square(numbers: Tensor) -> Tensor:
    """Every number times itself."""
    if torch.compiler.is_exporting():
        return numbers * numbers
    return _square(numbers)


def _inverse_length(squared_length: Tensor) -> Tensor:
    return torch.rsqrt(squared_length.clamp_min(SMALLEST_SQUARED_NORM))


# A training step on a CPU is bound by memory, and autograd's gradients of these two read and write more than necessary.
# With custom gradients a step of the default network takes 0.85 of the time (AMD EPYC, one core).


class Unit(torch.autograd.Function):
    """Vectors (..., width) scaled to length 1, in single precision or better."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor) -> Tensor:
        precise = vectors.contiguous().to(torch.promote_types(vectors.dtype, torch.float32))
        squared_length = torch.linalg.vector_norm(precise, dim=-1, keepdim=True).square()
        inverse = _inverse_length(squared_length)
        scaled = precise * inverse
        ctx.save_for_backward(scaled, inverse, squared_length >= SMALLEST_SQUARED_NORM)
        return scaled.to(vectors.dtype)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Tensor:
        """Only the component across a vector changes its direction; a vector too short to have one is only scaled."""
        scaled, inverse, has_direction = ctx.saved_tensors
        gradient = outer[0].to(scaled.dtype)
        along = (gradient * scaled).sum(dim=-1, keepdim=True) * has_direction
        return torch.addcmul(gradient, scaled, along, value=-1).mul_(inverse).to(outer[0].dtype)


class Square(torch.autograd.Function):
    """Numbers times themselves."""

    @staticmethod
    def forward(ctx: Any, numbers: Tensor) -> Tensor:
        ctx.save_for_backward(numbers)
        return numbers * numbers

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Tensor:
        (numbers,) = ctx.saved_tensors
        gradient: Tensor = outer[0] * numbers
        return gradient.mul_(2)


_unit: Callable[[Tensor], Tensor] = Unit.apply
_square: Callable[[Tensor], Tensor] = Square.apply


def _score_function(
    variant: Variant, heads: int, head_width: int, normalise: Normalise, squaring: Squaring | None
) -> nn.Module:
    scaled_dot = DotScore(1 / math.sqrt(head_width))
    if variant.similarity == "additive":
        return AdditiveScore(heads, head_width)
    if variant.similarity == "dot":
        return scaled_dot if variant.scaled else DotScore(1.0)
    cosine_heads = heads // 2 if variant.mixed else heads
    cosine = CosineScore(cosine_heads, normalise, squaring or variant.squaring)
    return MixedScore(cosine, scaled_dot, cosine_heads) if variant.mixed else cosine
