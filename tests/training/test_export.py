"""Every configurable network exports, and its graph agrees with torch."""

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

from hyperscene.errors import BundleUnfaithful, OutputUnwritable
from hyperscene.model.architecture import HEADS, POSITIONS, ModelConfig, SceneClassifier, Transformer
from hyperscene.model.attention import NORMALISE, SQUARING, VARIANTS
from hyperscene.model.bundle import load_bundle, open_session, run_graph
from hyperscene.training.fit.export import PROBABILITY_TOLERANCE, compare_with_torch, export_graph, write_bundle
from hyperscene.training.fit.network import Fitted
from tests import scenes

pytestmark = pytest.mark.slow

SCENE = scenes.labelled_scene()
SMALL = {"bands": 6, "classes": 4, "patch_px": 4, "width": 8, "depth": 1, "heads": 2, "mlp_width": 8}
NETWORKS = {
    **{name: {"attention": name} for name in VARIANTS},
    **{f"head {head}": {"head": head} for head in HEADS},
    **{f"head {head} with spectral path": {"head": head, "spectral_path": True} for head in HEADS},
    **{f"normalise {name}": {"normalise": name} for name in NORMALISE},
    **{f"squaring {name}": {"squaring": name} for name in SQUARING},
    **{f"positions {name}": {"positions": name} for name in POSITIONS},
    "4 heads": {"heads": 4},
    "depth 3": {"depth": 3},
    "width 16": {"width": 16},
    "mlp 24": {"mlp_width": 24},
    "patch 8": {"patch_px": 8},
    "patch 24": {"patch_px": 24},
    "the paper's own size": {"patch_px": 16, "width": 64, "depth": 4, "heads": 4, "mlp_width": 128},
    "a cross variant with the token head": {"attention": "cross_cosine", "head": "token", "spectral_path": True},
}


def network(**changes) -> Transformer:
    torch.manual_seed(0)
    net = Transformer(ModelConfig(**(SMALL | changes))).eval()
    for name, weight in net.named_parameters():
        if "temperature" in name:  # 0 would hide a temperature that is missing from the graph
            torch.nn.init.constant_(weight, -0.7)
    return net


def classifier(net: Transformer) -> SceneClassifier:
    return SceneClassifier(net, torch.from_numpy(SCENE.band_mean), torch.from_numpy(SCENE.band_std)).eval()


@pytest.mark.parametrize("changes", NETWORKS.values(), ids=NETWORKS.keys())
def test_every_weight_has_a_gradient(changes):
    net = network(**changes).train()
    patches = torch.randn(5, net.config.patch_px, net.config.patch_px, 6)
    found = net(patches)
    assert found.shape == ((5, *patches.shape[1:3], 4) if net.config.head == "token" else (5, 4))
    torch.nn.functional.cross_entropy(found.flatten(0, -2), torch.arange(found[..., 0].numel()) % 4).backward()
    for name, weight in net.named_parameters():
        assert weight.grad is not None, name
        assert torch.isfinite(weight.grad).all(), name
        assert weight.grad.abs().sum() > 0, name


@pytest.mark.parametrize("changes", NETWORKS.values(), ids=NETWORKS.keys())
def test_the_exported_graph_agrees_with_torch(changes):
    net = network(**changes)
    session = open_session(export_graph(Fitted(net), SCENE).SerializeToString(), "exported")
    cube, centers = SCENE.cube[3:20, 2:17], np.array([[0, 0], [8, 8], [16, 14], [5, 11]])
    with torch.inference_mode():
        expected = classifier(net)(torch.from_numpy(cube), torch.from_numpy(centers)).numpy()
    assert expected.std() > 1e-3  # constant probabilities would agree trivially
    np.testing.assert_allclose(run_graph(session, cube, centers), expected, rtol=0, atol=PROBABILITY_TOLERANCE)


@pytest.fixture(scope="module")
def exported() -> tuple[Transformer, onnx.ModelProto]:
    net = network()
    return net, export_graph(Fitted(net), SCENE)


def test_a_graph_with_another_weight_fails_the_comparison(exported):
    net, graph = exported
    changed = onnx.ModelProto.FromString(graph.SerializeToString())
    weight = max(changed.graph.initializer, key=lambda found: np.prod(found.dims))
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * 1.01, weight.name))
    with pytest.raises(BundleUnfaithful, match="nothing was written"):
        compare_with_torch(classifier(net), changed.SerializeToString())


def test_the_manifest_describes_scene_and_network(exported, tmp_path):
    net, graph = exported
    path = tmp_path / "b.onnx"
    bundle = write_bundle(graph, Fitted(net), SCENE, "fields", {"seed": 7}, path)
    manifest = bundle.manifest
    assert [entry.name for entry in SCENE.legend] == manifest.class_names
    np.testing.assert_allclose(manifest.band_mean, SCENE.band_mean)
    np.testing.assert_allclose(manifest.wavelengths_nm, np.linspace(450, 900, 6))
    assert (manifest.name, manifest.patch_px, manifest.head, manifest.attention) == (
        "fields",
        4,
        "pooled",
        "cosine_squared",
    )
    assert (manifest.training, manifest.architecture["depth"]) == ({"seed": 7}, 1)
    assert [found.name for found in tmp_path.iterdir()] == ["b.onnx"]
    assert load_bundle(path).sha256 == bundle.sha256


def test_the_same_network_gives_the_same_bytes(exported, tmp_path):
    net, graph = exported
    first = write_bundle(export_graph(Fitted(net), SCENE), Fitted(net), SCENE, "x", {}, tmp_path / "first.onnx")
    second = write_bundle(graph, Fitted(net), SCENE, "x", {}, tmp_path / "second.onnx")
    assert first.sha256 == second.sha256


def test_a_bundle_contains_no_file_path(exported):
    content = exported[1].SerializeToString()
    assert b"site-packages" not in content
    assert b"architecture.py" not in content


def test_a_missing_output_folder_is_refused(exported, tmp_path):
    net, graph = exported
    with pytest.raises(OutputUnwritable, match="choose another folder"):
        write_bundle(graph, Fitted(net), SCENE, "x", {}, tmp_path / "missing" / "b.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_temperature_is_in_the_graph_and_in_the_manifest(exported, tmp_path):
    net, _ = exported
    cube, centers = SCENE.cube[:9, :9], np.array([[4, 4], [0, 8]])
    logits = []
    for temperature in (1.0, 2.5):
        fitted = Fitted(net, temperature)
        bundle = write_bundle(export_graph(fitted, SCENE), fitted, SCENE, "x", {}, tmp_path / "b.onnx")
        assert bundle.manifest.temperature == temperature
        logits.append(np.log(bundle.probabilities(cube, centers)))
    plain, cooled = (found - found.mean(axis=-1, keepdims=True) for found in logits)
    np.testing.assert_allclose(cooled * 2.5, plain, atol=1e-4)


def test_the_tolerance_grows_with_the_rounding_error_of_the_network(tmp_path):
    net = network(spectral_path=True)
    with torch.no_grad():
        net.spectral_path.weight.mul_(300)
    fitted = Fitted(net, 0.3)
    graph = export_graph(fitted, SCENE)
    assert write_bundle(graph, fitted, SCENE, "sharp", {}, tmp_path / "b.onnx").manifest.name == "sharp"
