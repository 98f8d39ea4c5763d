"""Every STAC Item that we produce: the models', and that of a finished job."""

import json

import jsonschema
import pytest
from rasterio.crs import CRS

from hyperscene.model.bundle import read_bundle
from hyperscene.service.api.models import model_item
from hyperscene.service.jobs.models import ServedModel
from tests.bundles import write_bundle, write_patch_bundle
from tests.scenes import WAVELENGTHS, quadrants, spectra_of, write_tif
from tests.schemas import require_item

NAMES = ["water", 'a "b" <c>', "grün"]


def item_of(path):
    bundle = read_bundle(path)
    model = ServedModel(name=path.stem, path=path, manifest=bundle.manifest, sha256=bundle.sha256)
    return json.loads(json.dumps(model_item(model, "http://here")))


def test_every_model_of_a_server_is_a_valid_item(client):
    names = [model["name"] for model in client.get("/models").json()["models"]]
    assert len(names) == 3
    for name in names:
        require_item(client.get(f"/models/{name}").json())


@pytest.mark.parametrize("name", ["pixel", "Ackerland (Süd) 2025", "7", "_", "模型"])
def test_a_model_of_any_name_is_a_valid_item(tmp_path, name):
    item = item_of(write_bundle(tmp_path / "crops.onnx", name=name, class_names=NAMES))
    require_item(item)
    assert item["properties"]["title"] == name


def test_models_without_wavelengths_and_with_a_token_head_are_valid_items(tmp_path):
    require_item(item_of(write_bundle(tmp_path / "bands.onnx", wavelengths_nm=None)))
    require_item(item_of(write_patch_bundle(tmp_path / "token.onnx", head="token")))


@pytest.mark.parametrize("crs", ["EPSG:32633", "+proj=laea +lat_0=52 +lon_0=13.3 +datum=WGS84", None])
def test_the_item_of_a_finished_job_is_valid(server, tmp_path, crs):
    crs = crs and CRS.from_string(crs)
    values = spectra_of(quadrants(20, 20), 5)
    job_id = server.submit(write_tif(tmp_path / "scene.tif", values, crs=crs, wavelengths_nm=WAVELENGTHS))
    assert server.finished(job_id)["status"] == "successful"
    require_item(server.client.get(f"/jobs/{job_id}/results/item.json").json())


def test_a_field_of_an_extension_that_is_not_declared_is_refused(client):
    item = client.get("/models/pixel").json()
    item["stac_extensions"].pop()
    with pytest.raises(AssertionError):
        require_item(item)


def test_a_value_that_an_extension_does_not_allow_is_refused(client):
    item = client.get("/models/pixel").json()
    item["assets"]["bundle"]["file:checksum"] = "sha256"
    with pytest.raises(jsonschema.ValidationError):
        require_item(item)
