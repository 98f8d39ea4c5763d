"""POST /classify over HTTP; the rasters are those of the library, byte for byte."""

import io
import zipfile

import numpy as np
import pytest
import rasterio

from hyperscene.model.bundle import load_bundle
from hyperscene.service.mapping.engines import make_engine
from hyperscene.service.mapping.options import MapOptions
from hyperscene.service.mapping.output import RESULTS
from hyperscene.service.mapping.pipeline import map_scene
from hyperscene.service.mapping.scenes import open_scene
from tests.scenes import WAVELENGTH_LINE, WAVELENGTHS, write_envi, write_tif


@pytest.fixture(scope="module")
def cube():
    return np.random.default_rng(3).uniform(0.05, 0.6, (40, 33, 5)).astype("float32")


@pytest.fixture(scope="module")
def tif(tmp_path_factory, cube):
    return write_tif(tmp_path_factory.mktemp("scene") / "field.tif", cube, wavelengths_nm=WAVELENGTHS)


@pytest.fixture(scope="module")
def envi(tmp_path_factory, cube):
    return write_envi(tmp_path_factory.mktemp("scene") / "field.img", cube, WAVELENGTH_LINE, "BIL")


def library_map(tmp_path, scene, bundle_path, **options):
    bundle = load_bundle(bundle_path)
    map_scene(open_scene(scene), bundle, make_engine(bundle, "cpu"), tmp_path / "library", MapOptions(**options))
    return {name: (tmp_path / "library" / name).read_bytes() for name in RESULTS}


def send(client, *paths, accept=None, prefer=None, **fields):
    files = [("scene", (path.name, path.read_bytes())) for path in paths]
    headers = {name: value for name, value in (("Accept", accept), ("Prefer", prefer)) if value}
    return client.post("/classify", files=files, data=fields, headers=headers)


def test_the_class_map_of_a_geotiff_is_that_of_the_library(client, tif, bundle_folder, tmp_path):
    response = send(client, tif)
    assert response.status_code == 200
    assert response.headers["content-type"] == "image/tiff"
    assert response.content == library_map(tmp_path, tif, bundle_folder / "pixel.onnx")["classes.tif"]


def test_the_class_map_of_an_envi_scene_is_that_of_the_library(client, envi, bundle_folder, tmp_path):
    response = send(client, envi, envi.with_suffix(".hdr"))
    assert response.content == library_map(tmp_path, envi, bundle_folder / "pixel.onnx")["classes.tif"]


def test_error_messages_use_the_uploaded_file_names(client, tif, envi, tmp_path):
    half = tmp_path / "half.tif"
    half.write_bytes(tif.read_bytes()[:2000])
    assert send(client, half).json()["detail"].startswith("half.tif is cut short")
    short, header = tmp_path / "short.img", tmp_path / "short.hdr"
    short.write_bytes(envi.read_bytes()[:2000])
    header.write_text(envi.with_suffix(".hdr").read_text())
    assert send(client, short, header).json()["detail"].startswith("short.img")


def test_the_map_has_the_scenes_georeference(client, tif):
    with rasterio.open(io.BytesIO(send(client, tif).content)) as mapped, rasterio.open(tif) as scene:
        assert (mapped.crs, mapped.transform, mapped.shape) == (scene.crs, scene.transform, scene.shape)


def test_a_zip_has_every_result(client, tif, bundle_folder, tmp_path):
    response = send(client, tif, accept="application/zip", model="patch", stride_px="2", blend="linear")
    expected = library_map(tmp_path, tif, bundle_folder / "patch.onnx", stride_px=2, blend="linear")
    with zipfile.ZipFile(io.BytesIO(response.content)) as archive:
        assert archive.testzip() is None
        assert sorted(archive.namelist()) == sorted(RESULTS)
        for name in RESULTS:
            if not name.endswith(".json"):  # contains times
                assert archive.read(name) == expected[name], name


def test_an_asynchronous_job_writes_the_same_bytes(server, client, tif, bundle_folder, tmp_path):
    response = send(client, tif, prefer="respond-async", probability_type="float32")
    assert response.status_code == 201
    job = response.json()
    assert response.headers["location"] == f"{server.url}/jobs/{job['jobID']}"
    assert server.finished(job["jobID"])["status"] == "successful"
    expected = library_map(tmp_path, tif, bundle_folder / "pixel.onnx", probability_type="float32")
    for name in ("classes.tif", "probabilities.tif", "confidence.tif", "classes.qml", "preview.png"):
        assert client.get(f"/jobs/{job['jobID']}/results/{name}").content == expected[name], name


def test_the_summary_has_the_uploaded_file_name(client, tif):
    job = send(client, tif).headers["location"]
    summary = client.get(f"{job}/results/summary.json").json()
    assert summary["scene"]["name"] == "field.tif"
    assert client.get(f"{job}/results/item.json").json()["id"] == job.rsplit("/", 1)[1]


def test_the_jobs_url_is_in_a_header(client, tif):
    response = send(client, tif)
    assert client.get(response.headers["location"]).json()["status"] == "successful"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"stride_px": "3"}, "stride_px must be one of 1, 2, 4, 8, 16"),
        ({"blend": "sharp"}, "blend must be one of angle, linear, none"),
        ({"blend": "none"}, "needs stride 1"),
        ({"stride": "4"}, "no option 'stride'"),
        ({"probability_type": "float64"}, "probability_type must be one of"),
    ],
)
def test_invalid_options_are_refused_by_name(client, tif, fields, message):
    response = send(client, tif, **fields)
    assert response.status_code == 422
    assert message in response.json()["detail"]


def test_an_unknown_model_is_refused_with_a_list_of_models(client, tif):
    response = send(client, tif, model="nothing")
    assert response.status_code == 404
    assert response.json()["code"] == "no_such_model"
    assert "patch, pixel, root" in response.json()["detail"]


def test_a_refused_scene_leaves_nothing_on_disk(server, client, tif):
    before = sorted(path.name for path in (server.data / "scenes").iterdir())
    assert send(client, tif, model="nothing").status_code == 404
    assert sorted(path.name for path in (server.data / "scenes").iterdir()) == before
    assert not any((server.data / "incoming").iterdir())
