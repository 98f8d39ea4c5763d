"""Training over HTTP: labels and a scene in, a model out, ready for mapping; kills, owners and refusals."""

import hashlib
import json
import os
import re
import signal
import subprocess
import time
from contextlib import suppress

import numpy as np
import psutil
import pytest
import rasterio

from tests.bundles import write_bundle
from tests.label_files import RECTANGLES, collection, many_vertices, write_geojson, write_vectors
from tests.lifetimes import ends_with_parent
from tests.programs import ROOT
from tests.scenes import quadrants, spectra_of, write_tif
from tests.server import PROGRAM, RunningServer, part, running_server, wait_for

pytestmark = pytest.mark.slow

ROWS, COLS, BANDS = 34, 32, 6
NM = np.linspace(450, 900, BANDS)
ANA, BEN = {"X-API-Key": "ana"}, {"X-API-Key": "ben"}
QUICK = {"epochs": "3", "precision": "float32"}
NAMES = {1: "wheat", 2: "soil", 3: "water", 4: "road"}  # of the quadrants


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A scene of four fields, and labels for some of their pixels."""
    made = tmp_path_factory.mktemp("training")
    write_tif(made / "scene.tif", spectra_of(quadrants(ROWS, COLS), BANDS), wavelengths_nm=NM)
    write_geojson(made / "labels.geojson")
    return made


@pytest.fixture(scope="module")
def trainer(tmp_path_factory, bundle_folder):
    """A server that trains, for two owners."""
    options = ("--bundles", bundle_folder, "--model", "pixel", "--device", "cpu", "--train-workers", 1)
    with running_server(tmp_path_factory.mktemp("trainer") / "data", *options, HYPERSCENE_API_KEYS="ana,ben") as server:
        yield server


@pytest.fixture(scope="module")
def scene_id(trainer, folder):
    return upload(trainer, folder, ANA)


@pytest.fixture(scope="module")
def trained(trainer, folder, scene_id):
    """The finished training of Ana's model `fields`, and all states that it was seen in."""
    job_id, seen = submit(trainer, folder, scene_id).json()["jobID"], []

    def is_finished():
        job = trainer.client.get(f"/jobs/{job_id}", headers=ANA).json()
        seen.append((job["status"], job.get("stage"), job["progress"]))
        return job if job["status"] in ("successful", "failed") else None

    job = wait_for(is_finished, 200)
    assert job["status"] == "successful", job
    return job, seen


def upload(server, folder, headers):
    return server.client.post("/scenes", files={"scene": part(folder / "scene.tif")}, headers=headers).json()["id"]


def submit(server, folder, scene_id, headers=ANA, labels=None, **fields):
    """Send labels for an uploaded scene."""
    data = QUICK | {"scene_id": scene_id, "name": "fields"} | fields
    files = {"labels": part(folder / "labels.geojson") if labels is None else labels}
    return server.client.post("/models", files=files, data=data, headers=headers)


def map_with(server, scene_id, model, headers=ANA):
    """Submit a map; returns the response."""
    return server.client.post(
        "/processes/classify-scene/execution",
        json={"inputs": {"scene": {"href": f"/scenes/{scene_id}"}, "model": model}},
        headers=headers | {"Prefer": "respond-async"},
    )


def trainers_of(server):
    """The processes that train now."""
    found = []
    for process in psutil.Process(server.process.pid).children(recursive=True):
        with suppress(psutil.Error):
            if "hyperscene.service.jobs.trainer" in process.cmdline():
                found.append(process)
    return found


def test_a_training_passes_its_stages_and_ends_with_a_model(trainer, trained):
    job, seen = trained
    assert (job["processID"], job["model"], job["model_version"], job["progress"]) == ("train-model", "fields", 1, 100)
    assert {stage for status, stage, _ in seen if status == "running"} & {"label propagation", "network", "export"}
    assert [progress for _, _, progress in seen] == sorted(progress for _, _, progress in seen)
    assert {"reading", "network", "export", "total"} <= set(job["seconds"])
    listed = trainer.client.get("/models", headers=ANA).json()["models"]
    assert {(model["name"], model["version"], model["is_yours"]) for model in listed} >= {("fields", 1, True)}
    item = trainer.client.get("/models/fields/versions/1", headers=ANA).json()
    assert item["properties"]["hyperscene:training"]["data"]["labels"] == "labels.geojson"
    content = trainer.client.get("/models/fields/bundle.onnx", headers=ANA).content
    assert item["assets"]["bundle"]["file:checksum"] == "1220" + hashlib.sha256(content).hexdigest()


def test_its_report_has_accuracy_confusion_settings_and_both_maps(trainer, trained):
    results = f"/jobs/{trained[0]['jobID']}/results"
    links = trainer.client.get(results, headers=ANA).json()
    assert set(links) == {"bundle", "report", "network", "propagation"}
    report = trainer.client.get("/models/fields/versions/1/report.json", headers=ANA).json()
    assert report == trainer.client.get(f"{results}/report.json", headers=ANA).json()
    far = report["cross_validation"]["far_from_labels"]
    assert far["oa"]["interval"][0] <= far["oa"]["value"] <= far["oa"]["interval"][1]
    assert np.sum(far["confusion"]) == far["pixels"] == trained[0]["settings"]["label_pixels"]
    assert {entry["name"]: entry["clusters"] for entry in report["classes"]} == dict.fromkeys(NAMES.values(), 2)
    assert (report["version"], report["settings"]["recipe"]["epochs"]) == (1, 3)
    assert report["maps"]["agreement"] > 0.8
    for name in ("network.png", "propagation.png"):
        assert trainer.client.get(f"{results}/{name}", headers=ANA).content.startswith(b"\x89PNG")


def test_the_model_maps_its_scene_at_once_and_accurately(trainer, trained, scene_id):
    response = map_with(trainer, scene_id, "fields@1")
    job = trainer.finished(response.json()["jobID"], **ANA)
    assert (job["status"], job["model"], job["model_version"]) == ("successful", "fields", 1)
    classes = trainer.client.get(f"/jobs/{job['jobID']}/results/classes.tif", headers=ANA).content
    with rasterio.MemoryFile(classes) as memory, memory.open() as file:
        found = file.read(1)
    names = trainer.client.get("/models/fields", headers=ANA).json()["properties"]["mlm:output"][0]
    values = {entry["title"]: entry["value"] for entry in names["classification:classes"]}
    truth = np.vectorize(lambda number: values[NAMES[number]])(quadrants(ROWS, COLS))
    assert (found == truth).mean() > 0.9


def test_the_process_is_listed_where_a_worker_trains(trainer):
    listed = trainer.client.get("/processes", headers=ANA).json()["processes"]
    assert [process["id"] for process in listed] == ["classify-scene", "train-model"]


def test_another_owner_sees_neither_training_nor_model(trainer, trained, folder):
    job_id = trained[0]["jobID"]
    for path in (
        f"/jobs/{job_id}",
        f"/jobs/{job_id}/results/bundle.onnx",
        "/models/fields",
        "/models/fields/versions/1",
    ):
        assert trainer.client.get(path, headers=BEN).status_code == 404, path
    assert "fields" not in trainer.client.get("/models", headers=BEN).text
    assert trainer.client.delete("/models/fields", headers=BEN).status_code == 404
    other = upload(trainer, folder, BEN)
    assert map_with(trainer, other, "fields", BEN).json()["code"] == "no_such_model"


def test_an_idempotency_key_gives_the_training_that_it_made(trainer, folder, scene_id, trained):
    before = len(trainer.client.get("/jobs?limit=100", headers=ANA).json()["jobs"])
    headers = ANA | {"Idempotency-Key": "one-training"}
    ids = {submit(trainer, folder, scene_id, headers, epochs="900").json()["jobID"] for _ in range(2)}
    assert len(ids) == 1
    assert len(trainer.client.get("/jobs?limit=100", headers=ANA).json()["jobs"]) == before + 1
    trainings = trainer.client.get("/jobs?processID=train-model", headers=ANA).json()["jobs"]
    assert {job["processID"] for job in trainings} == {"train-model"}
    # Dismissing it stops its process within a second.
    job_id = ids.pop()
    wait_for(lambda: trainers_of(trainer), 60)
    trainer.client.delete(f"/jobs/{job_id}", headers=ANA)
    began = time.monotonic()
    wait_for(lambda: not trainers_of(trainer), 5)
    assert time.monotonic() - began < 1.5
    wait_for(lambda: not (trainer.data / "jobs" / job_id).exists(), 5)


def test_the_process_train_model_takes_inline_labels(trainer, scene_id, trained):
    inputs = {
        "scene": {"href": f"/scenes/{scene_id}"},
        "labels": {"value": collection()},
        "name": "inline",
        "epochs": 900,
    }
    response = trainer.client.post("/processes/train-model/execution", json={"inputs": inputs}, headers=ANA)
    assert response.status_code == 201, response.text
    job = response.json()
    assert (job["processID"], job["model"]) == ("train-model", "inline")
    assert job["settings"]["class_field"] == "crop"
    trainer.client.delete(f"/jobs/{job['jobID']}", headers=ANA)


OVERLAPPING = (*RECTANGLES, ("ash", (3, 3, 5, 5)))
BAD_LABELS = {
    "another coordinate system": (lambda: json.dumps(collection(crs="EPSG:32601")), "covers a pixel|do not fit"),
    "outside of the scene": (lambda: json.dumps(collection(shift=9e4)), "no shape of field.geojson covers a pixel"),
    "one class": (lambda: json.dumps(collection(RECTANGLES[:2])), "contain 1 class and at least two are needed"),
    "overlapping classes": (lambda: json.dumps(collection(OVERLAPPING)), "4 pixels lie in shapes of two classes"),
    "a million vertices": (lambda: many_vertices(1_000_000), "at most 500000 are accepted: simplify"),
    "empty geometry": (lambda: json.dumps(collection()).replace('"Polygon"', '"x"'), "field.geojson"),
    "no label file": (lambda: "<OGRVRTDataSource/>", "field.geojson is no label file: send GeoPackage"),
}  # fmt: skip


def left(server):
    """What refused requests could leave behind."""
    listed = server.client.get("/jobs?limit=100", headers=ANA).json()["jobs"]
    return len(listed), [*(server.data / "incoming").iterdir()], len([*(server.data / "jobs").iterdir()])


@pytest.mark.parametrize("case", BAD_LABELS)
def test_bad_labels_are_refused_in_one_sentence_and_nothing_is_left(case, trainer, folder, scene_id, trained):
    content, reason = BAD_LABELS[case]
    before = left(trainer)
    response = submit(trainer, folder, scene_id, labels=("field.geojson", content()), class_field="crop")
    problem = response.json()
    assert (response.status_code, problem["code"]) == (422, "labels_unusable"), problem
    assert re.search(reason, problem["detail"]), problem["detail"]
    assert "\n" not in problem["detail"]
    assert "labels." not in problem["detail"].replace("labels are", "")
    assert left(trainer) == before


def test_unknown_fields_options_and_names_are_refused(trainer, folder, scene_id, trained):
    before = left(trainer)
    cases = {
        "has no field 'plant'; its fields are id, crop": {"class_field": "plant"},
        "there is no option 'depth'": {"depth": "3"},
        "recipe must be one of strong, paper": {"recipe": "best"},
        "epochs must be a whole number from 1": {"epochs": "0"},
        "is not a valid model name": {"name": "../x"},
        "belongs to this server's operator": {"name": "pixel"},
        "wavelengths has 2 numbers for 6 bands": {"wavelengths": "450, 460"},
        "there is no scene": {"scene_id": "0" * 32},
        "send either the files of a scene": {"scene_id": ""},
    }
    for reason, fields in cases.items():
        response = submit(trainer, folder, fields.pop("scene_id", scene_id), **fields)
        assert response.status_code in (404, 409, 422), response.text
        assert reason in response.json()["detail"]
    assert left(trainer) == before


def test_a_label_file_is_described_before_training(trainer, folder, scene_id):
    path = write_vectors(folder / "fields.gpkg", "GPKG")
    call = f"/scenes/{scene_id}/label-file"
    found = trainer.client.post(call, files={"labels": part(path)}, headers=ANA).json()
    assert (found["name"], found["format"], found["class_field"]) == ("fields.gpkg", "GeoPackage", "crop")
    assert sum(entry["pixels"] for entry in found["classes"]) == found["pixels"]
    assert trainer.client.post(call, files={"labels": part(path)}, headers=BEN).status_code == 404
    assert [*(trainer.data / "incoming").iterdir()] == []


def test_a_bundle_is_uploaded_versioned_and_removed(trainer, scene_id, tmp_path):
    content = write_bundle(tmp_path / "b.onnx", bands=BANDS, wavelengths_nm=NM.tolist()).read_bytes()
    for version in (1, 2):
        response = trainer.client.put("/models/sent", content=content, headers=ANA)
        assert response.status_code == 201, response.text
        assert response.headers["location"].endswith(f"/models/sent/versions/{version}")
    assert trainer.client.put("/models/sent", content=content[:-10], headers=ANA).json()["code"] == "model_unusable"
    assert trainer.client.put("/models/pixel", content=content, headers=ANA).json()["code"] == "model_protected"
    assert trainer.client.delete("/models/pixel", headers=ANA).json()["code"] == "model_protected"
    assert trainer.client.delete("/models/sent/versions/2", headers=ANA).status_code == 204
    response = trainer.client.put("/models/sent", content=content, headers=ANA)
    assert response.headers["location"].endswith("/versions/3")  # a number is not given twice
    # A job that waits for a model which is deleted says so.
    health = trainer.client.get("/health", headers=ANA).json()
    pids = [worker["pid"] for worker in health["workers"]]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        job_id = map_with(trainer, scene_id, "sent").json()["jobID"]
        assert trainer.client.delete("/models/sent", headers=ANA).status_code == 204
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    job = trainer.finished(job_id, **ANA)
    assert (job["status"], job["problem"]["code"]) == ("failed", "no_such_model")
    assert "version 3 of the model sent was deleted" in job["problem"]["detail"]
    assert trainer.client.get("/models/sent", headers=ANA).status_code == 404


def test_kills_of_trainer_and_server_end_with_the_same_bundle(trained, trainer, folder, tmp_path, bundle_folder):
    expected = trainer.client.get("/models/fields/versions/1/bundle.onnx", headers=ANA).content
    options = ("--bundles", bundle_folder, "--model", "pixel", "--device", "cpu", "--train-workers", 1)
    first = RunningServer(tmp_path / "data", *options).wait_until_ready()
    scene_id = upload(first, folder, {})
    job_id = submit(first, folder, scene_id, {}).json()["jobID"]
    checkpoint = tmp_path / "data" / "jobs" / job_id / "training" / "bundle.onnx.checkpoint"
    wait_for(checkpoint.exists, 120)
    trainers_of(first)[0].kill()
    wait_for(lambda: first.job(job_id)["resumes"] == 1 and trainers_of(first), 30)
    assert "crashed: the job continues from its last checkpoint" in first.job(job_id)["history"][-1]["text"]
    children = psutil.Process(first.process.pid).children(recursive=True)
    first.stop(signal.SIGKILL)
    psutil.wait_procs(children, 20)
    with running_server(tmp_path / "data", *options) as second:
        job = second.finished(job_id)
        assert (job["status"], job["resumes"]) == ("successful", 2), job
        assert second.client.get("/models/fields/bundle.onnx").content == expected
        names = {path.name for path in (tmp_path / "data" / "jobs" / job_id).iterdir()}
        assert names == {"results", "record.json"}  # no labels, no checkpoint


def test_a_training_worker_beside_the_server_claims_from_its_store_and_outlives_it(folder, tmp_path, bundle_folder):
    options = ("--bundles", bundle_folder, "--model", "pixel", "--device", "cpu", "--train-workers", 0)
    first = RunningServer(tmp_path / "data", *options).wait_until_ready()
    command = [PROGRAM, "train-worker", "--data", str(tmp_path / "data")]
    with (tmp_path / "worker.log").open("wb") as log:
        worker = subprocess.Popen(command, stderr=log, preexec_fn=ends_with_parent())
    try:
        wait_for(lambda: first.client.get("/health").json()["training_workers"])
        scene_id = upload(first, folder, {})
        job_id = submit(first, folder, scene_id, {}, epochs="900").json()["jobID"]
        wait_for(lambda: first.job(job_id).get("stage"), 60)
        first.stop(signal.SIGKILL)
        with running_server(tmp_path / "data", *options) as second:
            job = second.job(job_id)
            assert (job["status"], job["resumes"]) == ("running", 0)
            second.client.delete(f"/jobs/{job_id}")
            wait_for(lambda: not psutil.Process(worker.pid).children(recursive=True), 5)
    finally:
        worker.terminate()
        assert worker.wait(20) == 0, (tmp_path / "worker.log").read_text()


def test_a_server_without_torch_maps_and_says_what_training_needs(folder, tmp_path, bundle_folder):
    poison = str(ROOT / "tests" / "poison")
    options = ("--bundles", bundle_folder, "--model", "pixel", "--device", "cpu")
    environment = {"PYTHONPATH": poison, "NO_TORCH": "yes", "HYPERSCENE_TRAIN_WORKERS": ""}  # the default
    with running_server(tmp_path / "data", *options, **environment) as server:
        scene_id = upload(server, folder, {})
        response = submit(server, folder, scene_id, {})
        assert (response.status_code, response.json()["code"]) == (503, "training_unavailable")
        for words in ("torch is not installed here", "hyperscene[train,cpu]", "hyperscene:train"):
            assert words in response.json()["detail"]
        described = server.client.post(
            f"/scenes/{scene_id}/label-file", files={"labels": part(folder / "labels.geojson")}
        )
        assert len(described.json()["classes"]) == 4
        assert server.client.get("/health").json()["training_workers"] == []
