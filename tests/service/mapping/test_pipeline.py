"""Maps do not depend on strips, threads or batches, and agree with the network."""

import json
import os
import resource
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import rasterio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_info

from hyperscene.errors import (
    BandsMissing,
    InferenceFailed,
    OptionsUnusable,
    OutputUnwritable,
    SceneUnreadable,
    StorageFull,
)
from hyperscene.model.bundle import Bundle, load_bundle
from hyperscene.service.mapping import output as output_module
from hyperscene.service.mapping import pipeline, rasters, strip_mapper
from hyperscene.service.mapping.band_view import PixelRows
from hyperscene.service.mapping.classify import BEFORE_STRIPS, MapProgress, RunControl
from hyperscene.service.mapping.engines import CpuEngine, make_engine
from hyperscene.service.mapping.options import MapOptions
from hyperscene.service.mapping.output import RESULTS
from hyperscene.service.mapping.pipeline import map_scene
from hyperscene.service.mapping.prefetch import Cancelled
from hyperscene.service.mapping.rasters import RASTERS
from hyperscene.service.mapping.scenes import open_scene
from hyperscene.service.mapping.strip_mapper import StripMapper, plan_scene
from hyperscene.training.evaluate import ArraySource
from tests.bundles import write_bundle, write_patch_bundle
from tests.command_line import cli_command
from tests.scenes import quadrants, spectra_of, write_tif

NM = np.linspace(450, 900, 5)


@pytest.fixture(scope="module")
def small_bundles(tmp_path_factory) -> "SmallBundles":
    """Bundles of all heads with patches of 8 pixels: even small scenes have edges, interior and gaps."""
    folder = tmp_path_factory.mktemp("bundles")
    return SmallBundles(
        (head, load_bundle(write_patch_bundle(folder / f"{head}.onnx", patch_px=8, head=head)))
        for head in ("pooled", "centre", "token")
    )


class SmallBundles(dict[str, Bundle]):
    """Short in reports of hypothesis."""

    def __repr__(self) -> str:
        return "the small bundles"


def random_pixels(rows: int, cols: int, seed: int = 0, share_valid: float = 1.0) -> PixelRows:
    generator = np.random.default_rng(seed)
    cube = generator.uniform(0.05, 0.9, (rows, cols, 5)).astype(np.float32)
    valid = generator.random((rows, cols)) < share_valid
    cube[~valid] = 0.3
    return PixelRows(0, cube, valid)


def map_pixels(bundle: Bundle, pixels: PixelRows, options: MapOptions, batch: int = 4, threads: int = 1) -> np.ndarray:
    """Probabilities (rows, cols, classes), mapped as a whole."""
    engine = make_engine(bundle, "cpu", threads, batch)
    rows, cols = pixels.valid.shape
    options = options.settled(bundle.manifest, cols)
    plan = plan_scene(rows, cols, bundle.manifest, options, engine.batch)
    mapper = StripMapper(engine, bundle.manifest, plan, options.blend)
    strips = list(mapper.map_source(ArraySource(pixels), plan.strips))
    np.testing.assert_array_equal(np.concatenate([strip.valid for strip in strips]), pixels.valid)
    return np.concatenate([strip.probabilities for strip in strips])


def exact(bundle: Bundle, pixels: PixelRows) -> np.ndarray:
    """The network's prediction for the patch around every pixel of the reflected cube."""
    half = bundle.manifest.patch_px // 2
    rows, cols = pixels.valid.shape
    padded = pixels.cube
    for axis in (0, 1):  # numpy reflects an axis of one pixel only by repeating it
        width = [(half, half) if a == axis else (0, 0) for a in range(3)]
        padded = np.pad(padded, width, mode="reflect" if pixels.cube.shape[axis] > 1 else "edge")
    centers = np.argwhere(np.ones((rows, cols), bool)) + half
    return bundle.probabilities(padded, centers).reshape(rows, cols, *bundle.session.get_outputs()[0].shape[1:])


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (7, 3), (8, 8), (21, 13), (33, 40)])
@pytest.mark.parametrize("head", ["pooled", "centre"])
def test_stride_1_without_blending_is_the_network_pixel_by_pixel(small_bundles, head, size):
    pixels = random_pixels(*size)
    found = map_pixels(small_bundles[head], pixels, MapOptions(1, "none", strip_px=5))
    np.testing.assert_allclose(found, exact(small_bundles[head], pixels), rtol=0, atol=1e-6)


def test_a_token_bundle_without_blending_uses_the_centre_token(small_bundles):
    pixels = random_pixels(19, 14)
    found = map_pixels(small_bundles["token"], pixels, MapOptions(1, "none"))
    expected = exact(small_bundles["token"], pixels)[:, :, 4, 4]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def blend_by_hand(predictions: np.ndarray, pixels: PixelRows, stride: int, blend: str, half: int) -> np.ndarray:
    """The definition of blending, vote by vote; every centre is in the middle of its cell."""
    rows, cols = pixels.valid.shape
    unit = pixels.cube / np.linalg.norm(pixels.cube, axis=-1, keepdims=True)
    padded = np.pad(unit, ((1, 1), (1, 1), (0, 0)))
    down = padded[:-2] + 2 * padded[1:-1] + padded[2:]
    smooth = down[:, :-2] + 2 * down[:, 1:-1] + down[:, 2:]
    smooth /= np.linalg.norm(smooth, axis=-1, keepdims=True)
    total, weights = np.zeros((rows, cols, predictions.shape[-1])), np.zeros((rows, cols, 1))
    for top in range(0, rows, stride):
        for left in range(0, cols, stride):
            row, col = min(top + stride // 2, rows - 1), min(left + stride // 2, cols - 1)
            for r in range(max(0, row - half), min(rows, row + half)):
                for c in range(max(0, col - half), min(cols, col + half)):
                    weight = (1 - abs(r - row) / (half + 1)) * (1 - abs(c - col) / (half + 1))
                    if blend == "angle":
                        sigma = 0.04 + 0.01 * stride
                        weight *= np.exp((smooth[r, c] @ smooth[row, col] - 1) / sigma**2) + 1e-6
                    vote = predictions[row, col]
                    total[r, c] += weight * (vote if vote.ndim == 1 else vote[r - row + half, c - col + half])
                    weights[r, c] += weight
    return total / weights


@pytest.mark.parametrize("blend", ["linear", "angle"])
@pytest.mark.parametrize("stride", [1, 2, 4])
@pytest.mark.parametrize("size", [(21, 13), (8, 17), (3, 2)])
def test_blended_maps_follow_the_definition(small_bundles, size, stride, blend):
    pixels = random_pixels(*size)
    expected = blend_by_hand(exact(small_bundles["pooled"], pixels), pixels, stride, blend, half=4)
    found = map_pixels(small_bundles["pooled"], pixels, MapOptions(stride, blend, strip_px=6))
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("stride", [1, 2, 4, 8])
@pytest.mark.parametrize("blend", ["linear", "angle"])
def test_angle_and_linear_are_the_same_for_tokens(small_bundles, stride, blend):
    pixels = random_pixels(22, 19)
    expected = blend_by_hand(exact(small_bundles["token"], pixels), pixels, stride, "linear", half=4)
    found = map_pixels(small_bundles["token"], pixels, MapOptions(stride, blend, strip_px=7))
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6)


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    size=st.tuples(st.integers(1, 40), st.integers(1, 30)),
    stride=st.sampled_from([1, 2, 4, 8]),
    blend=st.sampled_from(["angle", "linear", "none"]),
    head=st.sampled_from(["pooled", "centre", "token"]),
    strips_px=st.tuples(st.integers(1, 41), st.integers(1, 41)),
    share_valid=st.sampled_from([0.0, 0.05, 0.5, 0.97, 1.0]),
    seed=st.integers(0, 5),
)
def test_every_valid_pixel_gets_a_class_for_any_strip_height(
    small_bundles, size, stride, blend, head, strips_px, share_valid, seed
):
    if blend == "none":
        stride = 1
    if stride == 8 and head != "token":
        stride = 4
    pixels = random_pixels(*size, seed, share_valid)
    one, other = (
        map_pixels(small_bundles[head], pixels, MapOptions(stride, blend, strip_px=height), threads=threads)
        for height, threads in zip(strips_px, (1, 3), strict=True)
    )
    np.testing.assert_array_equal(one[pixels.valid], other[pixels.valid])
    np.testing.assert_allclose(one[pixels.valid].sum(axis=-1), 1, atol=1e-5)


@pytest.mark.parametrize("head", ["pooled", "token"])
@pytest.mark.parametrize("blend", ["angle", "none"])
def test_a_strip_mapped_alone_has_the_same_bytes(small_bundles, head, blend):
    bundle, pixels = small_bundles[head], random_pixels(50, 23, share_valid=0.9)
    options = MapOptions(1 if blend == "none" else 4, blend, strip_px=12).settled(bundle.manifest, 23)
    whole = map_pixels(bundle, pixels, options)
    engine = make_engine(bundle, "cpu", 2, 4)
    plan = plan_scene(50, 23, bundle.manifest, options, engine.batch)
    for strip in reversed(plan.strips):
        mapper = StripMapper(engine, bundle.manifest, plan, options.blend)
        (alone,) = mapper.map_source(ArraySource(pixels), [strip])
        np.testing.assert_array_equal(alone.probabilities, whole[strip.top : strip.bottom])


@pytest.mark.parametrize("batch", [1, 7, 16, 100])
def test_another_batch_size_changes_probabilities_by_rounding_only(small_bundles, batch):
    pixels = random_pixels(30, 31, share_valid=0.8)
    one = map_pixels(small_bundles["pooled"], pixels, MapOptions(2, "angle"), batch=4)
    other = map_pixels(small_bundles["pooled"], pixels, MapOptions(2, "angle"), batch=batch)
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)


def test_cells_without_data_are_not_classified(small_bundles):
    bundle, pixels = small_bundles["pooled"], random_pixels(32, 32)
    pixels.valid[:, 12:] = False
    engine = make_engine(bundle, "cpu", 1, 4)
    options = MapOptions(4, "linear").settled(bundle.manifest, 32)
    plan = plan_scene(32, 32, bundle.manifest, options, engine.batch)
    mapper = StripMapper(engine, bundle.manifest, plan, options.blend)
    strips = list(mapper.map_source(ArraySource(pixels), plan.strips))
    assert sum(strip.patches for strip in strips) == 8 * 3


@pytest.mark.slow
def test_torch_and_the_map_agree_pixel_by_pixel(tmp_path):
    torch = pytest.importorskip("torch")
    from hyperscene.model.architecture import ModelConfig, SceneClassifier, Transformer
    from hyperscene.training.fit.export import export_graph
    from hyperscene.training.fit.export import write_bundle as write_trained
    from hyperscene.training.fit.network import Fitted
    from tests.scenes import labelled_scene

    scene = labelled_scene(rows=21, cols=19)
    for head in ("pooled", "centre"):
        network = Transformer(ModelConfig(6, 4, head=head, width=16, depth=2, mlp_width=16)).eval()
        bundle = write_trained(
            export_graph(Fitted(network), scene), Fitted(network), scene, "t", {}, tmp_path / f"{head}.onnx"
        )
        classifier = SceneClassifier(network, torch.tensor(scene.band_mean), torch.tensor(scene.band_std)).eval()
        with torch.inference_mode():
            every = torch.from_numpy(np.argwhere(np.ones((21, 19), bool)))
            expected = classifier(torch.from_numpy(scene.cube), every).numpy().reshape(21, 19, 4)
        for device in ("cpu", "openvino"):
            engine = make_engine(bundle, device, 2, 16)
            options = MapOptions(1, "none").settled(bundle.manifest, 19)
            plan = plan_scene(21, 19, bundle.manifest, options, engine.batch)
            pixels = PixelRows(0, scene.cube, scene.valid)
            strips = StripMapper(engine, bundle.manifest, plan, "none").map_source(ArraySource(pixels), plan.strips)
            found = np.concatenate([strip.probabilities for strip in strips])
            np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6)


def small_scene(path: Path, rows: int = 60, cols: int = 37, **options) -> Path:
    labels = quadrants(rows, cols)
    values = spectra_of(labels, 5)
    return write_tif(path, values, wavelengths_nm=NM, **options)


def run_map(tmp_path: Path, scene: Path, options: MapOptions | None = None, name: str = "out", **more):
    bundle = load_bundle(write_patch_bundle(tmp_path / "b.onnx"))
    engine = more.pop("engine", None) or make_engine(bundle, "cpu", 2, 16)
    output = tmp_path / name
    return output, map_scene(open_scene(scene), bundle, engine, output, options or MapOptions(), **more)


def test_seven_results_have_the_georeference_of_the_scene(tmp_path):
    scene = small_scene(tmp_path / "s.tif")
    output, summary = run_map(tmp_path, scene)
    assert sorted(path.name for path in output.iterdir()) == sorted(RESULTS)
    with rasterio.open(scene) as original:
        for name in ("classes.tif", "probabilities.tif", "confidence.tif"):
            with rasterio.open(output / name) as raster:
                assert (raster.shape, raster.crs, raster.transform) == (
                    original.shape,
                    original.crs,
                    original.transform,
                )
    assert json.loads((output / "summary.json").read_text()) == summary


def test_rasters_agree_with_each_other_and_with_the_summary(tmp_path):
    values = spectra_of(quadrants(40, 30), 5)
    values[:10, :12] = -1
    scene = write_tif(tmp_path / "s.tif", values, wavelengths_nm=NM, nodata=-1)
    output, summary = run_map(tmp_path, scene, MapOptions(probability_type="float32"))
    classes = rasterio.open(output / "classes.tif").read(1)
    probabilities = rasterio.open(output / "probabilities.tif").read()
    confidence = rasterio.open(output / "confidence.tif").read(1)
    hole = np.zeros((40, 30), bool)
    hole[:10, :12] = True
    assert (classes[hole] == 0).all()
    assert np.isnan(probabilities[:, hole]).all()
    assert np.isnan(confidence[hole]).all()
    np.testing.assert_array_equal(classes[~hole], probabilities[:, ~hole].argmax(axis=0) + 1)
    np.testing.assert_array_equal(confidence[~hole], probabilities[:, ~hole].max(axis=0))
    np.testing.assert_allclose(probabilities[:, ~hole].sum(axis=0), 1, atol=1e-5)
    assert summary["no_data_pixels"] == 120
    assert [entry["pixels"] for entry in summary["classes"]] == [int((classes == value).sum()) for value in (1, 2, 3)]


def test_the_same_bytes_for_every_strip_height_and_number_of_threads(tmp_path):
    scene = small_scene(tmp_path / "s.tif")
    bundle = load_bundle(write_patch_bundle(tmp_path / "b.onnx"))
    seen = []
    for strip_px, threads in ((1, 1), (13, 3), (0, 2)):
        engine = make_engine(bundle, "openvino", threads)
        output = tmp_path / f"{strip_px}"
        map_scene(open_scene(scene), bundle, engine, output, MapOptions(strip_px=strip_px))
        seen.append([(output / name).read_bytes() for name in RESULTS[:5]])
    assert seen[0] == seen[1] == seen[2]


def test_a_scene_without_a_valid_pixel_is_mapped_to_class_0_with_a_warning(tmp_path):
    values = np.full((20, 20, 5), -1, np.float32)
    scene = write_tif(tmp_path / "s.tif", values, wavelengths_nm=NM, nodata=-1)
    output, summary = run_map(tmp_path, scene)
    assert not rasterio.open(output / "classes.tif").read(1).any()
    assert "no valid pixel" in " ".join(summary["warnings"])
    assert summary["mean_confidence"] is None
    assert summary["patches"] == 0


def test_a_scene_in_another_unit_is_mapped_with_the_likely_factor(tmp_path):
    values = (spectra_of(quadrants(20, 20), 5) * 10_000).astype(np.float32)
    _, summary = run_map(tmp_path, write_tif(tmp_path / "s.tif", values, wavelengths_nm=NM))
    assert "divide it by 10000" in " ".join(summary["warnings"])


def test_a_scene_without_wavelengths_or_cover_is_refused_and_leaves_nothing(tmp_path):
    for number, nm in enumerate((None, np.linspace(1500, 2400, 5))):
        scene = write_tif(tmp_path / f"{number}.tif", spectra_of(quadrants(9, 9), 5), wavelengths_nm=nm)
        with pytest.raises(BandsMissing, match="450 to 900"):
            run_map(tmp_path, scene)
    assert not (tmp_path / "out").exists()


class FailingSession:
    """Works for a few calls and then fails."""

    def __init__(self, session, calls: int, then) -> None:
        self._session, self._calls, self._then = session, calls, then

    def run(self, names, inputs):
        self._calls -= 1
        if self._calls < 0:
            return [self._then(inputs)]
        return self._session.run(names, inputs)

    def get_providers(self):
        return self._session.get_providers()


def fail(inputs):
    raise RuntimeError("device lost")


def not_a_number(inputs):
    return np.full((len(inputs["centers"]), 3), np.nan, np.float32)


@pytest.mark.parametrize(("then", "words"), [(fail, "device lost"), (not_a_number, "NaN or infinite")])
def test_an_engine_that_fails_midway_is_reported_and_leaves_nothing(tmp_path, then, words):
    scene = small_scene(tmp_path / "s.tif")
    bundle = load_bundle(write_patch_bundle(tmp_path / "b.onnx"))
    engine = CpuEngine(FailingSession(bundle.session, 3, then), 2, 4)
    with pytest.raises(InferenceFailed, match=words):
        run_map(tmp_path, scene, engine=engine)
    assert not (tmp_path / "out").exists()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("hyperscene")]


def test_an_engine_that_fails_late_is_not_a_cancellation(tmp_path):
    """Earlier strips are still being blended when the stages are told to stop."""
    scene = small_scene(tmp_path / "s.tif", rows=640, cols=160)
    bundle = load_bundle(write_patch_bundle(tmp_path / "b.onnx"))
    for calls in range(60, 160, 10):
        engine = CpuEngine(FailingSession(bundle.session, calls, fail), 2, 4)
        with pytest.raises(InferenceFailed, match="device lost"):
            map_scene(open_scene(scene), bundle, engine, tmp_path / "out", MapOptions(strip_px=16))


def test_a_scene_found_damaged_midway_is_refused_and_leaves_nothing(tmp_path):
    values = spectra_of(quadrants(300, 40), 5).round(1)  # few values: noise is stored as it is, and any bytes will do
    scene = write_tif(tmp_path / "s.tif", values, wavelengths_nm=NM, compress="deflate", tiled=True,
                      blockxsize=16, blockysize=16)  # fmt: skip
    opened = open_scene(scene)
    content = bytearray(scene.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 3000] = bytes(3000)
    scene.write_bytes(content)
    bundle = load_bundle(write_patch_bundle(tmp_path / "b.onnx"))
    with pytest.raises(SceneUnreadable, match="damaged"):
        map_scene(opened, bundle, make_engine(bundle, "cpu"), tmp_path / "out", MapOptions(strip_px=16))
    assert not (tmp_path / "out").exists()


def test_cancelling_takes_effect_within_a_second_and_leaves_nothing(tmp_path):
    scene = small_scene(tmp_path / "s.tif", rows=400, cols=200)
    bundle = load_bundle(write_patch_bundle(tmp_path / "b.onnx"))

    def slowly(inputs):
        time.sleep(0.05)
        return np.full((len(inputs["centers"]), 3), 1 / 3, np.float32)

    engine = CpuEngine(FailingSession(bundle.session, 0, slowly), 2, 4)
    cancelled, stopped = threading.Event(), []

    def ask_to_stop(now):
        if not stopped and now.cells_done > 40:
            stopped.append(time.monotonic())
            cancelled.set()

    with pytest.raises(Cancelled):
        run_map(tmp_path, scene, MapOptions(strip_px=16), engine=engine, control=RunControl(ask_to_stop, cancelled))
    assert time.monotonic() - stopped[0] < 1
    assert not (tmp_path / "out").exists()


def test_a_map_that_is_cancelled_while_its_cogs_are_made_ends_with_them(tmp_path, monkeypatch):
    """GDAL's copy ends too: it would take time from the next job, and keep its files on the disk."""
    cancelled, ended = threading.Event(), []

    def optimise_slowly(folder, name, threads):
        with rasters.plain_name(folder, name).open("rb") as plain:
            shutil.rmtree(folder)  # as the server does when a job is dismissed
            cancelled.set()
            while os.fstat(plain.fileno()).st_size:
                time.sleep(0.01)
        try:
            rasters.optimise(folder, name, threads)
        except Exception as error:
            ended.append(error)
            raise

    monkeypatch.setattr(pipeline, "optimise", optimise_slowly)
    with pytest.raises(Cancelled):
        run_map(tmp_path, small_scene(tmp_path / "s.tif"), control=RunControl(cancelled=cancelled))
    assert len(ended) == 1
    assert not (tmp_path / "out").exists()


def test_batches_in_flight_are_reported_whenever_they_change(tmp_path):
    reported = []
    control = RunControl(report_in_flight=lambda now: reported.append({*now}))
    run_map(tmp_path, small_scene(tmp_path / "s.tif"), control=control)
    # 15 x 10 cells, in batches of 4 x 4
    starts = {40 * row + 4 * col * cell_rows for row, cell_rows in enumerate((4, 4, 4, 3)) for col in range(3)}
    assert set.union(*reported) == starts | {BEFORE_STRIPS, 15 * 10}
    assert {len(now) for now in reported} <= {1, 2}  # never none: the last batch stays
    assert (reported[0], reported[-1]) == ({BEFORE_STRIPS}, {15 * 10})


def test_progress_never_goes_back(tmp_path):
    seen = []
    run_map(tmp_path, small_scene(tmp_path / "s.tif"), control=RunControl(seen.append))
    assert [now.cells_done for now in seen] == sorted(now.cells_done for now in seen)
    assert [now.patches_total for now in seen] == sorted((now.patches_total for now in seen), reverse=True)
    assert seen[-1] == MapProgress(15 * 10, 15 * 10, 15 * 10)


def test_a_resumed_run_ends_with_as_many_patches_as_the_summary(tmp_path):
    values = spectra_of(quadrants(90, 37), 5)
    values[:30, :20] = values[50:60] = -1
    scene = write_tif(tmp_path / "s.tif", values, wavelengths_nm=NM, nodata=-1)
    cancelled, seen, options, checkpoint = threading.Event(), [], MapOptions(strip_px=8), tmp_path / "strips"

    def stop_late(now):
        if now.cells_done > 0.7 * now.cells_total:
            cancelled.set()

    with pytest.raises(Cancelled):
        run_map(tmp_path, scene, options, control=RunControl(stop_late, cancelled, checkpoint))
    _, summary = run_map(tmp_path, scene, options, control=RunControl(seen.append, checkpoint=checkpoint))
    assert seen[0].cells_done > 0
    assert seen[-1].patches_done == seen[-1].patches_total == summary["patches"] < seen[-1].cells_total


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (MapOptions(3), "1, 2, 4, 8 for patches of 16"),
        (MapOptions(16), "not 16"),
        (MapOptions(4, "none"), "needs stride 1"),
        (MapOptions(4, "cubic"), "angle, linear, none"),
        (MapOptions(strip_px=-1), "1 pixel or more"),
        (MapOptions(probability_type="float16"), "uint8, float32"),
    ],
)
def test_invalid_options_are_refused(tmp_path, options, words):
    with pytest.raises(OptionsUnusable, match=words):
        run_map(tmp_path, small_scene(tmp_path / "s.tif"), options)


def test_too_little_disk_is_refused_at_the_start(tmp_path, monkeypatch):
    class Usage:
        free = 1000

    monkeypatch.setattr(output_module.shutil, "disk_usage", lambda folder: Usage)
    with pytest.raises(StorageFull, match="free the disk"):
        run_map(tmp_path, small_scene(tmp_path / "s.tif"))
    assert not (tmp_path / "out").exists()


def test_an_output_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "out").write_text("mine")
    with pytest.raises(OutputUnwritable, match="choose another folder"):
        run_map(tmp_path, small_scene(tmp_path / "s.tif"))
    assert (tmp_path / "out").read_text() == "mine"


def test_other_files_in_the_output_stay(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    run_map(tmp_path, small_scene(tmp_path / "s.tif"))
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"


def test_resampled_bands_give_the_same_bytes_for_every_strip_height(tmp_path):
    nm = np.linspace(440, 910, 23)
    values = spectra_of(quadrants(45, 20), 23)
    values[4:7, 3] = np.nan
    scene = write_tif(tmp_path / "s.tif", values, wavelengths_nm=nm)
    bundle = load_bundle(write_bundle(tmp_path / "b.onnx"))
    seen = []
    for strip_px in (1, 17, 0):
        output = tmp_path / str(strip_px)
        map_scene(open_scene(scene), bundle, make_engine(bundle, "cpu"), output, MapOptions(strip_px=strip_px))
        seen.append([(output / name).read_bytes() for name in RESULTS[:3]])
    assert seen[0] == seen[1] == seen[2]


@pytest.mark.parametrize("name", ["classes.tif", "confidence.tif"])
def test_a_scene_is_never_overwritten_by_its_own_map(tmp_path, name):
    (tmp_path / "out").mkdir()
    scene = small_scene(tmp_path / "out" / name)
    before = scene.read_bytes()
    with pytest.raises(OutputUnwritable, match="is the scene itself"):
        run_map(tmp_path, scene)
    assert scene.read_bytes() == before


def test_a_folder_with_the_name_of_a_result_is_refused_at_the_start(tmp_path):
    (tmp_path / "out" / "preview.png").mkdir(parents=True)
    with pytest.raises(OutputUnwritable, match=r"preview\.png is a folder"):
        run_map(tmp_path, small_scene(tmp_path / "s.tif"))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["preview.png"]


def test_impossible_output_folders_are_refused(tmp_path):
    for name in ("x" * 300, "out/\udcff"):
        with pytest.raises(OutputUnwritable, match="choose another folder"):
            run_map(tmp_path, small_scene(tmp_path / "s.tif"), name=name)


def test_implausible_values_are_missing_data_with_a_warning(tmp_path):
    values = spectra_of(quadrants(30, 20), 5)
    values[3, 4] = -3.4e38
    output, summary = run_map(tmp_path, write_tif(tmp_path / "s.tif", values, wavelengths_nm=NM))
    assert rasterio.open(output / "classes.tif").read(1)[3, 4] == 0
    assert summary["no_data_pixels"] == 1
    assert "1 pixels hold values that no sensor measures" in " ".join(summary["warnings"])


def test_overlapping_maps_restore_the_threads_of_numpy(small_bundles):
    def threads() -> list[int]:
        return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]

    before = threads()
    with strip_mapper.one_blas_thread():
        with strip_mapper.one_blas_thread():
            assert set(threads()) == {1}
        assert set(threads()) == {1}
    assert threads() == before


@pytest.mark.parametrize("limit_kb", [4, 40, 60])
def test_a_disk_that_fills_up_is_reported_in_one_line(tmp_path, limit_kb):
    scene = small_scene(tmp_path / "s.tif", rows=200, cols=120)
    bundle = write_patch_bundle(tmp_path / "b.onnx")

    def little_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit_kb * 1024, limit_kb * 1024))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    command = cli_command("classify", scene, "-o", tmp_path / "out", "--bundle", bundle)
    done = subprocess.run(command, preexec_fn=little_room, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("hyperscene: the results cannot be written")
    assert not (tmp_path / "out").exists()


def test_large_rasters_have_the_same_bytes_for_every_strip_height_and_number_of_threads(tmp_path):
    scene = small_scene(tmp_path / "s.tif", rows=540, cols=300)
    bundle = load_bundle(write_patch_bundle(tmp_path / "b.onnx"))
    seen = []
    for strip_px, threads in ((37, 1), (0, 3)):
        output = tmp_path / str(strip_px)
        map_scene(
            open_scene(scene), bundle, make_engine(bundle, "cpu", threads), output, MapOptions(8, strip_px=strip_px)
        )
        seen.append([(output / name).read_bytes() for name in RESULTS[:5]])
    assert seen[0] == seen[1]


def test_absent_blocks_are_mapped_as_declared_missing_data_without_patches(tmp_path, small_bundles):
    bundle = small_bundles["pooled"]
    values = spectra_of(quadrants(96, 40), 5)
    values[16:80] = 0
    options, engine = MapOptions(stride_px=2, strip_px=16), make_engine(bundle, "cpu", 1, 4)
    maps = {}
    for name, more in {"absent": {"SPARSE_OK": True}, "declared": {"nodata": 0}}.items():
        path = write_tif(tmp_path / f"{name}.tif", values, wavelengths_nm=NM, blockysize=16, **more)
        summary = map_scene(open_scene(path), bundle, engine, tmp_path / name, options)
        maps[name] = summary["patches"], *((tmp_path / name / file).read_bytes() for file in RASTERS)
    assert maps["absent"] == maps["declared"]
    assert maps["absent"][0] == 32 / 2 * 40 / 2
