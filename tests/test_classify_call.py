"""POST /classify as a caller sees it; the raster is what the library writes, byte for byte."""

import io
import zipfile

import numpy as np
import pytest
import rasterio

from model.bundle import load_bundle
from service.mapping.engines import make_engine
from service.mapping.pipeline import RESULTS, MapOptions, map_scene
from service.mapping.scenes import open_scene
from tests.scenes import write_envi, write_tif

WAVELENGTHS = np.linspace(450, 900, 5)
WAVELENGTH_LINE = "wavelength units = Nanometers\nwavelength = {" + ", ".join(map(str, WAVELENGTHS)) + "}\n"


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


def test_a_geotiff_comes_back_as_the_class_map_that_the_library_writes(client, tif, bundle_folder, tmp_path):
    answer = send(client, tif)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "image/tiff"
    assert answer.content == library_map(tmp_path, tif, bundle_folder / "pixel.onnx")["classes.tif"]


def test_envi_data_and_header_come_back_as_the_same_map(client, envi, bundle_folder, tmp_path):
    answer = send(client, envi, envi.with_suffix(".hdr"))
    assert answer.content == library_map(tmp_path, envi, bundle_folder / "pixel.onnx")["classes.tif"]


def test_a_refusal_calls_files_what_their_sender_calls_them(client, tif, envi, tmp_path):
    half = tmp_path / "half.tif"
    half.write_bytes(tif.read_bytes()[:2000])
    assert send(client, half).json()["detail"].startswith("half.tif is cut short")
    short, header = tmp_path / "short.img", tmp_path / "short.hdr"
    short.write_bytes(envi.read_bytes()[:2000])
    header.write_text(envi.with_suffix(".hdr").read_text())
    assert send(client, short, header).json()["detail"].startswith("short.img")


def test_the_map_lies_where_the_scene_lies(client, tif):
    with rasterio.open(io.BytesIO(send(client, tif).content)) as mapped, rasterio.open(tif) as scene:
        assert (mapped.crs, mapped.transform, mapped.shape) == (scene.crs, scene.transform, scene.shape)


def test_a_zip_holds_every_result(client, tif, bundle_folder, tmp_path):
    answer = send(client, tif, accept="application/zip", model="patch", stride_px="2", blend="linear")
    expected = library_map(tmp_path, tif, bundle_folder / "patch.onnx", stride_px=2, blend="linear")
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        assert archive.testzip() is None
        assert sorted(archive.namelist()) == sorted(RESULTS)
        for name in RESULTS:
            if not name.endswith(".json"):  # those tell how long it took
                assert archive.read(name) == expected[name], name


def test_the_job_of_a_caller_who_does_not_wait_ends_with_the_same_bytes(server, client, tif, bundle_folder, tmp_path):
    answer = send(client, tif, prefer="respond-async", probability_type="float32")
    assert answer.status_code == 201
    job = answer.json()
    assert answer.headers["location"] == f"{server.url}/jobs/{job['jobID']}"
    assert server.finished(job["jobID"])["status"] == "successful"
    expected = library_map(tmp_path, tif, bundle_folder / "pixel.onnx", probability_type="float32")
    for name in ("classes.tif", "probabilities.tif", "confidence.tif", "classes.qml", "preview.png"):
        assert client.get(f"/jobs/{job['jobID']}/results/{name}").content == expected[name], name


def test_the_summary_calls_the_scene_as_its_owner_does(client, tif):
    job = send(client, tif).headers["location"]
    summary = client.get(f"{job}/results/summary.json").json()
    assert summary["scene"]["name"] == "field.tif"
    assert client.get(f"{job}/results/item.json").json()["id"] == job.rsplit("/", 1)[1]


def test_the_address_of_the_job_is_in_a_header(client, tif):
    answer = send(client, tif)
    assert client.get(answer.headers["location"]).json()["status"] == "successful"


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"stride_px": "3"}, "stride_px must be one of 1, 2, 4, 8, 16"),
        ({"blend": "sharp"}, "blend must be one of angle, linear, none"),
        ({"blend": "none"}, "needs stride 1"),
        ({"stride": "4"}, "no option 'stride'"),
        ({"probability_type": "float64"}, "probability_type must be one of"),
    ],
)
def test_options_that_cannot_be_used_are_refused_by_name(client, tif, fields, told):
    answer = send(client, tif, **fields)
    assert answer.status_code == 422
    assert told in answer.json()["detail"]


def test_a_model_that_is_not_served_is_refused_with_those_that_are(client, tif):
    answer = send(client, tif, model="nothing")
    assert answer.status_code == 404
    assert answer.json()["code"] == "no_such_model"
    assert "patch, pixel, root" in answer.json()["detail"]


def test_a_refused_scene_leaves_nothing_on_disk(server, client, tif):
    before = sorted(path.name for path in (server.data / "scenes").iterdir())
    assert send(client, tif, model="nothing").status_code == 404
    assert sorted(path.name for path in (server.data / "scenes").iterdir()) == before
    assert not any((server.data / "incoming").iterdir())
