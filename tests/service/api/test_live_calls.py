"""The live map over HTTP: on the scene's grid, from the labels of the moment, in processes that come and go."""

from __future__ import annotations

import os
import signal

import numpy as np
import psutil
import pytest
import rasterio
from rasterio.io import MemoryFile

from hyperscene.service.mapping.gdal import ignore_missing_georeference
from hyperscene.training.data.synthetic import MATERIALS, SyntheticScene, write_scene
from tests.scenes import WAVELENGTHS, quadrants, spectra_of, write_tif
from tests.server import running_server, wait_for

SCENE = SyntheticScene(rows=150, cols=140, bands=40, seed=7)
CLASSES = [{"value": k, "name": each.name, "color": each.color} for k, each in enumerate(MATERIALS, start=1)]
OPTIONS = ("--live-sessions", 1, "--live-idle-s", 600)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("live")


@pytest.fixture(scope="module")
def live(folder, bundle_folder):
    """A server with room for one session."""
    bundles = ("--bundles", bundle_folder, "--model", "pixel", "--device", "cpu")
    with running_server(folder / "data", *bundles, *OPTIONS) as server:
        yield server


@pytest.fixture(scope="module")
def truth(folder):
    write_scene(SCENE, folder / "scene.tif", folder / "truth.tif")
    with rasterio.open(folder / "truth.tif") as file:
        return file.read(1)


@pytest.fixture(scope="module")
def scene(live, folder, truth):
    """The address of a scene with 5 strokes of 3 x 3 pixels in each class, whose live map is ready."""
    return labelled_scene(live, folder / "scene.tif", truth)


def labelled_scene(server, path, truth):
    sent = server.client.post("/scenes", content=path.read_bytes())
    address = f"/scenes/{sent.json()['id']}"
    generator = np.random.default_rng(0)
    strokes = []
    for value in range(1, 9):
        inner = np.argwhere(is_inside(truth == value))
        for row, col in generator.permutation(inner)[:5].tolist():
            strokes.append({"class": value, "runs": [[row + step, col - 1, 3] for step in (-1, 0, 1)]})
    change(server, address, {"classes": CLASSES, "set": strokes})
    server.client.post(f"{address}/live").raise_for_status()
    wait_for(lambda: server.client.get(f"{address}/live").json()["state"] == "ready")
    return address


def is_inside(own):
    """Pixels whose 3 x 3 neighbours have the same class."""
    padded = np.pad(own, 1)
    parts = [padded[row : row + len(own), col : col + own.shape[1]] for row in range(3) for col in range(3)]
    return np.logical_and.reduce(parts)


def change(server, address, body):
    etag = server.client.get(f"{address}/labels", params={"format": "json"}).headers["etag"]
    return server.client.patch(f"{address}/labels", json=body, headers={"If-Match": etag}).raise_for_status()


def view(server, address, window, size=(1000, 1000), **more):
    names = ("top", "left", "rows", "cols", "width", "height")
    params = dict(zip(names, (*window, *size), strict=True)) | more
    return server.client.get(f"{address}/live/view.png", params=params)


def values_of(response):
    """Classes and confidence of a response."""
    response.raise_for_status()
    with ignore_missing_georeference(), MemoryFile(response.content) as memory, memory.open(driver="PNG") as file:
        return file.read(1), file.read(2) / 255


def test_the_live_map_is_right_on_85_percent_of_the_pixels(live, scene, truth):
    classes, confidence = values_of(view(live, scene, (0, 0, 150, 140)))
    assert classes.shape == truth.shape
    assert ((classes == truth)[truth > 0]).mean() >= 0.85
    assert (classes[truth == 0] == 0).all()
    assert 0.3 < confidence[truth > 0].mean() <= 1


def test_a_window_agrees_with_the_whole_map_and_says_what_it_shows(live, scene):
    whole, _ = values_of(view(live, scene, (0, 0, 150, 140)))
    response = view(live, scene, (40, 30, 60, 50))
    assert response.headers["x-window"] == "40,30,60,50"
    part, _ = values_of(response)
    assert (part == whole[40:100, 30:80]).mean() > 0.95


def test_a_small_picture_is_computed_at_its_own_resolution(live, scene, truth):
    response = view(live, scene, (0, 0, 150, 140), size=(75, 70))
    assert response.headers["x-window"] == "0,0,150,140"
    classes, _ = values_of(response)
    assert classes.shape == (75, 70)
    assert (classes == truth[::2, ::2])[truth[::2, ::2] > 0].mean() > 0.75


def test_the_map_follows_the_labels(live, folder, truth):
    address = labelled_scene(live, folder / "scene.tif", truth)
    before = view(live, address, (0, 0, 150, 140))
    row, col = np.argwhere(is_inside(truth == 1))[0].tolist()
    etag = change(live, address, {"set": [{"class": 8, "runs": [[row, col, 1]]}]}).headers["etag"]
    after = view(live, address, (0, 0, 150, 140))
    assert after.headers["etag"] == etag != before.headers["etag"]
    assert values_of(after)[0][row, col] == 8


def test_tiles_show_the_scene_its_components_and_the_map(live, scene):
    for layer in ("scene", "components", "classes", "confidence"):
        tile = f"{scene}/live/tiles/{layer}/0/0/0.png"
        wait_for(lambda tile=tile: live.client.get(tile).is_success)
        assert live.client.get(tile).content.startswith(b"\x89PNG")
    assert live.client.get(f"{scene}/live/tiles/classes/0/1/0.png").status_code == 404
    assert live.client.get(f"{scene}/live/tiles/classes/5/0/0.png").status_code == 404


def test_the_estimate_contains_the_true_accuracy_and_finds_a_mistake(live, folder, truth):
    address = labelled_scene(live, folder / "scene.tif", truth)
    forest = live.client.get(f"{address}/labels", params={"format": "json"}).json()["classes"][1]["runs"]
    row, col = forest[1][0], forest[1][1] + 1  # inside a stroke
    change(live, address, {"set": [{"class": 1, "runs": [[row, col, 1]]}]})
    found = live.client.get(f"{address}/live/estimate").json()
    assert found["is_done"]
    low, high = found["estimate"]["oa"]["interval"]
    classes, _ = values_of(view(live, address, (0, 0, 150, 140)))
    assert low - 0.05 <= (classes == truth)[truth > 0].mean() <= high + 0.05
    assert np.sum(found["estimate"]["confusion"]) == found["estimate"]["pixels"]
    assert (row, col) in {(each["row"], each["col"]) for each in found["mistakes"]}


def test_suggested_places_differ_and_are_uncertain(live, scene):
    places = live.client.get(f"{scene}/live/suggestions", params={"count": 10}).json()["places"]
    assert len({(each["row"], each["col"]) for each in places}) == 10
    positions = np.array([(each["row"], each["col"]) for each in places])
    distances = np.linalg.norm(positions[:, None] - positions, axis=-1)[~np.eye(10, dtype=bool)]
    assert np.median(distances) > 30
    assert np.median([each["margin"] for each in places]) < 0.5


def test_spectra_of_classes_and_pixels_are_in_physical_units(live, scene, truth):
    found = live.client.get(f"{scene}/live/spectra").json()
    assert [each["name"] for each in found["classes"]] == [each["name"] for each in CLASSES]
    means = {each["name"]: np.mean(each["mean"]) for each in found["classes"]}
    assert means["water"] < 0.15 < means["sand"] < 1
    row, col = np.argwhere(truth == 1)[0].tolist()
    pixel = live.client.get(f"{scene}/pixel", params={"row": row, "col": col}).json()
    assert len(pixel["values"]) == len(pixel["wavelengths_nm"]) == 40
    assert pixel["lon"] == pytest.approx(13, abs=1.5)
    assert live.client.get(f"{scene}/pixel", params={"row": 150, "col": 0}).status_code == 422


def test_a_session_that_was_killed_or_dropped_comes_back(live, scene, folder, truth):
    before = values_of(view(live, scene, (0, 0, 60, 60)))[0]
    for pid in sessions(live):
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: view(live, scene, (0, 0, 60, 60)).is_success)
    labelled_scene(live, folder / "scene.tif", truth)  # needs the only place
    assert (values_of(view(live, scene, (0, 0, 60, 60)))[0] == before).mean() > 0.99
    assert len(sessions(live)) == 1


def sessions(server):
    """Processes of the server's live sessions."""
    children = psutil.Process(server.process.pid).children()
    return [child.pid for child in children if "hyperscene.service.jobs.live_worker" in child.cmdline()]


def test_labels_of_one_class_have_no_map_and_say_so(live, folder):
    values = spectra_of(quadrants(40, 33), 5)
    path = write_tif(folder / "small.tif", values, wavelengths_nm=WAVELENGTHS, crs=None, transform=None)
    address = f"/scenes/{live.client.post('/scenes', content=path.read_bytes()).json()['id']}"
    assert view(live, address, (0, 0, 40, 33)).json()["code"] == "live_not_ready"
    live.client.post(f"{address}/live").raise_for_status()
    wait_for(lambda: live.client.get(f"{address}/live").json()["state"] == "ready")
    change(live, address, {"classes": CLASSES[:1], "set": [{"class": 1, "runs": [[3, 3, 4]]}]})
    refused = view(live, address, (0, 0, 40, 33))
    assert (refused.status_code, refused.json()["code"]) == (422, "labels_unusable")
    assert "at least two classes" in refused.json()["detail"]
