"""Report of a map, polygons, zones, and comparison of two maps."""

import json

import numpy as np
import pyogrio
import pytest
import rasterio
import shapely
from rasterio.transform import Affine

from hyperscene.errors import MapUnusable
from hyperscene.service.assessment import finished_map
from hyperscene.service.assessment.comparison import UNCHANGED, change_value, compare_maps
from hyperscene.service.assessment.finished_map import open_map
from hyperscene.service.assessment.map_figure import map_figure
from hyperscene.service.assessment.samples import make_answers
from hyperscene.service.assessment.vector_files import read_shapes, write_layer
from hyperscene.service.assessment.vectors import VectorOptions, merge_small, outlines, simplify, write_vectors
from hyperscene.service.assessment.zones import zone_records
from hyperscene.service.mapping.metadata import write_preview
from tests.command_line import refusal, run_here
from tests.maps import NAMES, truth_and_map, write_map
from tests.scenes import GRID

ROTATED = Affine.translation(380_000, 5_820_000) @ Affine.rotation(20) @ Affine.scale(30, -30)


def smooth_classes(rows=150, cols=130, classes=4, seed=0):
    """Classes in blobs: the largest of smoothed noises."""
    noise = np.random.default_rng(seed).normal(size=(classes, rows, cols))
    for axis in (1, 2):
        for _ in range(12):
            noise = (np.roll(noise, 1, axis) + noise + np.roll(noise, -1, axis)) / 3
    return noise.argmax(axis=0) + 1


@pytest.fixture(scope="module")
def blobs(tmp_path_factory):
    classes = smooth_classes()
    classes[:9, :20] = 0
    finished = write_map(tmp_path_factory.mktemp("map") / "blobs", classes)
    write_preview(finished.path.with_name("preview.png"), finished.path)
    return finished


def read_raster(path):
    with rasterio.open(path) as raster:
        return raster.read(1)


class TestVectors:
    def test_polygons_share_their_edges_and_leave_no_gaps(self, blobs):
        classes = read_raster(blobs.path)
        polygons, values = outlines(merge_small(classes, 6))
        simple = simplify(polygons, 2.0)
        assert shapely.coverage_is_valid(simple)
        assert shapely.area(shapely.union_all(simple)) == pytest.approx((classes > 0).sum(), rel=0.01)
        assert shapely.get_num_coordinates(simple).sum() < 0.6 * shapely.get_num_coordinates(polygons).sum()
        assert set(values.tolist()) == {1, 2, 3, 4}

    def test_areas_below_the_smallest_join_a_neighbour_and_missing_data_stays(self, blobs):
        classes = read_raster(blobs.path)
        merged = merge_small(classes, 30)
        assert np.array_equal(merged == 0, classes == 0)
        polygons, _ = outlines(merged)
        assert shapely.area(polygons).min() >= 30

    def test_the_layer_has_names_colours_and_hectares_in_the_coordinates_of_the_map(self, blobs, tmp_path):
        count = write_vectors(blobs, tmp_path / "classes.gpkg", VectorOptions(1, 0))
        meta, _, geometries, columns = pyogrio.raw.read(tmp_path / "classes.gpkg")
        fields = dict(zip(meta["fields"], columns, strict=True))
        assert len(geometries) == count
        assert set(fields["name"]) == set(NAMES)
        for value, name in enumerate(NAMES, start=1):
            hectares = fields["hectares"][fields["name"] == name].sum()
            assert hectares == pytest.approx((read_raster(blobs.path) == value).sum() * 0.09)
        bounds = shapely.total_bounds(shapely.from_wkb(geometries))
        assert bounds.tolist() == [380_000, 5_820_000 - 150 * 30, 380_000 + 130 * 30, 5_820_000]


class TestZones:
    @pytest.fixture
    def zones(self, blobs, tmp_path):
        shapes = np.array([shapely.box(10, 20, 60, 80), shapely.box(100, 100, 400, 400), shapely.box(-9, -9, -1, -1)])
        placed = shapely.transform(shapes, lambda points: np.column_stack(GRID @ (points[:, 0], points[:, 1])))
        write_layer(tmp_path / "zones.gpkg", placed, {"name": np.array(["a", "b", "c"], object)}, blobs.crs)
        return tmp_path / "zones.gpkg"

    def test_a_zone_counts_the_pixels_whose_centre_it_contains(self, blobs, zones, monkeypatch):
        monkeypatch.setattr("hyperscene.service.assessment.zones.BLOCK_PIXELS", 700)
        first, second, third = zone_records(blobs, read_shapes(zones, blobs), None, "name")
        inside = read_raster(blobs.path)[20:80, 10:60]
        assert [entry["pixels"] for entry in first["classes"]] == [(inside == value).sum() for value in range(1, 5)]
        assert first["hectares"] == pytest.approx(60 * 50 * 0.09)
        assert second["pixels"] == 50 * 30
        assert (third["zone"], third["pixels"]) == ("c", 0)

    def test_a_zone_with_enough_checked_points_has_intervals(self, blobs, zones):
        generator = np.random.default_rng(1)
        pixels = np.unique(generator.integers((0, 20), (150, 130), (400, 2)), axis=0)
        classes = read_raster(blobs.path)[tuple(pixels.T)]
        answers = make_answers("plots", blobs, pixels, [NAMES[value - 1] for value in classes])
        first, _, third = zone_records(blobs, read_shapes(zones, blobs), answers)
        assert first["points"] >= 30
        assert third["estimates"] is None
        for entry, counted in zip(first["estimates"], first["classes"], strict=True):
            assert entry["area_hectares"]["low"] <= counted["hectares"] + 1e-6
            assert entry["area_hectares"]["high"] >= counted["hectares"] - 1e-6

    def test_the_command_writes_a_line_for_each_zone_and_class(self, blobs, zones, tmp_path):
        done = run_here("zones", blobs.path.parent, zones, "--zone-field", "name", "-o", tmp_path / "zones.csv")
        assert done.returncode == 0, done.stderr
        assert len((tmp_path / "zones.csv").read_text().splitlines()) == 1 + 3 * 4


class TestComparison:
    def test_transitions_are_counted_and_written(self, blobs, tmp_path, monkeypatch):
        monkeypatch.setattr(finished_map, "BLOCK_PIXELS", 40 * 130)
        classes = read_raster(blobs.path)
        changed = classes.copy()
        changed[100:120, 40:60] = 4
        changed[:, 100] = 0
        later = write_map(tmp_path / "later", changed, (*NAMES[:3], "wood"))
        found = compare_maps(blobs, later, tmp_path / "out")
        assert found.class_names == (*NAMES, "wood")
        assert found.pixels[0, 4] == ((classes == 1) & (changed == 4)).sum()
        assert found.pixels.sum() == ((classes > 0) & (changed > 0)).sum()
        assert found.hectares == pytest.approx(found.pixels * 0.09)
        written = read_raster(tmp_path / "out" / "changes.tif")
        assert (written[0, 30], written[5, 100]) == (UNCHANGED if classes[0, 30] != 4 else change_value(3, 4, 5), 0)
        assert (written == change_value(0, 4, 5)).sum() == found.pixels[0, 4]
        assert not any("shifted" in warning for warning in found.warnings())

    @pytest.mark.parametrize("shift", [(3, -2), (0, 1)])
    def test_a_shift_between_the_maps_is_found_and_warned_of(self, shift, tmp_path):
        classes = smooth_classes(330, 320)
        first = write_map(tmp_path / "first", classes[20:300, 20:300])
        moved = classes[20 - shift[0] : 300 - shift[0], 20 - shift[1] : 300 - shift[1]]
        found = compare_maps(first, write_map(tmp_path / "second", moved))
        assert (found.shift.rows_px, found.shift.cols_px) == pytest.approx(shift, abs=0.4)
        assert any(f"shifted by {found.shift.rows_px:+.1f} rows" in warning for warning in found.warnings())

    def test_maps_on_different_grids_are_compared_where_they_overlap(self, blobs, tmp_path):
        part = read_raster(blobs.path)[30:110, 25:105]
        moved = write_map(tmp_path / "part", part, transform=GRID @ Affine.translation(25, 30))
        found = compare_maps(blobs, moved)
        assert found.pixels.sum() == np.trace(found.pixels) == (part > 0).sum()
        assert found.is_resampled

    def test_maps_without_anything_in_common_are_refused(self, blobs, tmp_path):
        far = write_map(tmp_path / "far", np.ones((20, 20)), transform=GRID @ Affine.translation(900, 0))
        with pytest.raises(MapUnusable, match="no pixel in common"):
            compare_maps(blobs, far)
        plain = write_map(tmp_path / "plain", np.ones((20, 20)), crs=None, transform=None)
        with pytest.raises(MapUnusable, match="no coordinates that relate them"):
            compare_maps(blobs, plain)

    def test_the_command_writes_raster_document_and_page(self, blobs, tmp_path):
        later = write_map(tmp_path / "later", smooth_classes(seed=4))
        done = run_here("compare", blobs.path.parent, later.path.parent, "-o", tmp_path / "out", "--json")
        assert done.returncode == 0, done.stderr
        document = json.loads(done.stdout)
        assert document["changed_share"] > 0.5
        assert {path.name for path in (tmp_path / "out").iterdir()} == {"changes.tif", "changes.json", "changes.html"}


class TestReport:
    def test_a_map_without_a_checked_sample_says_that_its_areas_are_pixel_counts(self, blobs, tmp_path):
        done = run_here("report", blobs.path.parent, "-o", tmp_path)
        assert done.returncode == 0, done.stderr
        page = (tmp_path / "report.html").read_text()
        document = json.loads((tmp_path / "report.json").read_text())
        assert document["areas_are"] == "pixel counts, not an area estimate"
        assert "pixel counts, not an area estimate" in page
        assert document["sha256"]["classes.tif"] == blobs.sha256
        assert "<script" not in page

    def test_a_checked_map_has_its_estimates_in_the_report(self, tmp_path):
        truth, mapped = truth_and_map(120, 100)
        folder = write_map(tmp_path / "lake", mapped).path.parent
        assert run_here("assess", "sample", folder, "-o", tmp_path / "s.csv", "--total", 150, "--per-class", 20
                        ).returncode == 0  # fmt: skip
        head, *lines = (tmp_path / "s.csv").read_text().splitlines()
        filled = []
        for line in lines:
            row, col, number, _, *rest = line.split(",")
            filled.append(",".join([row, col, number, NAMES[truth[int(row), int(col)] - 1], *rest]))
        (tmp_path / "s.csv").write_text("\n".join([head, *filled]))
        assert run_here("assess", "report", folder, tmp_path / "s.csv", "-o", folder).returncode == 0
        assert run_here("report", folder).returncode == 0
        document = json.loads((folder / "report.json").read_text())
        assert document["areas_are"] == "estimates with 95 % intervals"
        assert document["classes"][0]["estimated_hectares"]["low"] > 0
        assert "Error matrix" in (folder / "report.html").read_text()

    def test_the_accuracy_of_another_map_is_refused(self, blobs, tmp_path):
        path = tmp_path / "accuracy.json"
        path.write_text(json.dumps({"map": {"name": "x", "classes_sha256": "0"}, "classes": [],
                                    "overall_accuracy": {"value": 1}}))  # fmt: skip
        assert "about another map, x" in refusal(run_here("report", blobs.path.parent, "--accuracy", path))

    def test_another_bundle_than_that_of_the_map_is_refused(self, blobs, bundle, tmp_path):
        folder = write_map(tmp_path / "made", smooth_classes()).path.parent
        summary = json.loads((folder / "summary.json").read_text())
        (folder / "summary.json").write_text(json.dumps(summary | {"bundle": {"name": "x", "sha256": "0" * 64}}))
        assert "made with another bundle, x" in refusal(run_here("report", folder, "--bundle", bundle))

    def test_the_picture_has_a_scale_and_points_north(self, blobs, tmp_path):
        svg = map_figure(blobs, blobs.path.with_name("preview.png"))
        assert ">500 m<" in svg  # at most a quarter of 3.9 km, rounded down
        turned = write_map(tmp_path / "turned", np.ones((50, 60)), transform=ROTATED)
        svg = map_figure(turned, blobs.path.with_name("preview.png"))
        degrees = float(svg.split("rotate(")[1].split(")")[0])
        assert degrees == pytest.approx(20, abs=2.5)  # and the grid's convergence
        plain = write_map(tmp_path / "plain", np.ones((50, 60)), crs=None, transform=None)
        assert "no scale and north" in map_figure(plain, blobs.path.with_name("preview.png"))

    def test_a_map_from_a_raster_alone_has_no_report(self, blobs, tmp_path):
        (tmp_path / "classes.tif").write_bytes(blobs.path.read_bytes())
        with rasterio.open(tmp_path / "classes.tif", "r+") as raster:
            raster.update_tags(class_names="{no data, a, b, c, d}")
        assert open_map(tmp_path).class_names == ("a", "b", "c", "d")
        assert "has no summary.json" in refusal(run_here("report", tmp_path))
