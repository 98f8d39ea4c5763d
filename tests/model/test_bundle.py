"""A bundle is read with onnxruntime alone; an invalid one is refused with the reason."""

import json
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from hyperscene.model.bundle import FORMAT_VERSION, MANIFEST_KEY, BundleRefused, load_bundle
from hyperscene.model.onnx_file import has_external_data, read_onnx
from tests.bundles import describe, pixel_graph, write_bundle, write_with


def test_a_valid_bundle_predicts_probabilities(bundle):
    loaded = load_bundle(bundle)
    cube = np.random.default_rng(0).random((3, 4, 5), np.float32)
    probabilities = loaded.probabilities(cube, np.array([[0, 0], [2, 3]]))
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-6)
    assert (loaded.manifest.bands, loaded.manifest.classes) == (5, 3)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_bundle_cut_short_is_refused(bundle, share):
    content = bundle.read_bytes()
    bundle.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(BundleRefused, match=r"copy it again|without a hyperscene manifest|is not a bundle|edited"):
        load_bundle(bundle)


def test_every_changed_byte_is_refused(bundle):
    content = bundle.read_bytes()
    key = content.index(b'"digest"')  # without its name the digest is missing, which is allowed
    for position in sorted({*range(0, len(content), 53)} - {*range(key, key + 8)}):
        changed = bytearray(content)
        changed[position] ^= 1
        bundle.write_bytes(changed)
        with pytest.raises(BundleRefused):
            load_bundle(bundle)


def test_an_edited_class_name_is_refused(bundle):
    model = onnx.load(bundle)
    manifest = json.loads(next(prop.value for prop in model.metadata_props if prop.key == MANIFEST_KEY))
    manifest["class_names"][0] = "something else"
    helper.set_model_props(model, {MANIFEST_KEY: json.dumps(manifest)})
    bundle.write_bytes(model.SerializeToString())
    with pytest.raises(BundleRefused, match="edited after it was made"):
        load_bundle(bundle)


def test_other_weights_fail_the_self_check_even_without_a_digest(tmp_path):
    graph = pixel_graph()
    manifest = describe(graph, digest=None).model_dump_json()
    weights = numpy_helper.to_array(graph.graph.initializer[0]) * 1.01
    graph.graph.initializer[0].CopyFrom(numpy_helper.from_array(weights, "weights"))
    write_with(tmp_path / "b.onnx", graph, manifest)
    with pytest.raises(BundleRefused, match="fails its self-check"):
        load_bundle(tmp_path / "b.onnx")


def test_a_newer_format_is_refused_with_advice_to_upgrade(tmp_path):
    graph = pixel_graph()
    manifest = json.loads(describe(graph).model_dump_json()) | {"format_version": FORMAT_VERSION + 1, "new": True}
    write_with(tmp_path / "b.onnx", graph, json.dumps(manifest))
    with pytest.raises(BundleRefused, match="upgrade hyperscene"):
        load_bundle(tmp_path / "b.onnx")


def test_an_onnx_file_of_another_program_is_refused(tmp_path):
    path = tmp_path / "b.onnx"
    path.write_bytes(pixel_graph().SerializeToString())
    with pytest.raises(BundleRefused, match="without a hyperscene manifest"):
        load_bundle(path)


@pytest.mark.parametrize("manifest", ["{not json", "[]", "[" * 100_000, '{"format_version": 1e400}'])
def test_a_manifest_that_cannot_be_read_is_refused(tmp_path, manifest):
    write_with(tmp_path / "b.onnx", pixel_graph(), manifest)
    with pytest.raises(BundleRefused, match="cannot be read"):
        load_bundle(tmp_path / "b.onnx")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"band_mean": None}, "band_mean"),
        ({"class_names": []}, "class_names"),
        ({"class_colors": ["#102030"]}, "1 colours for 3 classes"),
        ({"wavelengths_nm": [450.0]}, "1 values for 5 bands"),
        ({"band_std": [0.1, 0.1, 0.0, 0.1, 0.1]}, "above zero"),
        ({"head": "sideways"}, "head"),
        ({"check": {"seed": 1}}, "check"),
        ({"check": {"seed": -1, "rows": 3, "cols": 3, "centers": [[0, 0]], "probabilities": [[1]]}}, "cannot be run"),
        ({"check": {"seed": 1, "rows": 3, "cols": 3, "centers": [[9, 9]], "probabilities": [[1]]}}, "cannot be run"),
        (
            {"check": {"seed": 1, "rows": 3, "cols": 3, "centers": [[0, 0]], "probabilities": [[1], 2]}},
            "cannot be run",
        ),
    ],
)
def test_an_invalid_manifest_is_refused_with_the_field(tmp_path, change, reason):
    graph = pixel_graph()
    manifest = json.loads(describe(graph).model_dump_json()) | change
    write_with(tmp_path / "b.onnx", graph, json.dumps(manifest))
    with pytest.raises(BundleRefused, match=reason):
        load_bundle(tmp_path / "b.onnx")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"class_names": ["a", "b"], "class_colors": ["#000000"] * 2}, "has 3 classes, its manifest 2"),
        ({"head": "token"}, "output dimensions"),
        (
            {"band_mean": [0.1], "band_std": [1.0], "nodata_fill": [0.1], "wavelengths_nm": None},
            "has 5 bands, its manifest 1",
        ),
    ],
)
def test_a_manifest_of_another_graph_is_refused(tmp_path, change, reason):
    path = write_bundle(tmp_path / "b.onnx", **change)
    with pytest.raises(BundleRefused, match=reason):
        load_bundle(path)


def test_graphs_that_differ_in_weights_only_have_one_structure():
    first, again, wider = (
        read_onnx(pixel_graph(bands, seed=seed).SerializeToString()).structure
        for bands, seed in ((20, 0), (20, 1), (21, 0))
    )
    assert first == again
    assert first != wider


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(BundleRefused, match=r"nowhere\.onnx cannot be read"):
        load_bundle(tmp_path / "nowhere.onnx")


def test_a_text_file_is_refused(tmp_path):
    path = tmp_path / "notes.onnx"
    path.write_text("hello")
    with pytest.raises(BundleRefused, match="not an ONNX file"):
        load_bundle(path)


@pytest.mark.parametrize(
    "module",
    [
        "hyperscene.model.bundle",
        "hyperscene.model.spectra",
        "hyperscene",
        "hyperscene.service",
        "hyperscene.service.cli",
        "hyperscene.service.mapping.pipeline",
        "hyperscene.service.commands.classify",
        "hyperscene.service.commands.inspect",
        "hyperscene.service.commands.bench",
        "hyperscene.training.data.synthetic",
    ],
)
def test_serving_does_not_import_torch(module):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_bundle_is_loaded_and_run_without_torch(bundle):
    code = (
        "import sys, numpy as np; from pathlib import Path; from hyperscene.model.bundle import load_bundle\n"
        f"b = load_bundle(Path({str(bundle)!r}))\n"
        "b.probabilities(np.zeros((2, 2, 5), np.float32), np.array([[0, 0]]))\n"
        "sys.exit('torch' in sys.modules or 'onnx' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_deeply_nested_manifest_is_refused(tmp_path):
    path = write_bundle(tmp_path / "b.onnx")
    graph = onnx.load(path)
    next(entry for entry in graph.metadata_props if entry.key == MANIFEST_KEY).value = "[" * 100_000
    onnx.save(graph, path)
    with pytest.raises(BundleRefused, match="was edited and cannot be read: export the bundle again"):
        load_bundle(path)


def test_a_file_whose_weights_are_in_another_file_is_found(tmp_path):
    whole = pixel_graph()
    assert not has_external_data(whole.SerializeToString())
    onnx.save(pixel_graph(), tmp_path / "b.onnx", save_as_external_data=True, location="weights", size_threshold=0)
    assert has_external_data((tmp_path / "b.onnx").read_bytes())
    inside = onnx.load(tmp_path / "b.onnx", load_external_data=False).graph.initializer[0]
    node = onnx.helper.make_node("Constant", [], ["unused"], value=inside)
    whole.graph.node.append(node)  # an engine follows attributes, too
    assert has_external_data(whole.SerializeToString())
