"""Checkpoints: strips and predictions as files, from which a later run continues."""

import numpy as np
import pytest

from hyperscene.model.bundle import load_bundle
from hyperscene.service.mapping import pipeline
from hyperscene.service.mapping.classify import RunControl
from hyperscene.service.mapping.engines import make_engine
from hyperscene.service.mapping.options import MapOptions
from hyperscene.service.mapping.pipeline import map_scene
from hyperscene.service.mapping.prefetch import Cancelled
from hyperscene.service.mapping.scenes import open_scene
from hyperscene.service.mapping.strips import Checkpoint, MappedStrip
from tests.bundles import write_patch_bundle
from tests.scenes import write_tif

RASTERS = ("classes.tif", "probabilities.tif", "confidence.tif", "preview.png")


def a_strip(kind="uint8", top=16):
    generator = np.random.default_rng(0)
    probabilities = generator.dirichlet([1, 1, 1], (4, 5)).astype("float32")
    return MappedStrip(top, probabilities, generator.random((4, 5)) < 0.8, patches=7, absurd_pixels=2).stored(kind)


@pytest.mark.parametrize("kind", ["uint8", "float32"])
def test_a_saved_strip_is_loaded_unchanged(tmp_path, kind):
    strip = a_strip(kind)
    Checkpoint(tmp_path).save(3, strip)
    saved = Checkpoint(tmp_path).load(3)
    assert (saved.top, saved.patches, saved.absurd_pixels) == (16, 7, 2)
    assert saved.confidence_sum == strip.confidence_sum
    for name in ("classes", "probabilities", "confidence"):
        np.testing.assert_array_equal(getattr(saved, name), getattr(strip, name))
        assert getattr(saved, name).dtype == getattr(strip, name).dtype


@pytest.mark.parametrize("length", [0, 10, 400])
def test_a_truncated_strip_counts_as_missing(tmp_path, length):
    checkpoint = Checkpoint(tmp_path)
    checkpoint.save(0, a_strip())
    path = next(tmp_path.glob("*.npz"))
    path.write_bytes(path.read_bytes()[:length])
    assert checkpoint.load(0) is None
    assert not checkpoint.holds(0)


def test_a_strip_with_a_wrong_byte_counts_as_missing(tmp_path):
    checkpoint = Checkpoint(tmp_path)
    checkpoint.save(0, a_strip("float32"))
    path = next(tmp_path.glob("*.npz"))
    content = bytearray(path.read_bytes())
    position = content.index(b"probabilities.npy") + 300
    content[position] ^= 0xFF
    path.write_bytes(content)
    assert checkpoint.load(0) is None


@pytest.fixture
def setting(tmp_path):
    values = np.random.default_rng(1).uniform(0.1, 0.9, (90, 31, 5)).astype("float32")
    values[40:50] = np.nan
    values[3, 4] = 3e38  # no sensor measures this
    scene = open_scene(write_tif(tmp_path / "scene.tif", values, wavelengths_nm=np.linspace(450, 900, 5)))
    bundle = load_bundle(write_patch_bundle(tmp_path / "patch.onnx"))
    return scene, bundle, make_engine(bundle, "cpu", 1)


def mapped(setting, output, checkpoint=None, stop_after=None, **options):
    """The summary and the bytes of a map; stopped after some strips it raises Cancelled."""
    scene, bundle, engine = setting
    saved = []

    class Stopping(Checkpoint):
        def save(self, index, strip):
            if stop_after is not None and len(saved) == stop_after:
                raise Cancelled
            super().save(index, strip)
            saved.append(index)

    original, pipeline.Checkpoint = pipeline.Checkpoint, Stopping
    try:
        summary = map_scene(
            scene, bundle, engine, output, MapOptions(**{"strip_px": 16} | options), RunControl(checkpoint=checkpoint)
        )
    finally:
        pipeline.Checkpoint = original
    return summary, {name: (output / name).read_bytes() for name in RASTERS}, saved


@pytest.mark.parametrize("stop_after", [0, 1, 3, 5])
@pytest.mark.parametrize("options", [{"stride_px": 4}, {"stride_px": 1, "blend": "none"}], ids=["blended", "exact"])
def test_a_resumed_run_gives_the_same_bytes(setting, tmp_path, stop_after, options):
    whole, expected, _ = mapped(setting, tmp_path / "whole", **options)
    with pytest.raises(Cancelled):
        mapped(setting, tmp_path / "map", tmp_path / "strips", stop_after, **options)
    summary, found, saved = mapped(setting, tmp_path / "map", tmp_path / "strips", **options)
    assert found == expected
    assert saved == list(range(stop_after, 6))  # nothing finished is mapped again
    for name in ("patches", "warnings", "classes", "mean_confidence"):
        assert summary[name] == whole[name]


def test_a_resumed_run_of_a_token_bundle_gives_the_same_bytes(setting, tmp_path):
    scene, _, _ = setting
    bundle = load_bundle(write_patch_bundle(tmp_path / "token.onnx", head="token"))
    token = scene, bundle, make_engine(bundle, "cpu", 1)
    _, expected, _ = mapped(token, tmp_path / "whole", stride_px=8)
    with pytest.raises(Cancelled):
        mapped(token, tmp_path / "map", tmp_path / "strips", 2, stride_px=8)
    assert list((tmp_path / "strips").rglob("*.answer"))
    _, found, _ = mapped(token, tmp_path / "map", tmp_path / "strips", stride_px=8)
    assert found == expected


def test_saved_predictions_are_not_computed_again(setting, tmp_path):
    scene, bundle, engine = setting
    with pytest.raises(Cancelled):
        mapped(setting, tmp_path / "map", tmp_path / "strips", 1)
    saved = len(list((tmp_path / "strips").rglob("*.answer")))
    assert saved > 0
    batches = []

    class Counting:
        device, provider, callers, batch = engine.device, engine.provider, engine.callers, engine.batch

        def probabilities(self, cube, centers):
            batches.append(len(centers))
            return engine.probabilities(cube, centers)

    mapped((scene, bundle, Counting()), tmp_path / "map", tmp_path / "strips")
    resumed = len(batches)
    mapped((scene, bundle, Counting()), tmp_path / "fresh")
    assert resumed + saved <= len(batches) - resumed
    assert not list((tmp_path / "strips").rglob("*.answer"))  # every strip is finished


def test_a_missing_strip_is_mapped_alone(setting, tmp_path):
    _, expected, _ = mapped(setting, tmp_path / "map", tmp_path / "strips")
    next((tmp_path / "strips").rglob("000002.npz")).unlink()
    _, found, saved = mapped(setting, tmp_path / "map", tmp_path / "strips")
    assert found == expected
    assert saved == [2]


def test_strips_of_other_options_are_not_used(setting, tmp_path):
    mapped(setting, tmp_path / "map", tmp_path / "strips", stride_px=8)
    _, expected, _ = mapped(setting, tmp_path / "whole", stride_px=4)
    _, found, saved = mapped(setting, tmp_path / "map", tmp_path / "strips", stride_px=4)
    assert found == expected
    assert len(saved) == 6
