"""Counts, areas, style, preview and STAC Item agree with the map."""

import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import rasterio
from rasterio.control import GroundControlPoint
from rasterio.crs import CRS
from rasterio.transform import Affine, from_origin

from hyperscene.model.bundle import load_bundle
from hyperscene.service.mapping import metadata
from hyperscene.service.mapping.engines import make_engine
from hyperscene.service.mapping.gdal import ignore_missing_georeference
from hyperscene.service.mapping.metadata import pixel_hectares, write_json, write_style
from hyperscene.service.mapping.options import MapOptions
from hyperscene.service.mapping.pipeline import map_scene
from hyperscene.service.mapping.scenes import open_scene
from tests.bundles import describe, pixel_graph, write_bundle
from tests.scenes import GRID, UTM, quadrants, spectra_of, write_tif
from tests.tiles import lon_lats

NM = np.linspace(450, 900, 5)


def make_map(tmp_path: Path, values=None, **georeference) -> tuple[Path, dict]:
    values = spectra_of(quadrants(40, 31), 5) if values is None else values
    scene = open_scene(write_tif(tmp_path / "field & wood.tif", values, wavelengths_nm=NM, **georeference))
    names = ["wheat & rye", 'a "b" <c>', "grün"]
    bundle = load_bundle(
        write_bundle(tmp_path / "b.onnx", class_names=names, class_colors=["#d73027", "#1a9850", "#4575b4"])
    )
    output = tmp_path / "out"
    return output, map_scene(scene, bundle, make_engine(bundle, "cpu"), output, MapOptions())


def test_hectares_are_pixels_times_area(tmp_path):
    _, summary = make_map(tmp_path)
    for entry in summary["classes"]:
        assert entry["hectares"] == pytest.approx(entry["pixels"] * 0.09)
    assert sum(entry["pixels"] for entry in summary["classes"]) == 40 * 31
    assert sum(entry["share"] for entry in summary["classes"]) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    ("crs", "transform", "hectares"),
    [
        ("EPSG:32633", from_origin(0, 0, 30, 30), 0.09),
        ("EPSG:2263", from_origin(0, 0, 100, 100), 100**2 * 0.3048006096**2 / 10_000),  # US feet
        ("EPSG:32633", Affine(3, 4, 0, 4, -3, 0), 0.0025),  # rotated, 5 m pixels
        # A degree is 111.320 km x 110.574 km at the equator and 55.800 km x 111.412 km at 60 degrees.
        ("EPSG:4326", from_origin(10, 0.5, 1, 1), 1_230_910),
        ("EPSG:4326", from_origin(10, 60.5, 1, 1), 621_680),
    ],
)
def test_the_area_of_a_pixel_in_any_unit(tmp_path, crs, transform, hectares):
    path = write_tif(tmp_path / "s.tif", np.ones((1, 1, 3), "float32"), crs=CRS.from_string(crs), transform=transform)
    (found,) = pixel_hectares(open_scene(path), 0, 1)
    assert found == pytest.approx(hectares, rel=2e-3)


def test_a_scene_without_georeference_has_no_areas_and_a_warning(tmp_path):
    output, summary = make_map(tmp_path, crs=None, transform=None)
    assert {entry["hectares"] for entry in summary["classes"]} == {None}
    assert "no georeference" in " ".join(summary["warnings"])
    assert not summary["is_georeferenced"]
    item = json.loads((output / "item.json").read_text())
    assert item["geometry"] is None
    assert "bbox" not in item


def test_the_summary_names_settings_bundle_provider_and_stages(tmp_path):
    _, summary = make_map(tmp_path)
    assert summary["settings"]["stride_px"] == 4
    assert summary["settings"]["blend"] == "angle"
    assert len(summary["bundle"]["sha256"]) == 64
    assert summary["device"] == "cpu"
    assert "CPUExecutionProvider" in summary["provider"]
    assert {"read", "network", "blend", "write", "optimise", "total"} <= set(summary["seconds"])
    assert 1 / 3 < summary["mean_confidence"] < 1


def test_the_style_names_and_colours_every_class(tmp_path):
    output, _ = make_map(tmp_path)
    entries = ElementTree.parse(output / "classes.qml").findall("pipe/rasterrenderer/colorPalette/paletteEntry")
    assert [(entry.get("value"), entry.get("label"), entry.get("color")) for entry in entries] == [
        ("1", "wheat & rye", "#d73027"),
        ("2", 'a "b" <c>', "#1a9850"),
        ("3", "grün", "#4575b4"),
    ]


def test_the_preview_has_the_colours_of_the_class_map_and_is_transparent_without_data(tmp_path):
    values = spectra_of(quadrants(40, 31), 5)
    values[:5, :6] = -1
    output, _ = make_map(tmp_path, values, nodata=-1)
    classes = rasterio.open(output / "classes.tif").read(1)
    with ignore_missing_georeference():
        picture = rasterio.open(output / "preview.png").read()
    assert picture.shape == (4, 40, 31)
    assert (picture[3, :5, :6] == 0).all()
    for value, rgb in ((1, (0xD7, 0x30, 0x27)), (2, (0x1A, 0x98, 0x50)), (3, (0x45, 0x75, 0xB4))):
        assert (picture[:3, classes == value] == np.array(rgb)[:, None]).all()


def test_a_large_preview_is_shrunk(tmp_path):
    output, _ = make_map(tmp_path, np.full((3000, 40, 5), 0.4, "float32"))
    with ignore_missing_georeference(), rasterio.open(output / "preview.png") as picture:
        assert picture.shape == (1024, 14)


def test_the_item_has_the_position_of_the_scene(tmp_path):
    output, _ = make_map(tmp_path)
    item = json.loads((output / "item.json").read_text())
    with rasterio.open(output / "classes.tif") as raster:
        west, south, east, north = rasterio.warp.transform_bounds(UTM, "EPSG:4326", *raster.bounds)
    assert item["bbox"] == pytest.approx([west, south, east, north], abs=1e-4)
    assert item["properties"]["proj:code"] == "EPSG:32633"
    assert item["properties"]["proj:shape"] == [40, 31]
    assert item["properties"]["proj:transform"] == [30, 0, 380_000, 0, -30, 5_820_000]
    for asset in item["assets"].values():
        assert (output / asset["href"]).is_file()
    assert item["assets"]["classes"]["classification:classes"][1] == {
        "value": 2,
        "name": "2_a-b-c",
        "title": 'a "b" <c>',
        "color_hint": "1A9850",
    }


def item_of(tmp_path, crs, transform):
    output, _ = make_map(tmp_path, crs=CRS.from_string(crs), transform=transform)
    return json.loads((output / "item.json").read_text())


def signed_area(ring):
    return sum(x0 * y1 - x1 * y0 for (x0, y0), (x1, y1) in pairwise(ring)) / 2


@pytest.mark.parametrize(
    ("crs", "transform"),
    [
        ("EPSG:32760", from_origin(755_000, 5_820_000, 600, 600)),
        ("EPSG:32601", from_origin(288_000, 5_820_000, 600, 600)),
        ("EPSG:32601", Affine(600, 0, 288_000, 0, 600, 5_800_000)),  # south up
        ("EPSG:4326", from_origin(179.9, 52.0, 0.005, 0.005)),
        ("EPSG:4326", from_origin(-180.05, 52.0, 0.005, 0.005)),
    ],
)
def test_across_the_date_line_the_footprint_is_cut_in_two(tmp_path, crs, transform):
    item = item_of(tmp_path, crs, transform)
    lon, lat = lon_lats(40, 31, crs, transform)
    west, south, east, north = item["bbox"]
    assert -180 <= east < 0 < west <= 180
    assert ((lon % 360 >= west) & (lon % 360 <= east + 360)).all()
    assert south <= lat.min() <= lat.max() <= north
    assert item["geometry"]["type"] == "MultiPolygon"
    (one,), (other,) = item["geometry"]["coordinates"]
    assert {point[0] for point in one if point[0] >= 180} == {180.0}
    assert {point[0] for point in other if point[0] <= -180} == {-180.0}
    assert min(lon for lon, _ in one) == pytest.approx(west)
    assert max(lon for lon, _ in other) == pytest.approx(east)
    for ring in (one, other):
        assert ring[0] == ring[-1]
        assert signed_area(ring) > 0  # counterclockwise
    expected = shape_area(40, 31, crs, transform)
    assert signed_area(one) + signed_area(other) == pytest.approx(expected, rel=1e-3)


def shape_area(rows, cols, crs, transform):
    """In square degrees, from the scene's pixels."""
    corners = lon_lats(rows + 1, cols + 1, crs, transform @ Affine.translation(-0.5, -0.5))
    lon, lat = corners[0] % 360, corners[1]
    down = np.stack([np.diff(lon, axis=0)[:, :-1], np.diff(lat, axis=0)[:, :-1]])
    right = np.stack([np.diff(lon, axis=1)[:-1], np.diff(lat, axis=1)[:-1]])
    return abs((down[0] * right[1] - down[1] * right[0]).sum())


@pytest.mark.parametrize(("crs", "sign"), [("EPSG:3413", 1), ("EPSG:3031", -1)])
def test_a_footprint_around_a_pole_includes_it_and_all_longitudes(tmp_path, crs, sign):
    item = item_of(tmp_path, crs, from_origin(-900_000, 1_400_000, 50_000, 50_000))
    west, south, east, north = item["bbox"]
    assert (west, east) == (-180, 180)
    assert (north if sign > 0 else -south) == 90
    assert 60 < (south if sign > 0 else -north) < 80
    rings = [ring for (ring,) in item["geometry"]["coordinates"]]
    lon, lat = np.array([point for ring in rings for point in ring]).T
    assert (lon.min(), lon.max(), abs(lat).max()) == (-180, 180, 90)
    assert all(signed_area(ring) > 0 for ring in rings)


def test_an_invalid_georeference_does_not_prevent_the_map(tmp_path, monkeypatch):
    def fail(*_):
        raise TypeError("some georeference")

    for name in ("find_footprint", "_projection"):
        monkeypatch.setattr(metadata, name, fail)
    item = item_of(tmp_path, "EPSG:32633", GRID)
    assert item["geometry"] is None
    assert "bbox" not in item
    assert item["assets"]["classes"]["href"] == "./classes.tif"


LOCAL = 'LOCAL_CS["a site",LOCAL_DATUM["unknown",32767],UNIT["metre",1],AXIS["X",EAST],AXIS["Y",NORTH]]'


@pytest.mark.parametrize(
    ("crs", "transform"),
    [
        (LOCAL, from_origin(0, 0, 1, 1)),
        ("EPSG:4326", None),  # pixel numbers are no degrees
        ("EPSG:32633", None),
        ("EPSG:4326", from_origin(10, 300, 1, 1)),
        ("EPSG:3857", from_origin(1e18, 1e18, 1e5, 1e5)),  # PROJ would go round the Earth for minutes
        ('GEOGCS["Moon",DATUM["D_Moon",SPHEROID["Moon",1737400,0]],PRIMEM["R",0],UNIT["Degree",0.0174532925]]', GRID),
    ],
)
def test_a_scene_without_a_position_on_earth_has_no_footprint(tmp_path, crs, transform):
    output, _ = make_map(tmp_path, crs=CRS.from_string(crs), transform=transform)
    assert json.loads((output / "item.json").read_text())["geometry"] is None


@pytest.mark.parametrize("crs", ["EPSG:4326", "EPSG:32633"])
def test_pixel_numbers_are_not_taken_for_coordinates(tmp_path, crs):
    _, summary = make_map(tmp_path, crs=CRS.from_string(crs), transform=None)
    assert {entry["hectares"] for entry in summary["classes"]} == {None}
    assert "no georeference" in " ".join(summary["warnings"])


def test_areas_in_mercator_are_those_on_the_ground(tmp_path):
    north = rasterio.warp.transform("EPSG:4326", "EPSG:3857", [10], [60])[1][0]
    path = write_tif(tmp_path / "s.tif", np.ones((1, 1, 3), "float32"), crs=CRS.from_epsg(3857),
                     transform=from_origin(1_000_000, north, 20, 20))  # fmt: skip
    assert pixel_hectares(open_scene(path), 0, 1)[0] == pytest.approx(0.04 / 4, rel=1e-3)


def control_points(pixels):
    return [GroundControlPoint(row, col, 380_000 + 30 * col, 5_820_000 - 30 * row) for row, col in pixels]


def test_ground_control_points_give_a_footprint_and_no_areas(tmp_path):
    points = control_points([(0, 0), (0, 31), (40, 0), (40, 31)])
    output, summary = make_map(tmp_path, transform=None, gcps=points)
    item = json.loads((output / "item.json").read_text())
    west, south, east, north = rasterio.warp.transform_bounds(UTM, "EPSG:4326", 380_000, 5_818_800, 380_930, 5_820_000)
    assert item["bbox"] == pytest.approx([west, south, east, north], abs=1e-4)
    assert summary["classes"][0]["hectares"] is None
    with rasterio.open(output / "classes.tif") as raster:
        assert len(raster.gcps[0]) == 4


@pytest.mark.parametrize("pixels", [[(0, 0)], [(0, 0), (40, 31)], [(0, 0), (10, 10), (20, 20)]])
def test_control_points_on_a_line_give_no_footprint(tmp_path, pixels):
    output, _ = make_map(tmp_path, transform=None, gcps=control_points(pixels))
    assert json.loads((output / "item.json").read_text())["geometry"] is None


def test_a_style_is_valid_xml_for_any_class_name(tmp_path):
    manifest = describe(pixel_graph(), class_names=["bell \x07", "tab\tbed", "ok"])
    write_style(tmp_path / "s.qml", manifest)
    entries = ElementTree.parse(tmp_path / "s.qml").iter("paletteEntry")
    assert [entry.get("label") for entry in entries] == ["bell  ", "tab bed", "ok"]


def test_an_absurd_unit_of_length_gives_no_areas(tmp_path):
    scene = open_scene(write_tif(tmp_path / "s.tif", np.ones((2, 3, 3), "float32")))
    system = CRS.from_wkt(re.sub(r'UNIT\["metre".*', 'UNIT["x",1e300]]', UTM.to_wkt()))
    assert system.linear_units_factor[1] == 1e300
    assert pixel_hectares(replace(scene, crs=system), 0, 2) is None


def test_numbers_that_json_does_not_have_are_written_as_null(tmp_path):
    write_json(tmp_path / "s.json", {"shares": [1.5, float("nan"), {"area": float("inf")}], "name": "é"})
    assert json.loads((tmp_path / "s.json").read_text()) == {"shares": [1.5, None, {"area": None}], "name": "é"}
