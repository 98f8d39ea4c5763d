"""Tiles and pixels over HTTP: content, position, access and caching."""

import gzip
import json
import os
import signal
import socket
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import numpy as np
import psutil
import pytest
import rasterio
from rasterio.control import GroundControlPoint
from rasterio.transform import Affine
from rasterio.warp import transform

from hyperscene.service.mapping.rasters import rgb
from tests.bundles import write_bundle
from tests.programs import POISON_PATH
from tests.scenes import GRID, UTM, WAVELENGTH_LINE, WAVELENGTHS, write_envi, write_tif
from tests.server import part, running_server, wait_for
from tests.tiles import lon_lats, rgba, tile_pixels

pytestmark = pytest.mark.slow

COLORS = ["#e41a1c", "#377eb8", "#4daf4a"]
ROWS, COLS = 40, 33
TURNED = Affine.translation(500_000, 5_800_000) @ Affine.rotation(33) @ Affine.scale(20, -20)
POISON, SLOW = 77.0, 78.0  # as in poison/sitecustomize.py


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bundles")
    write_bundle(folder / "colors.onnx", class_colors=COLORS, class_names=["water", "meadow", "roof"])
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory, bundles):
    with running_server(tmp_path_factory.mktemp("tiles") / "data", "--bundles", bundles, "--device", "cpu") as running:
        yield running


@pytest.fixture
def client(server):
    return server.client


@pytest.fixture(scope="module")
def cube():
    found = np.random.default_rng(3).uniform(0.05, 0.6, (ROWS, COLS, 5)).astype("float32")
    found[2, 3] = np.nan
    return found


@pytest.fixture(scope="module")
def tif(tmp_path_factory, cube):
    return write_tif(tmp_path_factory.mktemp("scene") / "field.tif", cube, wavelengths_nm=WAVELENGTHS)


@pytest.fixture(scope="module")
def job(server, tif):
    """A finished job."""
    return mapped(server, tif)


def mapped(server, *paths, **fields):
    files = [("scene", part(path)) for path in paths]
    response = server.client.post("/classify", files=files, data=fields, headers={"Prefer": "respond-async"})
    assert response.status_code == 201, response.text
    done = server.finished(response.json()["jobID"])
    assert done["status"] == "successful", done
    return done["jobID"]


def result(server, job, name):
    with rasterio.open(server.data / "jobs" / job / "results" / name) as file:
        return np.moveaxis(file.read() * np.array(file.scales)[:, None, None], 0, -1)


def get_when_rendered(client, url, **more):
    """The response, requested again while the preview of the scene is being rendered."""
    return wait_for(lambda: None if is_being_rendered(found := client.get(url, **more)) else found)


def is_being_rendered(response):
    return response.status_code == 503 and "is being rendered" in response.json()["detail"]


def tilejson(client, job, **query):
    response = get_when_rendered(client, f"/jobs/{job}/tilejson.json", params=query)
    assert response.status_code == 200, response.text
    return response.json()


def tile(client, job, layer, zoom, x, y, sharp="", **query):
    response = get_when_rendered(client, f"/jobs/{job}/tiles/{layer}/{zoom}/{x}/{y}{sharp}.png", params=query)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "image/png"
    return rgba(response.content)


def shown_at(client, job, layer, crs, transform, row, col, sharp="", **query):
    """The colour that tiles show at a pixel's centre."""
    lon, lat = (degrees[row : row + 1, col] for degrees in lon_lats(ROWS, COLS, crs, transform))
    zoom = tilejson(client, job)["maxzoom"] + 2
    x, y, inner_row, inner_col = (int(position[0]) for position in tile_pixels(lon, lat, zoom, 512 if sharp else 256))
    return tile(client, job, layer, zoom, x, y, sharp, **query)[inner_row, inner_col]


def refusal(response, status, code):
    assert (response.status_code, response.json()["code"]) == (status, code), response.text
    return response.json()["detail"]


# TileJSON


def test_tilejson_has_the_bounds_of_the_class_map(client, server, job):
    document = tilejson(client, job)
    lon, lat = lon_lats(ROWS, COLS, UTM, GRID)
    west, south, east, north = document["bounds"]
    assert document["tilejson"] == "3.0.0"
    assert document["scheme"] == "xyz"
    assert document["crs"] == "EPSG:3857"
    assert (document["rows"], document["cols"], document["tile_px"]) == (ROWS, COLS, 256)
    assert (west, south, east, north) == pytest.approx((lon.min(), lat.min(), lon.max(), lat.max()), abs=1e-3)
    assert document["center"][:2] == pytest.approx([(west + east) / 2, (south + north) / 2])
    assert document["tiles"] == [f"{server.url}/jobs/{job}/tiles/classes/{{z}}/{{x}}/{{y}}.png"]


def test_tilejson_tells_where_the_pixels_are(client, job):
    document = tilejson(client, job)
    assert document["scene_crs"] == "EPSG:32633"
    assert document["transform"] == [*GRID][:6]
    assert document["north_deg"] == 0
    assert document["pixel_m"] == pytest.approx(30, rel=1e-3)
    assert np.shape(document["pixel_table"]["cols"]) == np.shape(document["pixel_table"]["rows"])


def test_every_layer_is_listed_with_its_legend(client, job):
    layers = tilejson(client, job)["layers"]
    assert [layer["id"] for layer in layers] == [
        "classes", "confidence", "probability-1", "probability-2", "probability-3", "scene",
    ]  # fmt: skip
    classes, confidence, *probabilities, scene = layers
    assert classes["legend"] == [
        {"value": value, "name": name, "color": color}
        for value, (name, color) in enumerate(zip(["water", "meadow", "roof"], COLORS, strict=True), start=1)
    ]
    assert confidence["ramp"][0] == "#440154"
    assert [layer["value"] for layer in probabilities] == [1, 2, 3]
    assert (scene["bands"], scene["wavelengths_nm"]) == ([3, 2, 1], [675.0, 562.5, 450.0])


def test_the_tile_urls_in_tilejson_work(client, job):
    document = tilejson(client, job, bands="5,4,1")
    for layer in document["layers"]:
        for key, px in (("tiles", 256), ("tiles_2x", 512)):
            response = get_when_rendered(client, layer[key][0].format(z=0, x=0, y=0))
            assert rgba(response.content).shape == (px, px, 4), layer["id"]


def test_tilejson_of_another_layer_can_be_requested(client, job):
    document = tilejson(client, job, layer="scene", bands="5,4,1")
    assert document["tiles"][0].endswith("/scene/{z}/{x}/{y}.png?bands=5,4,1")
    assert document["layers"][-1]["bands"] == [5, 4, 1]


def test_an_unknown_layer_is_refused_with_a_list_of_layers(client, job):
    for path in ("tilejson.json?layer=nonsense", "tiles/nonsense/0/0/0.png", "tiles/probability-4/0/0/0.png"):
        detail = refusal(client.get(f"/jobs/{job}/{path}"), 404, "no_such_result")
        assert "classes, confidence, probability-1, probability-2, probability-3, scene" in detail


def test_an_unknown_job_has_no_tiles(client):
    for path in ("tilejson.json", "tiles/classes/0/0/0.png", "tiles/scene/0/0/0@2x.png", "pixel?row=0&col=0"):
        refusal(client.get(f"/jobs/{'0' * 32}/{path}"), 404, "no_such_job")


# Tiles


@pytest.mark.parametrize("position", [(0, 0), (17, 5), (39, 32)])
@pytest.mark.parametrize("sharp", ["", "@2x"])
def test_tiles_show_the_class_map_in_its_colours_and_position(client, server, job, position, sharp):
    value = int(result(server, job, "classes.tif")[position][0])
    shown = shown_at(client, job, "classes", UTM, GRID, *position, sharp)
    assert f"#{shown[0]:02x}{shown[1]:02x}{shown[2]:02x}" == COLORS[value - 1]
    assert shown[3] == 255


def test_gdals_wms_client_shows_every_pixel_at_its_position(client, server, job, monkeypatch):
    monkeypatch.setenv("GDAL_DEFAULT_WMS_CACHE_PATH", str(server.data.with_name("wms-cache")))
    url = tilejson(client, job)["tiles"][0].replace("{", "${")
    edge = 20037508.342789244
    service = f"""<GDAL_WMS><Service name="TMS"><ServerUrl>{url}</ServerUrl></Service>
        <DataWindow><UpperLeftX>-{edge}</UpperLeftX><UpperLeftY>{edge}</UpperLeftY><LowerRightX>{edge}</LowerRightX>
        <LowerRightY>-{edge}</LowerRightY><TileLevel>16</TileLevel><TileCountX>1</TileCountX><TileCountY>1</TileCountY>
        <YOrigin>top</YOrigin></DataWindow><Projection>EPSG:3857</Projection><BlockSizeX>256</BlockSizeX>
        <BlockSizeY>256</BlockSizeY><BandsCount>4</BandsCount></GDAL_WMS>"""
    classes = result(server, job, "classes.tif")[..., 0].astype(int)
    row, col = np.meshgrid(np.arange(ROWS), np.arange(COLS), indexing="ij")
    x, y = GRID @ (col.ravel() + 0.5, row.ravel() + 0.5)
    points = zip(*transform(UTM, "EPSG:3857", x, y), strict=True)
    with rasterio.open(service) as shown:
        found = np.array(list(shown.sample(points))).reshape(ROWS, COLS, 4)
    colors = np.array([(0, 0, 0, 0), *((*rgb(color), 255) for color in COLORS)])
    np.testing.assert_array_equal(found, colors[classes])


def test_no_data_is_transparent_in_every_layer(client, job):
    for layer in ("classes", "confidence", "probability-2", "scene"):
        assert shown_at(client, job, layer, UTM, GRID, 2, 3)[3] == 0, layer


def test_a_rotated_scene_is_shown_rotated(client, server, tmp_path, cube):
    job = mapped(server, write_tif(tmp_path / "t.tif", cube, wavelengths_nm=WAVELENGTHS, transform=TURNED))
    classes = result(server, job, "classes.tif")
    for position in ((0, 0), (0, 32), (39, 0), (21, 17)):
        shown = shown_at(client, job, "classes", UTM, TURNED, *position)
        assert f"#{shown[0]:02x}{shown[1]:02x}{shown[2]:02x}" == COLORS[int(classes[position][0]) - 1]


def test_the_scene_is_shown_in_the_requested_bands(client, job, cube):
    brightest = np.unravel_index(np.nanargmax(cube[..., 4]), (ROWS, COLS))
    darkest = np.unravel_index(np.nanargmin(cube[..., 4]), (ROWS, COLS))
    assert shown_at(client, job, "scene", UTM, GRID, *brightest, bands="5,5,5").tolist() == [255, 255, 255, 255]
    assert shown_at(client, job, "scene", UTM, GRID, *darkest, bands="5,5,5").tolist() == [1, 1, 1, 255]


def test_bands_that_the_scene_does_not_have_are_refused(client, job):
    for bands in ("1,2,6", "0,1,2"):
        response = client.get(f"/jobs/{job}/tiles/scene/0/0/0.png", params={"bands": bands})
        assert "between 1 and 5" in refusal(response, 422, "request_unusable")


@pytest.mark.parametrize("bands", ["1,2", "1,2,3,4", "red", "1;2;3", "-1,2,3", ""])
def test_bands_must_be_three_numbers(client, job, bands):
    for path in ("tilejson.json", "tiles/scene/0/0/0.png"):
        refusal(client.get(f"/jobs/{job}/{path}", params={"bands": bands}), 422, "request_unusable")


@pytest.mark.parametrize("path", ["-1/0/0", "31/0/0", "0/x/0", "0/0/y", "0/0/1.5", "0/99999999999/0"])
def test_an_impossible_tile_is_refused(client, job, path):
    refusal(client.get(f"/jobs/{job}/tiles/classes/{path}.png"), 422, "request_unusable")


@pytest.mark.parametrize("path", ["0/0/5", "12/1/1", "12/-4/1", "30/7/7"])
@pytest.mark.parametrize("layer", ["classes", "confidence", "scene"])
def test_a_tile_outside_of_the_scene_is_transparent(client, job, layer, path):
    assert not tile(client, job, layer, *path.split("/"))[..., 3].any()


def test_float_probabilities_are_shown_like_bytes(client, server, job, tif):
    floats = mapped(server, tif, probability_type="float32")
    for layer in ("confidence", "probability-2"):
        one, other = (shown_at(client, which, layer, UTM, GRID, 11, 13).astype(int) for which in (job, floats))
        assert np.abs(one - other).max() <= 3


def test_a_scene_without_georeference_has_tiles_in_pixel_coordinates(client, server, tmp_path, cube):
    path = write_tif(tmp_path / "u.tif", cube, wavelengths_nm=WAVELENGTHS, crs=None, transform=None)
    job = mapped(server, path)
    document = tilejson(client, job)
    assert document["crs"] is None
    assert "bounds" not in document
    assert "center" not in document
    assert (document["minzoom"], document["maxzoom"], len(document["layers"])) == (0, 0, 6)
    classes = result(server, job, "classes.tif")[..., 0]
    shown = tile(client, job, "classes", 0, 0, 0)
    expected = [[0, 0, 0], *([int(color[at : at + 2], 16) for at in (1, 3, 5)] for color in COLORS)]
    np.testing.assert_array_equal(shown[:ROWS, :COLS, :3], np.array(expected)[classes.astype(int)])
    assert not shown[ROWS:].any()
    assert tile(client, job, "scene", 0, 0, 0)[5, 5, 3] == 255


# Caching


def test_a_tile_is_cached_privately(client, job):
    for path in ("tiles/classes/0/0/0.png", "tiles/scene/0/0/0@2x.png?bands=1,2,3", "results/classes.tif"):
        headers = get_when_rendered(client, f"/jobs/{job}/{path}").headers
        assert headers["cache-control"] == "private, max-age=31536000, immutable"
        assert headers["vary"] == "X-API-Key, Authorization"
        assert headers["etag"]


def test_a_cached_tile_is_not_sent_again(client, job):
    for path in ("tiles/classes/0/0/0.png", "tiles/scene/0/0/0.png"):
        first = get_when_rendered(client, f"/jobs/{job}/{path}")
        again = client.get(f"/jobs/{job}/{path}", headers={"If-None-Match": f'"other", W/{first.headers["etag"]}'})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == first.headers["etag"]
        assert again.headers["vary"] == first.headers["vary"]


@pytest.mark.parametrize("layer", ["nonsense", "probability-99", "%E2%82%AC", "a%0d%0aX-Header:%20b", "%00", "%22"])
@pytest.mark.parametrize("headers", [{}, {"If-None-Match": "*"}])
def test_a_missing_layer_is_not_found_despite_if_none_match(client, job, layer, headers):
    for sharp in ("", "@2x"):
        response = client.get(f"/jobs/{job}/tiles/{layer}/0/0/0{sharp}.png", headers=headers)
        assert "there is no layer" in refusal(response, 404, "no_such_result")
        assert "etag" not in response.headers


def test_missing_bands_are_refused_despite_if_none_match(client, job):
    response = client.get(f"/jobs/{job}/tiles/scene/0/0/0.png?bands=999,1,2", headers={"If-None-Match": "*"})
    refusal(response, 422, "request_unusable")


def test_each_tile_has_its_own_etag(client, job):
    paths = ["classes/0/0/0", "classes/0/0/0@2x", "classes/1/0/0", "confidence/0/0/0", "scene/0/0/0"]
    paths = [*(f"{path}.png" for path in paths), "scene/0/0/0.png?bands=1,1,1"]
    tags = [get_when_rendered(client, f"/jobs/{job}/tiles/{path}").headers["etag"] for path in paths]
    assert len(set(tags)) == len(tags)


def test_tilejson_is_not_cached(client, job):
    assert client.get(f"/jobs/{job}/tilejson.json").headers["cache-control"] == "no-store"


# Pixels


def pixel(client, job, **position):
    response = get_when_rendered(client, f"/jobs/{job}/pixel", params=position)
    assert response.status_code == 200, response.text
    return response.json()


def test_a_pixel_without_its_spectrum_has_the_same_class(client, job):
    whole, short = pixel(client, job, row=17, col=5), pixel(client, job, row=17, col=5, spectrum=False)
    assert whole["spectrum"] is not None
    assert short == whole | {"spectrum": None}


def test_a_pixel_has_its_class_probabilities_and_spectrum(client, server, job, cube):
    found = pixel(client, job, row=17, col=5)
    value = int(result(server, job, "classes.tif")[17, 5, 0])
    shares = result(server, job, "probabilities.tif")[17, 5]
    assert (found["row"], found["col"], found["is_valid"]) == (17, 5, True)
    assert found["class"] == {
        "value": value, "name": ["water", "meadow", "roof"][value - 1], "color": COLORS[value - 1]
    }  # fmt: skip
    assert found["confidence"] == pytest.approx(result(server, job, "confidence.tif")[17, 5, 0], abs=1e-6)
    assert [entry["value"] for entry in found["probabilities"]] == [1, 2, 3]
    assert [entry["probability"] for entry in found["probabilities"]] == pytest.approx(shares, abs=1e-6)
    assert found["spectrum"]["values"] == cube[17, 5].tolist()
    assert found["spectrum"]["wavelengths_nm"] == WAVELENGTHS.tolist()
    assert found["spectrum"]["bands"] == [1, 2, 3, 4, 5]
    assert found["spectrum"]["used"] == [True] * 5
    assert "spectrum_missing" not in found


@pytest.mark.parametrize("position", [(0, 0), (17, 5), (39, 32)])
def test_a_pixel_is_the_same_by_row_and_col_and_by_lon_and_lat(client, job, position):
    lon, lat = (degrees[position] for degrees in lon_lats(ROWS, COLS, UTM, GRID))
    by_position = pixel(client, job, lon=lon, lat=lat)
    assert by_position == pixel(client, job, row=position[0], col=position[1])
    assert (by_position["lon"], by_position["lat"]) == pytest.approx((lon, lat), abs=1e-7)


def test_a_pixel_without_data_is_not_valid(client, job):
    found = pixel(client, job, row=2, col=3)
    assert (found["is_valid"], found["class"], found["confidence"], found["probabilities"]) == (False, None, None, [])
    assert found["spectrum"]["values"] == [None] * 5


@pytest.mark.parametrize(
    "query",
    ["", "row=1", "col=1", "lon=13", "lat=52", "row=1&lat=52", "row=1&col=1&lon=13&lat=52", "row=1&col=1&lon=13"],
)
def test_a_pixel_needs_exactly_one_pair_of_coordinates(client, job, query):
    assert "one of the two pairs" in refusal(client.get(f"/jobs/{job}/pixel?{query}"), 422, "request_unusable")


def test_a_pixel_outside_of_the_scene_is_refused_with_the_range(client, job):
    for query in ("row=40&col=0", "row=0&col=33"):
        detail = refusal(client.get(f"/jobs/{job}/pixel?{query}"), 422, "request_unusable")
        assert "row is 0 to 39, col is 0 to 32" in detail
    assert "from lon 13.2" in refusal(client.get(f"/jobs/{job}/pixel?lon=0&lat=0"), 422, "request_unusable")


@pytest.mark.parametrize(
    "query", ["row=-1&col=0", "row=x&col=0", "row=0&col=99999999999", "lon=nan&lat=0", "lon=0&lat=91"]
)
def test_coordinates_that_are_not_numbers_are_refused(client, job, query):
    refusal(client.get(f"/jobs/{job}/pixel?{query}"), 422, "request_unusable")


def test_without_georeference_a_pixel_is_selected_by_row_and_col(client, server, tmp_path, cube):
    path = write_tif(tmp_path / "u.tif", cube, wavelengths_nm=WAVELENGTHS, crs=None, transform=None)
    job = mapped(server, path)
    found = pixel(client, job, row=17, col=5)
    assert (found["lon"], found["lat"], found["spectrum"]["values"]) == (None, None, cube[17, 5].tolist())
    assert "by row and col" in refusal(client.get(f"/jobs/{job}/pixel?lon=13&lat=52"), 422, "request_unusable")


@pytest.mark.parametrize("interleave", ["BSQ", "BIL", "BIP"])
def test_an_envi_scene_has_its_spectra_in_physical_units(client, server, tmp_path, interleave):
    values = np.random.default_rng(3).integers(500, 6000, (ROWS, COLS, 5)).astype("int16")
    header = WAVELENGTH_LINE + "reflectance scale factor = 10000\n"
    path = write_envi(tmp_path / "e.img", values, header, interleave)
    job = mapped(server, path, path.with_suffix(".hdr"))
    assert pixel(client, job, row=17, col=5)["spectrum"]["values"] == pytest.approx(values[17, 5] / 10000, rel=1e-6)


def test_a_compressed_envi_scene_has_spectra(client, server, tmp_path, cube):
    path = write_envi(tmp_path / "e.img", cube, WAVELENGTH_LINE + "file compression = 1\n", "BIL")
    path.write_bytes(gzip.compress(path.read_bytes()))
    job = mapped(server, path, path.with_suffix(".hdr"))
    assert pixel(client, job, row=17, col=5)["spectrum"]["values"] == cube[17, 5].tolist()
    assert shown_at(client, job, "scene", UTM, GRID, 17, 5)[3] == 255


def test_a_compressed_tiled_geotiff_has_spectra(client, server, tmp_path, cube):
    options = {"tiled": True, "blockxsize": 16, "blockysize": 16, "compress": "deflate", "interleave": "band"}
    job = mapped(server, write_tif(tmp_path / "t.tif", cube, wavelengths_nm=WAVELENGTHS, **options))
    assert pixel(client, job, row=17, col=5)["spectrum"]["values"] == cube[17, 5].tolist()


def test_bands_that_the_bundle_does_not_use_are_marked(client, server, tmp_path, cube):
    values = np.dstack([cube, cube[..., :1]])
    values[4, 4, 5] = -1
    nm = np.append(WAVELENGTHS, 2000.0)
    job = mapped(server, write_tif(tmp_path / "six.tif", values, wavelengths_nm=nm, nodata=-1))
    spectrum = pixel(client, job, row=4, col=4)
    assert spectrum["spectrum"]["used"] == [True] * 5 + [False]
    assert spectrum["spectrum"]["values"] == [*cube[4, 4].tolist(), None]
    assert spectrum["is_valid"]


def test_bad_bands_are_skipped_and_band_numbers_are_those_of_the_file(client, server, tmp_path, cube):
    values = np.concatenate([cube[..., :2], cube[..., :1], cube[..., 2:]], axis=-1)
    nm = np.insert(WAVELENGTHS, 2, 600.0)
    lines = "wavelength units = Nanometers\nwavelength = {" + ", ".join(map(str, nm)) + "}\nbbl = {1, 1, 0, 1, 1, 1}\n"
    path = write_envi(tmp_path / "e.img", values, lines)
    job = mapped(server, path, path.with_suffix(".hdr"))
    found = pixel(client, job, row=17, col=5)["spectrum"]
    assert (found["bands"], found["values"]) == ([1, 2, 4, 5, 6], cube[17, 5].tolist())
    assert tilejson(client, job)["layers"][-1]["bands"] == [4, 2, 1]
    refusal(client.get(f"/jobs/{job}/tiles/scene/0/0/0.png?bands=3,2,1"), 422, "request_unusable")


# Removed scenes, unfinished jobs


def uploaded(server, path):
    response = server.client.post("/scenes", files={"scene": part(path)})
    assert response.status_code == 201
    return response.json()["id"]


def started(server, scene_id):
    inputs = {"scene": {"href": f"/scenes/{scene_id}"}}
    response = server.client.post(
        "/processes/classify-scene/execution", json={"inputs": inputs}, headers={"Prefer": "respond-async"}
    )
    assert response.status_code == 201, response.text
    return response.json()["jobID"]


def previews_of(server, scene_id):
    return sorted(path.name for path in (server.data / "scenes" / scene_id / "views").glob("*"))


def test_the_map_is_shown_after_its_scene_was_removed(client, server, tif):
    scene = uploaded(server, tif)
    job = started(server, scene)
    server.finished(job)
    tile(client, job, "scene", 0, 0, 0)
    assert previews_of(server, scene) == ["3-2-1.tif"]
    assert client.delete(f"/scenes/{scene}").status_code == 204
    assert not (server.data / "scenes" / scene).exists()
    assert [layer["id"] for layer in tilejson(client, job)["layers"]][-1] == "probability-3"
    assert tile(client, job, "classes", 0, 0, 0).shape == (256, 256, 4)
    for path in ("tiles/scene/1/0/0.png", "tilejson.json?layer=scene"):
        assert "send the scene again" in refusal(client.get(f"/jobs/{job}/{path}"), 404, "no_such_scene")
    found = pixel(client, job, row=17, col=5)
    assert found["spectrum"] is None
    assert "was removed" in found["spectrum_missing"]
    assert found["class"] is not None


def test_a_dismissed_job_has_no_tiles(client, server, tif):
    job = mapped(server, tif)
    client.delete(f"/jobs/{job}")
    for path in ("tilejson.json", "tiles/classes/0/0/0.png", "pixel?row=0&col=0"):
        assert "dismissed" in refusal(client.get(f"/jobs/{job}/{path}"), 404, "no_such_job")
    refusal(client.get(f"/jobs/{job}/tiles/scene/0/0/0.png"), 404, "no_such_scene")


def test_a_job_that_is_being_removed_has_no_tiles(client, server, tif):
    scene = uploaded(server, tif)
    job = started(server, scene)
    server.finished(job)
    (server.data / "jobs" / job / "results" / "summary.json").unlink()
    refusal(client.get(f"/jobs/{job}/tiles/classes/0/0/0.png"), 404, "no_such_job")
    assert client.delete(f"/scenes/{scene}").status_code == 204
    for path in ("tilejson.json", "tilejson.json?layer=classes", "tiles/classes/0/0/0.png", "pixel?row=0&col=0"):
        assert "were removed" in refusal(client.get(f"/jobs/{job}/{path}"), 404, "no_such_job"), path


def test_a_damaged_map_is_reported_as_damaged(client, server, tif):
    job = mapped(server, tif)
    for name in ("classes.tif", "probabilities.tif"):
        (server.data / "jobs" / job / "results" / name).write_bytes(b"II*\0 and no more")
    for path in ("tiles/classes/0/0/0.png", "tiles/probability-1/0/0/0.png", "tilejson.json", "pixel?row=0&col=0"):
        detail = refusal(client.get(f"/jobs/{job}/{path}"), 404, "no_such_result")
        assert "damaged on the server's disk" in detail
        assert "send the scene again" in detail
    assert any(json.loads(line).get("job_id") == job for line in warnings_of(server))
    (server.data / "jobs" / job / "results" / "classes.tif").unlink()
    assert "was removed" in refusal(client.get(f"/jobs/{job}/tiles/classes/0/0/0.png"), 404, "no_such_job")


def warnings_of(server):
    return [line for line in server.log.read_text().splitlines() if json.loads(line).get("level") == "warning"]


def test_a_damaged_preview_is_rendered_again(client, server, tif):
    scene = uploaded(server, tif)
    job = started(server, scene)
    server.finished(job)
    folder = server.data / "scenes" / scene / "views"
    folder.mkdir(exist_ok=True)
    (folder / "3-2-1.tif").write_bytes(b"II*\0 and no more")
    assert shown_at(client, job, "scene", UTM, GRID, 17, 5)[3] == 255


@contextmanager
def server_without_workers(data, bundles, **environment):
    """A server whose workers are paused."""
    options = ("--bundles", bundles, "--device", "cpu", "--lease-s", 600)
    with running_server(data, *options, **environment) as running:
        workers = running.workers()
        for worker in workers:
            os.kill(worker, signal.SIGSTOP)
        yield running
        for worker in workers:
            os.kill(worker, signal.SIGCONT)


@pytest.fixture(scope="module")
def idle_server(tmp_path_factory, bundles):
    """A server whose worker never starts a job."""
    with server_without_workers(tmp_path_factory.mktemp("idle") / "data", bundles) as running:
        yield running


def test_a_waiting_job_shows_only_its_scene(idle_server, tif, cube):
    client, job = idle_server.client, idle_server.submit(tif)
    document = tilejson(client, job)
    assert [layer["id"] for layer in document["layers"]] == ["scene"]
    assert document["tiles"][0].endswith("/scene/{z}/{x}/{y}.png")
    assert document["crs"] == "EPSG:3857"
    assert shown_at(client, job, "scene", UTM, GRID, 17, 5)[3] == 255
    for path in ("tiles/classes/0/0/0.png", "tiles/probability-1/0/0/0@2x.png", "tilejson.json?layer=classes"):
        refusal(client.get(f"/jobs/{job}/{path}"), 404, "result_not_ready")
    found = pixel(client, job, row=17, col=5)
    assert (found["is_valid"], found["class"], found["confidence"], found["probabilities"]) == (True, None, None, [])
    assert found["spectrum"]["values"] == cube[17, 5].tolist()
    assert found["spectrum"]["used"] == [True] * 5
    assert not pixel(client, job, row=2, col=3)["is_valid"]


def test_a_waiting_scene_with_control_points_has_its_position(idle_server, tmp_path, cube):
    corners = [(0, 0), (0, COLS), (ROWS, COLS), (ROWS, 0)]
    points = [GroundControlPoint(row, col, *(TURNED @ (col, row)), 0) for row, col in corners]
    path = write_tif(tmp_path / "g.tif", cube, wavelengths_nm=WAVELENGTHS, transform=None, gcps=points)
    client, job = idle_server.client, idle_server.submit(path)
    lon, lat = lon_lats(ROWS, COLS, UTM, TURNED)
    west, south, east, north = tilejson(client, job)["bounds"]
    assert (west, south) == pytest.approx((lon.min(), lat.min()), abs=1e-3)
    assert (east, north) == pytest.approx((lon.max(), lat.max()), abs=1e-3)
    assert pixel(client, job, lon=lon[9, 9], lat=lat[9, 9])["row"] == 9


# Previews


def lines_of(server, message):
    return [line for line in server.log.read_text().splitlines() if json.loads(line).get("message") == message]


def ask_often(server, path, times):
    with ThreadPoolExecutor(times) as pool, httpx.Client(base_url=server.url, timeout=60) as client:
        return list(pool.map(lambda _: get_when_rendered(client, path), range(times)))


def test_concurrent_requests_share_one_preview(server, tmp_path):
    values = np.random.default_rng(3).uniform(0.05, 0.6, (900, 900, 5)).astype("float32")
    scene = uploaded(server, write_tif(tmp_path / "wide.tif", values, wavelengths_nm=WAVELENGTHS))
    job = started(server, scene)
    before = len(lines_of(server, "preview made"))
    responses = ask_often(server, f"/jobs/{job}/tiles/scene/9/274/167.png", 12)
    assert {response.status_code for response in responses} == {200}
    assert len({response.content for response in responses}) == 1
    assert len(lines_of(server, "preview made")) == before + 1
    assert previews_of(server, scene) == ["3-2-1.tif"]


@pytest.fixture(scope="module")
def slow_server(tmp_path_factory, bundles):
    """A server that renders previews of scenes with the value SLOW slowly, and maps nothing."""
    with server_without_workers(tmp_path_factory.mktemp("slow") / "data", bundles, PYTHONPATH=POISON_PATH) as running:
        yield running


def slow(cube):
    found = cube.copy()
    found[20, 20, 2] = SLOW
    return found


def test_a_tile_is_not_ready_while_its_preview_is_rendered(slow_server, tmp_path, cube):
    client, scene = slow_server.client, uploaded(
        slow_server, write_tif(tmp_path / "slow.tif", slow(cube), wavelengths_nm=WAVELENGTHS)
    )  # fmt: skip
    job = started(slow_server, scene)
    before = len(lines_of(slow_server, "preview made"))
    for _ in range(2):
        response = client.get(f"/jobs/{job}/tiles/scene/0/0/0.png")
        assert "is being rendered: try again in 2 s" in refusal(response, 503, "not_ready")
        assert response.headers["retry-after"] == "2"
        assert "3-2-1.tif" not in previews_of(slow_server, scene)
    assert tile(client, job, "scene", 0, 0, 0).shape == (256, 256, 4)
    assert len(lines_of(slow_server, "preview made")) == before + 1


def test_the_position_is_not_ready_while_it_needs_a_preview(slow_server, tmp_path, cube):
    corners = [(0, 0), (0, COLS), (ROWS, COLS), (ROWS, 0)]
    points = [GroundControlPoint(row, col, *(TURNED @ (col, row)), 0) for row, col in corners]
    path = write_tif(tmp_path / "g.tif", slow(cube), wavelengths_nm=WAVELENGTHS, transform=None, gcps=points)
    client, job = slow_server.client, slow_server.submit(path)
    for path in ("tilejson.json", "pixel?row=1&col=1"):
        response = client.get(f"/jobs/{job}/{path}")
        assert "try again in 2 s" in refusal(response, 503, "not_ready")
        assert response.headers["retry-after"] == "2"
    assert pixel(client, job, row=1, col=1)["spectrum"]["values"] == cube[1, 1].tolist()


def test_a_pixel_that_kills_its_reader_is_refused_and_the_next_is_read(slow_server, tmp_path, cube):
    poisoned = cube.copy()
    poisoned[20, 20, 2] = POISON
    job = slow_server.submit(write_tif(tmp_path / "p.tif", poisoned, wavelengths_nm=WAVELENGTHS))
    found = pixel(slow_server.client, job, row=20, col=20)
    assert found["spectrum"] is None
    assert "within 20 s" in found["spectrum_missing"]
    assert "blocks that must be unpacked whole" in found["spectrum_missing"]
    assert pixel(slow_server.client, job, row=1, col=1)["spectrum"]["values"] == cube[1, 1].tolist()


def test_many_slow_pixels_are_refused_and_block_no_upload(slow_server, tmp_path, cube, tif):
    job = slow_server.submit(write_tif(tmp_path / "p.tif", slow(cube), wavelengths_nm=WAVELENGTHS))
    with ThreadPoolExecutor(24) as pool, httpx.Client(base_url=slow_server.url, timeout=60) as client:
        futures = [pool.submit(client.get, f"/jobs/{job}/pixel?row=20&col=20") for _ in range(24)]
        wait_for(lambda: sum(future.done() for future in futures) >= 8)
        uploaded(slow_server, tif)
        assert not all(future.done() for future in futures)
        responses = [future.result() for future in futures]
    refused = [response for response in responses if response.status_code != 200]
    assert len(refused) == 8
    for response in refused:
        assert "try again in 1 s" in refusal(response, 503, "not_ready")
        assert response.headers["retry-after"] == "1"
    assert all(response.json()["spectrum"] for response in responses if response not in refused)


def statuses_of(server, path):
    lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    return [line["status"] for line in lines if line.get("message") == "request" and line["path"] == path]


def test_tiles_of_disconnected_clients_are_not_rendered(client, server, job):
    path = f"/jobs/{job}/tiles/probability-3/1/1/0@2x.png"
    endpoint = (httpx.URL(server.url).host, httpx.URL(server.url).port)
    sockets = [socket.create_connection(endpoint) for _ in range(200)]
    for each in sockets:
        each.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    for each in sockets:
        each.close()
    assert pixel(client, job, row=17, col=5)["class"]
    wait_for(lambda: len(statuses_of(server, path)) == 200)
    found = statuses_of(server, path)
    assert set(found) <= {200, 499, 503}
    assert found.count(499) > 20
    assert tile(client, job, "probability-3", 1, 1, 0, "@2x").shape == (512, 512, 4)


def test_the_preview_of_a_large_scene_is_rendered_in_advance(server, tmp_path):
    values = np.zeros((1000, 1001, 5), "uint8")
    scene = uploaded(server, write_tif(tmp_path / "large.tif", values, wavelengths_nm=WAVELENGTHS, compress="deflate"))
    assert previews_of(server, scene) == []
    started(server, scene)
    wait_for(lambda: previews_of(server, scene) == ["3-2-1.tif"])


def test_the_oldest_previews_are_evicted(client, server, tif):
    scene = uploaded(server, tif)
    job = started(server, scene)
    server.finished(job)
    combinations = [f"{red},{green},1" for red in (1, 2, 3) for green in (1, 2, 3, 4)]
    for bands in combinations:
        tile(client, job, "scene", 0, 0, 0, bands=bands)
    assert previews_of(server, scene) == sorted(bands.replace(",", "-") + ".tif" for bands in combinations[-8:])
    tile(client, job, "scene", 1, 0, 0, bands=combinations[0])  # is rendered again


def test_unfinished_previews_of_a_killed_server_are_removed(tmp_path, bundles, tif):
    options = ("--bundles", bundles, "--device", "cpu")
    with running_server(tmp_path / "data", *options) as server:
        scene = uploaded(server, tif)
        job = started(server, scene)
        server.finished(job)
        tile(server.client, job, "scene", 0, 0, 0)
        server.stop(signal.SIGKILL)
    half = server.data / "scenes" / scene / "views" / "half-0123"
    half.mkdir()
    (half / "plain_picture.tif").write_bytes(b"II*\0")
    with running_server(tmp_path / "data", *options) as server:
        assert previews_of(server, scene) == ["3-2-1.tif"]
        assert tile(server.client, job, "scene", 0, 0, 0).shape == (256, 256, 4)
        assert len(lines_of(server, "preview made")) == 1  # by either server


def test_a_scene_that_kills_its_reader_only_loses_its_preview(tmp_path, bundles, tif, cube):
    poisoned = cube.copy()
    poisoned[20, 20, 2] = POISON
    path = write_tif(tmp_path / "poisoned.tif", poisoned, wavelengths_nm=WAVELENGTHS)
    with running_server(tmp_path / "data", "--bundles", bundles, "--device", "cpu", PYTHONPATH=POISON_PATH) as server:
        scene = uploaded(server, path)
        job = started(server, scene)
        response = get_when_rendered(server.client, f"/jobs/{job}/tiles/scene/0/0/0.png")
        refusal(response, 422, "scene_unreadable")
        assert previews_of(server, scene) == []
        assert len(lines_of(server, "preview made")) == 0
        sound = mapped(server, tif)
        assert tile(server.client, sound, "scene", 0, 0, 0).shape == (256, 256, 4)


def test_a_preview_that_does_not_fit_on_disk_is_refused_and_removed(tmp_path, bundles, tif):
    with running_server(tmp_path / "data", "--bundles", bundles, "--device", "cpu") as server:
        scene = uploaded(server, tif)
        job = started(server, scene)
        server.finished(job)
        server.stop()
    # A scene with so many pixels that no disk can hold its preview.
    with sqlite3.connect(tmp_path / "data" / "hyperscene.sqlite") as db:
        document = json.loads(db.execute("SELECT document FROM scenes WHERE id = ?", (scene,)).fetchone()[0])
        db.execute("UPDATE scenes SET document = ?", (json.dumps(document | {"rows": 10**9, "cols": 10**9}),))
    db.close()
    with running_server(tmp_path / "data", "--bundles", bundles, "--device", "cpu") as server:
        refusal(server.client.get(f"/jobs/{job}/tiles/scene/0/0/0.png"), 507, "storage_full")
        assert previews_of(server, scene) == []


def test_requests_that_wait_for_a_preview_end_when_the_server_stops(tmp_path, bundles):
    values = np.random.default_rng(3).integers(0, 4000, (4000, 4000, 5), "uint16")
    path = write_tif(tmp_path / "wide.tif", values, wavelengths_nm=WAVELENGTHS)
    with running_server(tmp_path / "data", "--bundles", bundles, "--device", "cpu") as server:
        scene = uploaded(server, path)
        job = started(server, scene)
        with ThreadPoolExecutor(1) as pool, httpx.Client(base_url=server.url, timeout=60) as client:
            process = psutil.Process(server.process.pid)
            before = len(process.net_connections())
            response = pool.submit(client.get, f"/jobs/{job}/tiles/scene/0/0/0.png")
            wait_for(lambda: len(process.net_connections()) > before)  # the request must arrive before the server stops
            wait_for(lambda: previews_of(server, scene))
            assert server.stop() == 0
            refusal(response.result(), 503, "not_ready")
        assert previews_of(server, scene) == []
        assert "Traceback" not in server.log.read_text()


# Keys


def test_a_job_of_another_key_has_no_tiles(tmp_path, bundles, tif):
    mine, other = {"X-API-Key": "mine-1234"}, {"X-API-Key": "other-1234"}
    options = ("--bundles", bundles, "--device", "cpu", "--api-keys", "mine-1234,other-1234")
    with running_server(tmp_path / "data", *options) as server:
        job = server.submit(tif, headers=mine)
        server.finished(job, **mine)
        for path in ("tilejson.json", "tiles/classes/0/0/0.png", "tiles/scene/0/0/0@2x.png", "pixel?row=0&col=0"):
            url = f"/jobs/{job}/{path}"
            allowed = get_when_rendered(server.client, url, headers=mine)
            assert allowed.status_code == 200
            tag = {"If-None-Match": allowed.headers.get("etag", "*")}
            refusal(server.client.get(url, headers=other | tag), 404, "no_such_job")
            refusal(server.client.get(url, headers=tag), 401, "unauthorized")


def test_retention_times_are_given_in_days(client):
    assert "kept for 7 days" in refusal(client.get(f"/jobs/{'0' * 32}/tilejson.json"), 404, "no_such_job")
    assert "kept for 7 days" in refusal(client.get(f"/scenes/{'0' * 32}"), 404, "no_such_scene")
