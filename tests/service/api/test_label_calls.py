"""Labels over HTTP: strokes, versions, files that training takes, and what survives a kill."""

from __future__ import annotations

import json
import signal

import numpy as np
import pytest
import rasterio

from hyperscene.training.data.label_files import SceneGrid, list_labels
from hyperscene.training.data.vector_labels import WGS84
from tests.scenes import GRID, UTM, WAVELENGTHS, quadrants, spectra_of, write_tif
from tests.server import running_server

ROWS, COLS = 40, 33
WATER, FOREST = {"value": 1, "name": "water", "color": "#2b6cb0"}, {"value": 2, "name": "forest", "color": "#1e6b34"}
STROKES = {
    "classes": [WATER, FOREST],
    "set": [{"class": 1, "runs": [[3, 4, 3], [4, 5, 1]]}, {"class": 2, "runs": [[20, 0, 33]]}],
}


@pytest.fixture(scope="module")
def tif(tmp_path_factory):
    values = spectra_of(quadrants(ROWS, COLS), 5)
    return write_tif(tmp_path_factory.mktemp("scene") / "field.tif", values, wavelengths_nm=WAVELENGTHS)


def send_scene(client, path, **headers):
    return client.post("/scenes", content=path.read_bytes(), headers=headers).json()["id"]


@pytest.fixture
def labels(client, tif):
    """The address of an empty label set."""
    return f"/scenes/{send_scene(client, tif)}/labels"


@pytest.fixture
def drawn(client, labels):
    """The address of a label set with two classes."""
    patch(client, labels, STROKES)
    return labels


def read(client, labels):
    return client.get(labels, params={"format": "json"})


def patch(client, labels, body, etag=None):
    return client.patch(labels, json=body, headers={"If-Match": etag or read(client, labels).headers["etag"]})


def runs(client, labels):
    return {each["name"]: each["runs"] for each in read(client, labels).json()["classes"]}


def test_a_new_scene_has_no_labels(client, labels):
    response = read(client, labels)
    assert response.json() == {"version": 0, "rows": ROWS, "cols": COLS, "pixels": 0, "classes": []}
    assert response.headers["etag"].startswith('"0-')
    assert client.get(labels).json() == {"type": "FeatureCollection", "features": []}


def test_strokes_are_stored_with_their_classes(client, labels):
    response = patch(client, labels, STROKES)
    assert response.status_code == 200, response.text
    assert [(each["name"], each["pixels"]) for each in response.json()["classes"]] == [("water", 4), ("forest", 33)]
    assert runs(client, labels) == {"water": [[3, 4, 3], [4, 5, 1]], "forest": [[20, 0, 33]]}
    assert response.headers["etag"] == read(client, labels).headers["etag"]


def test_a_stroke_takes_pixels_from_other_classes_and_the_eraser_from_all(client, drawn):
    patch(client, drawn, {"set": [{"class": 1, "runs": [[20, 10, 3]]}, {"class": 0, "runs": [[3, 0, 6], [20, 12, 2]]}]})
    assert runs(client, drawn) == {"water": [[3, 6, 1], [4, 5, 1], [20, 10, 2]], "forest": [[20, 0, 10], [20, 14, 19]]}


def test_classes_are_renamed_and_removed_with_their_pixels(client, drawn):
    patch(client, drawn, {"classes": [FOREST | {"name": "wood", "color": "#00FF00"}]})
    found = read(client, drawn).json()["classes"]
    assert found == [{"value": 2, "name": "wood", "color": "#00ff00", "pixels": 33, "runs": [[20, 0, 33]]}]


def test_a_geometry_is_drawn_on_the_scenes_grid(client, drawn):
    lon, lat = rasterio.warp.transform(UTM, WGS84, *zip(GRID @ (10.5, 30.5), GRID @ (12.5, 30.5), strict=True))
    line = {"type": "LineString", "coordinates": list(zip(lon, lat, strict=True))}
    assert patch(client, drawn, {"set": [{"class": 1, "geometry": line}]}).status_code == 200
    assert [30, 10, 3] in runs(client, drawn)["water"]


def test_a_change_to_an_older_version_is_refused(client, drawn):
    old = read(client, drawn).headers["etag"]
    assert patch(client, drawn, {"set": [{"class": 1, "runs": [[9, 9, 1]]}]}, old).status_code == 200
    refused = patch(client, drawn, {"set": [{"class": 2, "runs": [[9, 9, 1]]}]}, old)
    assert (refused.status_code, refused.json()["code"]) == (412, "labels_changed")
    assert [9, 9, 1] in runs(client, drawn)["water"]


def test_a_change_without_a_version_is_refused(client, drawn):
    refused = client.patch(drawn, json={"set": []})
    assert (refused.status_code, refused.json()["code"]) == (428, "precondition_missing")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"set": [{"class": 7, "runs": [[0, 0, 1]]}]}, "there is no class 7"),
        ({"set": [{"class": 1, "runs": [[39, 30, 4]]}]}, "outside of the scene"),
        ({"set": [{"class": 1, "runs": [[0, 0, 0]]}]}, "at least one pixel"),
        ({"set": [{"class": 1, "runs": [[0, 0, 2**70]]}]}, "less than or equal"),
        ({"set": [{"class": 1}]}, "either `runs` or a `geometry`"),
        ({"set": [{"class": 1, "geometry": {"type": "Point", "coordinates": [0, 0]}}]}, "covers a pixel"),
        ({"classes": [WATER, FOREST | {"name": "water"}]}, "two classes have the name water"),
        ({"classes": [WATER | {"color": "blue"}]}, "not like #1e6b34"),
        ({"classes": [WATER | {"name": " "}]}, "needs a name"),
        ({"classes": [WATER | {"value": 256}]}, "not between 1 and 255"),
    ],
)  # fmt: skip
def test_changes_that_make_no_sense_are_refused(client, drawn, body, words):
    before = read(client, drawn).json()
    refused = patch(client, drawn, body)
    assert (refused.status_code, words in refused.json()["detail"]) == (422, True), refused.text
    assert read(client, drawn).json() == before


@pytest.mark.parametrize("name", ["labels.geojson", "labels.gpkg", "labels.tif"])
def test_training_reads_exactly_the_pixels_that_were_drawn(client, drawn, tmp_path, name):
    path = tmp_path / name
    path.write_bytes(client.get(drawn, params={"format": name.partition(".")[2]}).raise_for_status().content)
    scene = SceneGrid("field", (ROWS, COLS, 1), UTM, GRID)
    found = list_labels(path, scene, None if name.endswith("tif") else "class", None).on_grid((ROWS, COLS))
    names = {value: found.in_file.names[value] for value in np.unique(found.values[found.values > 0])}
    pixels = {name: int((found.values == value).sum()) for value, name in names.items()}
    assert pixels == {"water": 4, "forest": 33}
    assert (found.values[20] > 0).all()
    assert (found.values[3, 4:7] > 0).all()


@pytest.mark.parametrize("kind", ["geojson", "gpkg", "tif", "json"])
def test_exported_labels_can_be_imported(client, tif, drawn, kind):
    sent = client.get(drawn, params={"format": kind})
    other = f"/scenes/{send_scene(client, tif)}/labels"
    headers = {"Content-Type": sent.headers["content-type"], "If-Match": read(client, other).headers["etag"]}
    params = {"class_field": "class"} if kind in ("gpkg", "geojson") else {}
    response = client.put(other, content=sent.content, headers=headers, params=params)
    assert response.status_code == 200, response.text
    assert runs(client, other) == runs(client, drawn)


@pytest.mark.parametrize(
    ("media_type", "content", "words"),
    [
        ("application/geo+json", b"{", "not GeoJSON"),
        ("application/geo+json", b'{"type": "Feature"}', "not a GeoJSON FeatureCollection"),
        ("application/geopackage+sqlite3", b"<OGRVRTDataSource/>", "not a GeoPackage"),
        ("image/tiff", b"<VRTDataset/>", "labels.tif"),
        ("text/plain", b"", "Content-Type"),
    ],
)
def test_files_that_are_no_labels_are_refused(client, drawn, media_type, content, words):
    headers = {"Content-Type": media_type, "If-Match": read(client, drawn).headers["etag"]}
    refused = client.put(drawn, content=content, headers=headers)
    assert (refused.status_code, words in refused.json()["detail"]) == (422, True), refused.text


def test_a_scene_without_position_has_labels_in_pixel_coordinates(client, tmp_path):
    values = spectra_of(quadrants(ROWS, COLS), 5)
    scene = write_tif(tmp_path / "lab.tif", values, wavelengths_nm=WAVELENGTHS, crs=None, transform=None)
    labels = f"/scenes/{send_scene(client, scene)}/labels"
    patch(client, labels, STROKES)
    ring = client.get(labels).json()["features"][1]["geometry"]["coordinates"][0][0]
    assert sorted(map(tuple, ring))[0] == (0, 20)
    assert sorted(map(tuple, ring))[-1] == (33, 21)


def test_labels_survive_a_kill_and_keep_the_scene_longer(tif, bundle_folder, tmp_path):
    options = ("--bundles", bundle_folder, "--model", "pixel", "--device", "cpu")
    with running_server(tmp_path / "data", *options) as server:
        scene = send_scene(server.client, tif)
        expires = server.client.get(f"/scenes/{scene}").json()["expires"]
        patch(server.client, f"/scenes/{scene}/labels", STROKES)
        assert server.client.get(f"/scenes/{scene}").json()["expires"] > expires
        server.stop(signal.SIGKILL)
    with running_server(tmp_path / "data", *options) as server:
        assert runs(server.client, f"/scenes/{scene}/labels")["forest"] == [[20, 0, 33]]
        assert patch(server.client, f"/scenes/{scene}/labels", {"classes": [WATER]}).status_code == 200


def test_two_owners_do_not_see_each_others_labels(tif, bundle_folder, tmp_path):
    options = ("--bundles", bundle_folder, "--model", "pixel", "--device", "cpu")
    with running_server(tmp_path / "data", *options, HYPERSCENE_API_KEYS="one,two") as server:
        scene = send_scene(server.client, tif, **{"X-API-Key": "one"})
        labels = f"/scenes/{scene}/labels"
        assert server.client.get(labels, headers={"X-API-Key": "one"}).status_code == 200
        assert server.client.get(labels, headers={"X-API-Key": "two"}).status_code == 404
        server.client.delete(f"/scenes/{scene}", headers={"X-API-Key": "one"})
        assert not list((server.data / "scenes").glob("*/labels"))
    assert json.loads((server.log.read_text().splitlines() or ["{}"])[-1])
