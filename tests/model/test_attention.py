"""The score functions follow their equations."""

import math

import pytest
import torch
from torch.nn import functional as F

from hyperscene.model import attention as scores
from hyperscene.model.attention import (
    NORMALISE,
    SQUARING,
    VARIANTS,
    CosineScore,
    DotScore,
    MultiHeadAttention,
    square,
    unit,
)

WIDTH, HEADS, TOKENS = 16, 4, 9


def vectors(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def layer(name: str, **options) -> MultiHeadAttention:
    torch.manual_seed(0)
    return MultiHeadAttention(WIDTH, HEADS, name, **options)


def apply(attention: MultiHeadAttention, tokens: torch.Tensor, context: torch.Tensor | None = None) -> torch.Tensor:
    if attention.variant.crossed and context is None:
        context = vectors(9, *tokens.shape)
    return attention(tokens, context)


def heads_of(tokens: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return (tokens @ weight.T).reshape(*tokens.shape[:2], HEADS, WIDTH // HEADS).transpose(1, 2)


def test_the_eleven_score_functions_of_the_paper_are_there():
    assert list(VARIANTS) == [
        "cosine_squared", "cosine", "scaled_dot_product", "dot_product", "additive", "self_attention",
        "mixed_cosine_squared", "cross_scaled_dot_product", "cross_cosine_squared", "cross_cosine", "cross_additive",
    ]  # fmt: skip


@pytest.mark.parametrize("name", VARIANTS)
def test_every_weight_has_a_gradient(name):
    attention = layer(name)
    apply(attention, vectors(1, 2, TOKENS, WIDTH)).square().sum().backward()
    for parameter_name, weight in attention.named_parameters():
        assert weight.grad is not None, parameter_name
        assert torch.isfinite(weight.grad).all(), parameter_name
        # A bias of the keys shifts all scores of a row equally; softmax removes it.
        part = weight.grad if parameter_name != "project.bias" else weight.grad[-WIDTH:]
        assert part.abs().sum() > 0, parameter_name


@pytest.mark.parametrize("name", VARIANTS)
def test_zero_tokens_give_no_nan_forward_or_backward(name):
    attention = layer(name)
    tokens = torch.zeros(1, TOKENS, WIDTH, requires_grad=True)
    context = torch.zeros(1, TOKENS, WIDTH) if attention.variant.crossed else None
    output = attention(tokens, context)
    output.sum().backward()
    assert torch.isfinite(output).all()
    assert torch.isfinite(tokens.grad).all()


EQUATIONS = {
    "cosine_squared": lambda q, k: (F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT) ** 2,
    "cosine": lambda q, k: F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT,
    "scaled_dot_product": lambda q, k: q @ k.mT / math.sqrt(WIDTH // HEADS),
    "dot_product": lambda q, k: q @ k.mT,
}


@pytest.mark.parametrize("name", [name for name in VARIANTS if name.removeprefix("cross_") in EQUATIONS])
def test_attention_follows_its_equation(name):
    attention, score = layer(name), EQUATIONS[name.removeprefix("cross_")]
    crossed = attention.variant.crossed
    tokens, context = vectors(1, 2, TOKENS, WIDTH), vectors(2, 2, TOKENS, WIDTH)
    source = context if crossed else tokens
    query_weight, key_weight, value_weight = attention.project.weight.split(WIDTH)
    weights = torch.softmax(score(heads_of(tokens, query_weight), heads_of(source, key_weight)), dim=-1)
    merged = (weights @ heads_of(source, value_weight)).transpose(1, 2).reshape(2, TOKENS, WIDTH)
    expected = merged @ attention.output.weight.T
    torch.testing.assert_close(attention(tokens, context if crossed else None), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", ["additive", "cross_additive"])
def test_additive_scores_follow_their_equation(name):
    score = layer(name).score
    torch.nn.init.normal_(score.bias)
    queries, keys = vectors(1, 1, HEADS, 3, 4), vectors(2, 1, HEADS, 5, 4)
    found = score(queries, keys)
    for head in range(HEADS):
        for i in range(3):
            for j in range(5):
                inner = (
                    queries[0, head, i] @ score.query_weight[head] + keys[0, head, j] @ score.key_weight[head]
                ) + score.bias[head, 0]
                expected = score.score_weight[head, 0, :, 0] @ torch.tanh(inner)
                torch.testing.assert_close(found[0, head, i, j], expected)


def test_additive_gradients_are_those_of_the_equation():
    torch.manual_seed(0)
    score = scores.AdditiveScore(HEADS, 4).double()
    torch.nn.init.normal_(score.bias)
    inputs = [vectors(1, 2, HEADS, 3, 4).double(), vectors(2, 2, HEADS, 5, 4).double()]
    variables = [*(tensor.requires_grad_() for tensor in inputs), *score.parameters()]
    found = score(*inputs)
    query_part = (inputs[0] @ score.query_weight + score.bias).unsqueeze(-2)
    pairs = torch.tanh(query_part + (inputs[1] @ score.key_weight).unsqueeze(-3))
    expected = (pairs @ score.score_weight).squeeze(-1)
    torch.testing.assert_close(found, expected)
    outer = vectors(3, *found.shape).double()
    for ours, plain in zip(
        torch.autograd.grad(found, variables, outer), torch.autograd.grad(expected, variables, outer), strict=True
    ):
        torch.testing.assert_close(ours, plain)


@pytest.mark.parametrize("at_once", [1, 45, 130, 10_000])
def test_additive_scores_by_blocks_equal_those_by_loops(at_once, monkeypatch):
    monkeypatch.setattr(scores, "PAIR_VALUES_AT_ONCE", at_once)
    query_power, key_power = vectors(1, 2, 7, 4).exp(), vectors(2, 2, 9, 4).exp()
    weight, gradient = vectors(3, 2, 4), vectors(4, 2, 7, 9)
    by_blocks = scores.blockwise_scores(query_power, key_power, weight)
    torch.testing.assert_close(by_blocks, scores.looped_scores(query_power, key_power, weight))
    slopes = scores.blockwise_slopes(query_power, key_power, gradient)
    for by_block, by_loop in zip(slopes, scores.looped_slopes(query_power, key_power, gradient), strict=True):
        torch.testing.assert_close(by_block, by_loop)


def test_additive_scores_of_large_tokens_equal_tanh():
    weight = torch.tensor([[1.0]])
    queries, keys = torch.tensor([[[40.0], [100.0], [30.0]]]), torch.tensor([[[-25.0], [-21.0], [-30.5]]])
    found = scores.all_added_tanh(queries, keys, weight)
    torch.testing.assert_close(found, torch.tanh(queries + keys.transpose(1, 2)))


def test_additive_gradients_of_large_tokens_are_finite():
    queries = torch.tensor([[[90.0], [40.0], [-90.0]]], requires_grad=True)
    keys = torch.full((1, 40, 1), 60.0, requires_grad=True)  # wide enough for loops over vectors
    scores.all_added_tanh(queries, keys, torch.tensor([[1.0]])).sum().backward()
    assert queries.grad.isfinite().all()
    assert keys.grad.isfinite().all()


def test_additive_scores_of_huge_tokens_are_finite():
    score = layer("additive").score
    huge = 1e4 * vectors(1, 1, HEADS, 3, 4)
    found = score(huge, -huge)
    assert found.isfinite().all()
    assert (found.abs() <= score.score_weight.abs().sum(dim=(1, 2, 3))[:, None, None] + 1e-5).all()


def test_self_attention_equals_the_layer_of_torch():
    attention = layer("self_attention")
    stock = torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    stock.load_state_dict(
        {
            "in_proj_weight": attention.project.weight,
            "in_proj_bias": attention.project.bias,
            "out_proj.weight": attention.output.weight,
            "out_proj.bias": attention.output.bias,
        }
    )
    tokens = vectors(1, 2, TOKENS, WIDTH)
    torch.testing.assert_close(attention(tokens), stock(tokens, tokens, tokens)[0], atol=1e-6, rtol=1e-5)


def test_mixed_heads_score_half_by_angle_and_half_by_dot_product():
    score = layer("mixed_cosine_squared").score
    queries, keys = vectors(1, 1, HEADS, TOKENS, 4), vectors(2, 1, HEADS, TOKENS, 4)
    found = score(queries, keys)
    by_angle = CosineScore(2, "both", "squared")(queries[:, :2], keys[:, :2])
    by_product = DotScore(0.5)(queries[:, 2:], keys[:, 2:])
    torch.testing.assert_close(found, torch.cat([by_angle, by_product], dim=1))


@pytest.mark.parametrize("normalise", NORMALISE)
def test_scores_ignore_the_length_of_what_is_normalised(normalise):
    score = CosineScore(HEADS, normalise, "squared")
    queries, keys = vectors(1, 1, HEADS, TOKENS, 4), vectors(2, 1, HEADS, TOKENS, 4)
    plain = score(queries, keys)
    assert torch.allclose(score(3 * queries, keys), plain, atol=1e-6) == (normalise in ("both", "query"))
    assert torch.allclose(score(queries, 3 * keys), plain, atol=1e-6) == (normalise in ("both", "key"))


@pytest.mark.parametrize("squaring", SQUARING)
def test_each_squaring_follows_its_equation(squaring):
    queries, keys = vectors(1, 1, HEADS, TOKENS, 4), vectors(2, 1, HEADS, TOKENS, 4)
    cosine = F.cosine_similarity(queries.unsqueeze(-2), keys.unsqueeze(-3), dim=-1)
    score = CosineScore(HEADS, "both", squaring)
    expected = {"cosine": cosine, "absolute": cosine.abs(), "squared": cosine**2}
    torch.testing.assert_close(score(queries, keys), expected.get(squaring, cosine**2), atol=1e-6, rtol=1e-5)


def test_each_head_has_its_own_temperature():
    score = CosineScore(2, "both", "temperature_squared")
    queries, keys = vectors(1, 1, 2, TOKENS, 4), vectors(2, 1, 2, TOKENS, 4)
    plain = score(queries, keys)
    with torch.no_grad():
        score.log_temperature[0] = math.log(0.1)
    torch.testing.assert_close(score(queries, keys)[:, 0], 10 * plain[:, 0])
    torch.testing.assert_close(score(queries, keys)[:, 1], plain[:, 1])


def test_cosine_squared_weights_stay_within_a_factor_of_e():
    weights = torch.softmax(layer("cosine_squared").score(vectors(1, 1, 4, 9, 4) * 100, vectors(2, 1, 4, 9, 4)), dim=-1)
    assert (weights.amax(dim=-1) / weights.amin(dim=-1)).max() <= math.e + 1e-5


def test_unit_vectors_have_length_one_and_zero_stays_zero():
    lengths = unit(torch.tensor([[3.0, 4.0], [0.0, 0.0], [1e-4, 0.0]])).norm(dim=-1)
    torch.testing.assert_close(lengths, torch.tensor([1.0, 0.0, 1.0]))


def test_gradients_of_unit_vectors_and_squares_are_those_of_their_equations():
    torch.manual_seed(0)
    vectors = torch.randn(2, 3, 4, 5, dtype=torch.float64).transpose(1, 2).requires_grad_()
    assert torch.autograd.gradcheck(unit, vectors)
    assert torch.autograd.gradcheck(square, vectors)
    # Too short to have a direction: scaled by a constant.
    short = torch.full((3,), 1e-9, dtype=torch.float64, requires_grad=True)
    unit(short).backward(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    assert torch.allclose(short.grad, 1e6 * torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))


@pytest.mark.parametrize("name", [name for name, variant in VARIANTS.items() if variant.crossed])
def test_cross_attention_depends_on_the_second_stream(name):
    attention = layer(name)
    tokens = vectors(1, 1, TOKENS, WIDTH)
    first, second = (attention(tokens, vectors(seed, 1, TOKENS, WIDTH)) for seed in (2, 3))
    assert not torch.allclose(first, second)
