"""The Transformer, its configuration, and the graph that is exported."""

import numpy as np
import pytest
import torch

from hyperscene.model.architecture import (
    HEADS,
    POSITIONS,
    ModelConfig,
    SceneClassifier,
    Transformer,
    patch_indices,
    reflect,
)
from hyperscene.model.attention import VARIANTS

BANDS, CLASSES = 5, 3


def config(**changes) -> ModelConfig:
    small = {"bands": BANDS, "classes": CLASSES, "patch_px": 4, "width": 16, "depth": 2, "heads": 2, "mlp_width": 24}
    return ModelConfig(**(small | changes))


def network(**changes) -> Transformer:
    torch.manual_seed(0)
    return Transformer(config(**changes)).eval()


def classifier(net: Transformer) -> SceneClassifier:
    return SceneClassifier(net, torch.linspace(0, 1, BANDS), torch.linspace(1, 2, BANDS)).eval()


def cube(rows: int, cols: int) -> torch.Tensor:
    return torch.randn(rows, cols, BANDS, generator=torch.Generator().manual_seed(1))


def test_the_defaults_are_those_of_the_paper():
    paper = ModelConfig(bands=200, classes=16)
    shape = (paper.patch_px, paper.width, paper.depth, paper.heads, paper.mlp_width, paper.dropout)
    assert shape == (16, 64, 4, 4, 128, 0.1)
    assert (paper.attention, paper.head, paper.positions) == ("cosine_squared", "pooled", "learnable")
    assert sum(weight.numel() for weight in Transformer(paper).parameters()) == 163_216


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("spectral_path", [False, True])
def test_each_head_has_its_output_shape(head, spectral_path):
    logits = network(head=head, spectral_path=spectral_path)(torch.randn(7, 4, 4, BANDS))
    assert logits.shape == ((7, 4, 4, CLASSES) if head == "token" else (7, CLASSES))


@pytest.mark.parametrize("name", VARIANTS)
def test_every_parameter_has_a_gradient_for_each_variant(name):
    net = network(attention=name).train()
    net(torch.randn(3, 4, 4, BANDS)).logsumexp(dim=-1).sum().backward()
    for parameter_name, weight in net.named_parameters():
        assert weight.grad is not None, parameter_name
        assert torch.isfinite(weight.grad).all(), parameter_name


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("options", [{}, {"spectral_path": True}, {"attention": "cross_cosine_squared"}])
@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (2, 7), (4, 4), (9, 6)])
def test_scene_classifier_equals_the_network_on_patches_cut_by_hand(head, options, rows, cols):
    net = network(head=head, **options)
    scene = cube(rows, cols)
    graph = classifier(net)
    centers = torch.cartesian_prod(torch.arange(rows), torch.arange(cols))
    standardised = ((scene - graph.band_mean) / graph.band_std).numpy()
    # Half of the patch lies above and to the left of the centre.
    padded = np.pad(standardised, ((2, 1), (2, 1), (0, 0)), mode="reflect")
    patches = np.stack([padded[row : row + 4, col : col + 4] for row, col in centers.tolist()])
    with torch.inference_mode():
        expected = torch.softmax(net(torch.from_numpy(patches)), dim=-1)
        torch.testing.assert_close(graph(scene, centers), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("head", HEADS)
def test_probabilities_sum_to_one(head):
    with torch.inference_mode():
        found = classifier(network(head=head))(cube(6, 5), torch.tensor([[0, 0], [5, 4]]))
    torch.testing.assert_close(found.sum(dim=-1), torch.ones(found.shape[:-1]))


@pytest.mark.parametrize("name", VARIANTS)
def test_a_cube_of_zeros_gives_no_nan(name):
    net = network(attention=name, positions="none")
    graph = SceneClassifier(net, torch.zeros(BANDS), torch.ones(BANDS)).eval()
    assert torch.isfinite(graph(torch.zeros(4, 4, BANDS), torch.tensor([[2, 2]]))).all()


def test_a_patch_covers_half_before_and_half_less_one_after_its_centre():
    indices = patch_indices(torch.tensor([[20, 30]]), 16, 100, 100)[0]
    rows, cols = indices // 100, indices % 100
    assert (rows[:, 0].tolist(), cols[0].tolist()) == (list(range(12, 28)), list(range(22, 38)))


@pytest.mark.parametrize("signs", [[1, 1], [1, -1], [-1, 1], [-1, -1]])
def test_a_mirrored_patch_keeps_its_centre_in_place(signs):
    indices = patch_indices(torch.tensor([[20, 30]]), 16, 100, 100, torch.tensor([signs]))[0]
    assert indices[8, 8] == 20 * 100 + 30
    assert indices[9, 8] == (20 + signs[0]) * 100 + 30
    assert indices[8, 9] == 20 * 100 + 30 + signs[1]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 20])
def test_reflection_equals_that_of_numpy(size):
    expected = np.pad(np.arange(size), 9, mode="reflect")
    assert reflect(torch.arange(-9, size + 9), size).tolist() == expected.tolist()


def test_without_positions_the_pooled_head_does_not_see_the_order_of_pixels():
    patch = torch.randn(1, 4, 4, BANDS)
    shuffled = patch.flatten(1, 2)[:, torch.randperm(16)].reshape(patch.shape)
    for positions in POSITIONS:
        net = network(positions=positions)
        same = torch.allclose(net(patch), net(shuffled), atol=1e-5)
        assert same == (positions == "none"), positions


def test_the_centre_head_reads_the_centre_token():
    net = network(head="centre", depth=1)
    tokens = torch.randn(1, 16, 16)
    changed = tokens.clone()
    changed[:, 2 * 4 + 2] += 1
    assert not torch.allclose(net.classify(tokens), net.classify(changed))
    changed = tokens.clone()
    changed[:, 0] += 1
    assert torch.allclose(net.classify(tokens), net.classify(changed))


@pytest.mark.parametrize("head", ["pooled", "centre"])
@pytest.mark.parametrize("options", [{}, {"spectral_path": True}, {"attention": "cross_cosine"}])
def test_the_order_of_the_kept_tokens_does_not_matter(head, options):
    net, patches = network(head=head, **options), torch.randn(2, 4, 4, BANDS)
    kept = torch.tensor([10, *range(10), *range(11, 16)])
    torch.testing.assert_close(net(patches, kept), net(patches), atol=1e-5, rtol=1e-4)
    assert not torch.allclose(net(patches, kept[:6]), net(patches), atol=1e-3)


def test_dropout_is_off_outside_training():
    net, patch = network(dropout=0.5), torch.randn(2, 4, 4, BANDS)
    assert torch.equal(net(patch), net(patch))
    net.train()
    assert not torch.equal(net(patch), net(patch))


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({"attention": "nonsense"}, "attention must be one of cosine_squared"),
        ({"head": "middle"}, "head must be one of pooled, centre, token"),
        ({"normalise": "all"}, "normalise must be one of"),
        ({"squaring": "cubed"}, "squaring must be one of"),
        ({"positions": "rotary"}, "positions must be one of"),
        ({"patch_px": 5}, "patch size must be even"),
        ({"width": 15}, "must be a multiple of the number of heads"),
        ({"width": 6, "positions": "sinusoidal"}, "multiple of 4"),
        ({"depth": 0}, "depth must be at least 1"),
        ({"dropout": 1.0}, "dropout must lie in"),
        ({"heads": 1, "attention": "mixed_cosine_squared"}, "at least 2 heads"),
        ({"attention": "dot_product", "squaring": "squared"}, "change cosine scores only"),
    ],
)
def test_an_invalid_configuration_is_refused_with_the_reason(changes, remedy):
    with pytest.raises(ValueError, match=remedy):
        config(**changes)
