"""The fused kernel predicts what the bundle's graph predicts, and leaves other networks to other engines."""

from dataclasses import replace

import numpy as np
import pytest

from hyperscene.errors import NotReady, OptionsUnusable
from hyperscene.model.bundle import DEMO_BUNDLE, load_bundle, read_bundle
from hyperscene.model.onnx_file import read_weights
from hyperscene.service.mapping import engine_health, fused_engine
from hyperscene.service.mapping.devices import precision_of
from hyperscene.service.mapping.engine_health import candidates
from hyperscene.service.mapping.engines import make_engine
from hyperscene.service.mapping.fused_engine import (
    KERNELS,
    FusedEngine,
    compare_precisions,
    kernel_for,
    settle_precision,
    unsuitable,
)
from tests.bundles import write_patch_bundle

needs_kernel = pytest.mark.skipif(
    kernel_for("float32") is None, reason="the fused kernel was not built: it needs a C compiler"
)


@pytest.fixture(scope="module")
def demo():
    return load_bundle(DEMO_BUNDLE)


@pytest.fixture(scope="module")
def bundle_of(tmp_path_factory):
    """Exports small networks with random weights, a head each."""
    import torch

    from hyperscene.model.architecture import ModelConfig, Transformer
    from hyperscene.training.fit.export import export_graph, write_bundle
    from hyperscene.training.fit.network import Fitted
    from tests.scenes import labelled_scene

    def make(head):
        torch.manual_seed(3)
        config = ModelConfig(6, 4, head=head, width=32, heads=2, depth=2, mlp_width=40, spectral_path=head == "token",
                             positions="learnable" if head == "token" else "none")  # fmt: skip
        network = Transformer(config).eval()
        with torch.no_grad():
            for name, weight in network.named_parameters():
                if "norm" in name and head == "token":  # scale and shift are folded into the next layer
                    weight.add_(0.3 * torch.randn_like(weight))
        fitted, scene = Fitted(network, temperature=0.7), labelled_scene(rows=21, cols=19)
        return write_bundle(
            export_graph(fitted, scene), fitted, scene, head, {}, tmp_path_factory.mktemp(head) / "b.onnx"
        )

    return make


def question(bundle, rows, cols, count):
    manifest, generator = bundle.manifest, np.random.default_rng(rows)
    spread = np.array(manifest.band_std) * generator.standard_normal((rows, cols, manifest.bands))
    return (np.array(manifest.band_mean) + spread).astype(np.float32), generator.integers(0, (rows, cols), (count, 2))


def assert_like_the_graph(bundle, engine):
    for rows, cols, count in ((1, 1, 1), (1, 9, 4), (7, 5, 3), (16, 16, 9), (33, 21, 20)):
        inputs = question(bundle, rows, cols, count)
        np.testing.assert_allclose(engine.probabilities(*inputs), bundle.probabilities(*inputs), rtol=0, atol=2e-6)


@needs_kernel
def test_the_kernel_predicts_the_probabilities_of_the_graph(demo):
    assert_like_the_graph(demo, make_engine(demo, "fused", 2))


@needs_kernel
@pytest.mark.parametrize(
    "kernel", [kernel for kernel in KERNELS if kernel.precision == "float32"], ids=lambda kernel: kernel.name
)
def test_every_kernel_of_this_processor_predicts_the_same(demo, kernel, monkeypatch):
    if not fused_engine._library().hyperscene_has(kernel.number):
        pytest.skip(f"this processor has no {kernel.name}")
    monkeypatch.setattr(fused_engine, "kernel_for", lambda _: kernel)
    assert_like_the_graph(demo, FusedEngine.open(demo, 1, 16))


@needs_kernel
@pytest.mark.slow
@pytest.mark.parametrize("head", ["centre", "token"])
def test_the_kernel_knows_all_heads(bundle_of, head):
    bundle = bundle_of(head)
    assert_like_the_graph(bundle, make_engine(bundle, "fused", 1, precision="float32"))


@needs_kernel
def test_a_patch_has_the_same_bytes_in_every_batch_and_window(demo):
    engine = FusedEngine.open(demo, 1, 16)
    cube, centers = question(demo, 40, 37, 12)
    centers = np.clip(centers, 8, 28)
    expected = engine.probabilities(cube, centers)
    np.testing.assert_array_equal(np.concatenate([engine.probabilities(cube, one[None]) for one in centers]), expected)
    row, col = centers[5]
    window = np.ascontiguousarray(cube[row - 8 : row + 8, col - 8 : col + 8])
    np.testing.assert_array_equal(engine.probabilities(window, np.array([[8, 8]]))[0], expected[5])


@needs_kernel
def test_auto_prefers_the_kernel_where_it_runs_the_network(demo):
    assert candidates("auto", demo)[-3:] == ["fused", "openvino", "cpu"]


def test_other_networks_are_left_to_other_engines_without_a_warning(tmp_path):
    other = read_bundle(write_patch_bundle(tmp_path / "b.onnx"))
    assert "fused" not in candidates("auto", other)
    with pytest.raises(NotReady, match="fused kernel"):
        make_engine(other, "fused")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"attention": "cosine"}, "attention cosine_squared, not cosine"),
        ({"patch_px": 8}, "patch_px 16, not 8"),
        ({"squaring": "absolute"}, "squaring is absolute"),
        ({"heads": 8}, "heads of 16 features"),
        ({"gates": 2}, "other settings than the kernel knows"),
        ({"depth": "four"}, "not whole numbers above 0"),
    ],
)
def test_a_network_of_another_kind_is_named(demo, changes, words):
    assert unsuitable(demo.manifest) is None
    other = demo.manifest.model_copy(update={"architecture": demo.manifest.architecture | changes})
    assert words in unsuitable(other)


@needs_kernel
def test_a_graph_that_does_not_fit_its_description_is_refused(demo):
    deeper = demo.manifest.model_copy(update={"architecture": demo.manifest.architecture | {"depth": 5}})
    bundle = type(demo)(demo.path, deeper, demo.sha256, demo.content, demo.structure)
    with pytest.raises(NotReady, match="16 products for 5 layers"):
        FusedEngine.open(bundle, 1, 16)


@needs_kernel
@pytest.mark.parametrize("name", ["band_std", "network.blocks.1.mlp.2.bias", "network.classifier.bias"])
def test_arrays_of_another_size_never_reach_the_kernel(demo, monkeypatch, name):
    named, operators = read_weights(demo.content)
    cut = named | {name: named[name][:-1]}
    monkeypatch.setattr(fused_engine, "read_weights", lambda _: (cut, operators))
    with pytest.raises(NotReady, match="does not find its weights"):
        FusedEngine.open(demo, 1, 16)


@needs_kernel
def test_a_cube_with_other_bands_is_refused(demo):
    cube, centers = question(demo, 16, 16, 2)
    with pytest.raises(ValueError, match="do not fit 51 bands"):
        FusedEngine.open(demo, 1, 16).probabilities(cube[..., :-1], centers)


def test_without_a_compiled_kernel_the_next_engine_is_used(demo, monkeypatch):
    monkeypatch.setattr(fused_engine, "_library", lambda: None)
    with pytest.raises(NotReady, match="was not built: install a C compiler"):
        FusedEngine.open(demo, 1, 16)
    monkeypatch.setattr(engine_health, "is_installed", lambda name: name == "openvino")
    assert candidates("auto", demo) == ["openvino", "cpu"]


needs_bfloat16 = pytest.mark.skipif(kernel_for("bfloat16") is None, reason="no fused kernel in bfloat16 here")


@needs_bfloat16
def test_bfloat16_is_close_to_float32_and_named(demo):
    engine = make_engine(demo, "fused", 1, precision="bfloat16")
    assert precision_of(engine.provider) == "bfloat16"
    cube, centers = question(demo, 33, 21, 20)
    found, exact = engine.probabilities(cube, centers), demo.probabilities(cube, centers)
    assert 1e-6 < np.abs(found - exact).max() < 0.02
    np.testing.assert_array_equal(engine.probabilities(cube, centers[7:8])[0], found[7])  # in every batch


@needs_bfloat16
@pytest.mark.parametrize(
    ("agreement", "gain", "expected"), [(0.9995, 1.5, "bfloat16"), (0.998, 1.5, "float32"), (1.0, 1.05, "float32")]
)
def test_auto_needs_the_same_classes_and_more_speed(demo, monkeypatch, tmp_path, agreement, gain, expected):
    monkeypatch.setenv("HYPERSCENE_CACHE", str(tmp_path))
    token = replace(demo, manifest=demo.manifest.model_copy(update={"head": "token"}))
    measured = []

    def compare(_):
        measured.append(1)
        return {"agreement": agreement, "gain": gain}

    monkeypatch.setattr(fused_engine, "compare_precisions", compare)
    for _ in range(2):  # the second time from the cache
        assert settle_precision(token, "auto") == expected
    assert len(measured) == 1
    assert settle_precision(demo, "auto") == "float32"  # of one prediction per patch
    assert settle_precision(token, "float32") == "float32"
    assert settle_precision(demo, "bfloat16") == "bfloat16"


@needs_bfloat16
@pytest.mark.slow
def test_the_comparison_of_precisions_maps_noise_in_both(bundle_of):
    found = compare_precisions(bundle_of("token"))
    assert 0.98 < found["agreement"] <= 1
    assert found["gain"] > 0


def test_bfloat16_is_refused_by_engines_without_it(demo):
    with pytest.raises(NotReady, match="computes in float32 only"):
        make_engine(demo, "cpu", precision="bfloat16")
    with pytest.raises(OptionsUnusable, match="precision must be one of auto, float32, bfloat16"):
        make_engine(demo, precision="float64")
