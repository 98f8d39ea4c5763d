"""What an image does, done without an engine: the wheel in an empty environment, a plain user, a read-only root."""

import os
import tempfile
from pathlib import Path

import pytest
import rasterio

from service.mapping.pipeline import RESULTS
from service.settings import Settings
from tests.installed import USER, Installation, build_wheel, has_own_mounts, plain_server, reaches_an_index

pytestmark = pytest.mark.slow
ELSEWHERE = ("/", "/tmp", "/var/tmp", "/dev/shm", "/usr", "/etc")  # where programs like to leave something


@pytest.fixture(scope="module")
def place():
    """A folder that everybody may look into, which pytest's own are not."""
    with tempfile.TemporaryDirectory(prefix="hyperscene-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="module")
def installation(place):
    if not reaches_an_index():
        pytest.skip("pip reaches no index here: what hyperscene needs cannot be installed anew")
    (place / "wheel").mkdir()
    return Installation(place / "venv", build_wheel(place / "wheel"), "cpu,cluster")


@pytest.fixture(scope="module")
def data(place):
    if not has_own_mounts():
        pytest.skip("a read-only root takes root's rights, and util-linux: unshare, nsenter, setpriv")
    for name in ("data", "shelf"):
        (place / name).mkdir()
    os.chown(place / "data", USER, USER)
    return place / "data"


@pytest.fixture(scope="module")
def scene(installation, place):
    installation.run("hyperscene", "synth", place / "scene.tif", "--rows", 40, "--cols", 48, "--seed", 7)
    return place / "scene.tif"


@pytest.fixture(scope="module")
def first_run(installation, place, data, scene):
    """A server's whole life: started, looked at, asked for a map, and told to end; what was seen."""
    seen = {}
    with plain_server(installation, data, place / "shelf") as server:
        seen["ids"] = server.ids()
        seen["live"] = server.client.get("/livez").status_code
        seen["writable"] = [
            folder for folder in (*map(Path, ELSEWHERE), Path.home(), installation.folder, data)
            if server.can_write(folder)
        ]  # fmt: skip
        installation.run("hyperscene", "classify", scene, "-o", place / "map", "--server", server.url)
        (seen["job"],) = server.client.get("/jobs").json()["jobs"]
        seen["code"], seen["seconds"] = server.stop()
        seen["log"] = server.log.read_text()
    return seen


def test_the_environment_has_no_torch(installation):
    check = "import importlib.util as u; print([u.find_spec(name) is not None for name in ('torch', 'onnxruntime')])"
    assert installation.run("python", "-c", check).strip() == "[False, True]"


def test_the_wheel_brings_the_demo_bundle_and_the_page(installation):
    check = (
        "import service, pathlib, model.bundle as b; web = pathlib.Path(service.__file__).parent / 'web'; "
        "print(b.DEMO_BUNDLE.is_file(), (web / 'index.html').is_file(), web)"
    )
    said = installation.run("python", "-c", check)
    assert said.startswith("True True")
    assert str(installation.folder) in said


@pytest.mark.parametrize(
    ("program", "arguments"),
    [("hyperscene", ("serve", "--help")), ("hyperscene", ("worker", "--help")), ("dask", ("scheduler", "--help"))],
)
def test_every_program_that_an_image_starts_is_there(installation, program, arguments):
    assert "usage" in installation.run(program, *arguments).lower()


def test_the_server_runs_as_nobody_in_particular(first_run):
    assert first_run["ids"] == {str(USER)}
    assert first_run["live"] == 200


def test_nothing_but_the_data_folder_can_be_written(first_run, data):
    assert first_run["writable"] == [data]


def test_a_scene_is_mapped_on_a_read_only_root(first_run, place, scene):
    assert first_run["job"]["status"] == "successful"
    assert {path.name for path in (place / "map").iterdir()} == set(RESULTS)
    with rasterio.open(place / "map" / "classes.tif") as mapped, rasterio.open(scene) as read:
        assert (mapped.shape, mapped.transform) == (read.shape, read.transform)
        assert mapped.read(1).max() > 0


def test_nothing_is_left_outside_of_the_data_folder(first_run, place, data):
    theirs = {path for path in place.rglob("*") if path.lstat().st_uid == USER}
    assert data / "hyperscene.sqlite" in theirs
    assert [path for path in theirs if not path.is_relative_to(data)] == []


def test_the_log_holds_no_complaint(first_run):
    for word in ("Traceback", '"level": "error"', '"level": "warning"', "Warning"):
        assert word not in first_run["log"]


def test_it_ends_in_time_when_it_is_told_to(first_run):
    assert first_run["code"] == 0
    assert first_run["seconds"] < Settings.model_fields["stop_s"].default


def test_a_new_server_on_the_same_volume_still_has_the_map(first_run, installation, place, data):
    job_id = first_run["job"]["jobID"]
    with plain_server(installation, data, place / "shelf") as server:
        assert server.client.get(f"/jobs/{job_id}").json()["status"] == "successful"
        kept = server.client.get(f"/jobs/{job_id}/results/classes.tif").content
        assert server.stop()[0] == 0
    assert kept == (place / "map" / "classes.tif").read_bytes()
