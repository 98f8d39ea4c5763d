"""Samples, answers, reports and comparison over HTTP."""

import signal

import pytest
from rasterio.io import MemoryFile

from tests.scenes import WAVELENGTHS, quadrants, spectra_of, write_tif
from tests.server import RunningServer, running_server

SAMPLE = {"total": 60, "per_class": 5, "seed": 2}


@pytest.fixture(scope="module")
def job(server, tmp_path_factory):
    values = spectra_of(quadrants(40, 33), 5)
    path = write_tif(tmp_path_factory.mktemp("scene") / "field.tif", values, wavelengths_nm=WAVELENGTHS)
    job_id = server.submit(path)
    assert server.finished(job_id)["status"] == "successful"
    return job_id


@pytest.fixture(scope="module")
def classes(server, job):
    with MemoryFile(server.client.get(f"/jobs/{job}/results/classes.tif").content) as file, file.open() as raster:
        return raster.read(1)


@pytest.fixture(scope="module")
def sample(server, job):
    response = server.client.post(f"/jobs/{job}/sample", json=SAMPLE)
    assert response.status_code == 201, response.text
    return response.json()


def answer(server, job, interpreter, number, label):
    return server.client.put(f"/jobs/{job}/sample/answers/{interpreter}/{number}", json={"label": label})


@pytest.fixture(scope="module")
def answered(server, job, sample, classes):
    """Two interpreters: the first agrees with the map but for every tenth point, the second with the first."""
    names = [entry["name"] for entry in sample["classes"]]
    for point in sample["points"]:
        value = classes[point["row"], point["col"]] - 1
        label = names[(value + (point["number"] % 10 == 0)) % 3]
        assert answer(server, job, "anna", point["number"], label).status_code == 200
        if point["number"] <= 20:
            answer(server, job, "ben", point["number"], "cannot tell" if point["number"] == 1 else label)
    return job


def test_the_points_of_a_sample_are_in_the_map_and_do_not_tell_its_classes(sample, classes, server, job):
    assert len(sample["points"]) == 60
    assert all(classes[point["row"], point["col"]] for point in sample["points"])
    assert set(sample["points"][0]) == {"number", "row", "col", "lon", "lat"}
    assert server.client.get(f"/jobs/{job}/sample").json()["points"] == sample["points"]


def test_answers_are_kept_and_become_accuracy_and_areas(server, answered):
    assert len(server.client.get(f"/jobs/{answered}/sample/answers/anna").json()["answers"]) == 60
    document = server.client.get(f"/jobs/{answered}/accuracy").json()
    assert document["points"]["used"] == 60
    assert document["overall_accuracy"]["low"] < 0.9 < document["overall_accuracy"]["high"]
    assert max(entry["area_hectares"]["low"] for entry in document["classes"]) > 0
    assert document["agreement"] | {"kappa": 1.0} == {
        "first": "anna", "second": "ben", "points": 19, "share": 1.0, "kappa": 1.0,
    }  # fmt: skip


def test_reports_are_pages_on_request(server, answered):
    for name, words in (
        ("accuracy", "Error matrix"),
        ("report", "estimated area"),
        (f"comparison/{answered}", "changed"),
    ):
        path = f"/jobs/{answered}/{name}"
        response = server.client.get(path, headers={"Accept": "text/html"})
        assert response.headers["content-type"].startswith("text/html"), response.text
        assert response.headers["content-disposition"].startswith("attachment")
        assert words in response.text
        assert (
            server.client.get(f"/jobs/{answered}/{name.format(job=answered)}").headers["content-type"]
            == "application/json"
        )


def test_an_answer_replaces_an_earlier_one_and_can_be_taken_back(server, answered):
    labels = server.client.get(f"/jobs/{answered}/sample/answers/ben").json()["answers"]
    assert answer(server, answered, "ben", 20, None).json()["answered"] == 19
    assert answer(server, answered, "ben", 20, labels["20"]).json() == {
        "interpreter": "ben", "answered": 20, "points": 60,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("interpreter", "number", "label", "words"),
    [
        ("anna", 1, "swamp", "the map has no class 'swamp'"),
        ("anna", 61, "class 1", "the points 1 to 60, and no 61"),
        ("a.b", 1, "class 1", "interpreter"),
    ],
)
def test_answers_that_do_not_fit_are_refused(interpreter, number, label, words, server, answered):
    response = answer(server, answered, interpreter, number, label)
    assert response.status_code == 422
    assert words in response.json()["detail"]


def test_a_sample_with_answers_is_not_replaced(server, answered):
    response = server.client.post(f"/jobs/{answered}/sample", json=SAMPLE)
    assert response.status_code == 422
    assert "already has answers" in response.json()["detail"]


def test_a_map_without_a_sample_or_answers_says_so(server, classes, tmp_path):
    path = write_tif(tmp_path / "other.tif", spectra_of(quadrants(20, 20), 5), wavelengths_nm=WAVELENGTHS)
    job_id = server.submit(path)
    assert server.finished(job_id)["status"] == "successful"
    assert server.client.get(f"/jobs/{job_id}/sample").json()["code"] == "no_such_result"
    assert server.client.get(f"/jobs/{job_id}/report").json()["areas_are"] == "pixel counts, not an area estimate"
    server.client.post(f"/jobs/{job_id}/sample", json={"total": 20, "per_class": 3})
    response = server.client.get(f"/jobs/{job_id}/accuracy")
    assert response.json()["code"] == "sample_unusable"
    assert "has no answers" in response.json()["detail"]


@pytest.mark.slow
def test_answers_survive_a_restart(bundle_folder, tmp_path):
    options = ("--bundles", bundle_folder, "--model", "pixel", "--device", "cpu")
    path = write_tif(tmp_path / "scene.tif", spectra_of(quadrants(20, 20), 5), wavelengths_nm=WAVELENGTHS)
    with running_server(tmp_path / "data", *options) as first:
        job_id = first.submit(path)
        assert first.finished(job_id)["status"] == "successful"
        sample = first.client.post(f"/jobs/{job_id}/sample", json={"total": 20, "per_class": 3}).json()
        label = sample["classes"][0]["name"]
        assert answer(first, job_id, "anna", 3, label).status_code == 200
        first.stop(signal.SIGKILL)
    second = RunningServer(tmp_path / "data", *options)
    try:
        assert second.client.get(f"/jobs/{job_id}/sample/answers/anna").json()["answers"] == {"3": label}
        assert second.client.get(f"/jobs/{job_id}/sample").json()["points"] == sample["points"]
    finally:
        second.stop()
