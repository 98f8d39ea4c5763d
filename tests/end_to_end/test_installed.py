"""The set-up of the container image without a container engine: wheel, unprivileged user, read-only root."""

import os
import tempfile
from pathlib import Path

import pytest
import rasterio

from hyperscene.service.mapping.output import RESULTS
from hyperscene.service.settings import Settings
from tests.installed import USER, Installation, build_wheel, has_own_mounts, plain_server, reaches_an_index

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # pip may take 600 s to install
ELSEWHERE = ("/", "/tmp", "/var/tmp", "/dev/shm", "/usr", "/etc")  # where programs often leave files


@pytest.fixture(scope="module")
def folder():
    """A folder that every user can read, unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="hyperscene-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="module")
def installation(folder):
    if not reaches_an_index():
        pytest.skip("pip reaches no package index here")
    (folder / "wheel").mkdir()
    return Installation(folder / "venv", build_wheel(folder / "wheel"), "cpu,cluster")


@pytest.fixture(scope="module")
def data(folder):
    if not has_own_mounts():
        pytest.skip("a read-only root needs root and util-linux (unshare, nsenter, setpriv)")
    for name in ("data", "shelf"):
        (folder / name).mkdir()
    os.chown(folder / "data", USER, USER)
    return folder / "data"


@pytest.fixture(scope="module")
def scene(installation, folder):
    installation.run("hyperscene", "synth", folder / "scene.tif", "--rows", 40, "--cols", 48, "--seed", 7)
    return folder / "scene.tif"


@pytest.fixture(scope="module")
def first_run(installation, folder, data, scene):
    """What was observed of a server that started, mapped a scene and was stopped."""
    seen = {}
    with plain_server(installation, data, folder / "shelf") as server:
        seen["ids"] = server.ids()
        seen["live"] = server.client.get("/livez").status_code
        seen["writable"] = [
            folder for folder in (*map(Path, ELSEWHERE), Path.home(), installation.folder, data)
            if server.can_write(folder)
        ]  # fmt: skip
        installation.run("hyperscene", "classify", scene, "-o", folder / "map", "--server", server.url)
        (seen["job"],) = server.client.get("/jobs").json()["jobs"]
        seen["code"], seen["seconds"] = server.stop()
        seen["log"] = server.log.read_text()
    return seen


def test_the_environment_has_no_torch(installation):
    check = "import importlib.util as u; print([u.find_spec(name) is not None for name in ('torch', 'onnxruntime')])"
    assert installation.run("python", "-c", check).strip() == "[False, True]"


def test_the_wheel_brings_one_import_name(installation):
    check = (
        "import importlib.metadata as m; "
        "print(*sorted({str(f).split('/')[0] for f in m.distribution('hyperscene').files if f.suffix == '.py'}))"
    )
    assert installation.run("python", "-c", check).split() == ["hyperscene"]
    check = "import importlib.util as u; print([n for n in ('model', 'service', 'training') if u.find_spec(n)])"
    assert installation.run("python", "-c", check).strip() == "[]"


def test_the_wheel_is_typed(installation):
    check = "import hyperscene, pathlib; print(pathlib.Path(hyperscene.__file__).with_name('py.typed').is_file())"
    assert installation.run("python", "-c", check).strip() == "True"


def test_the_wheel_brings_the_demo_bundle_and_the_page(installation):
    check = (
        "import hyperscene, pathlib, hyperscene.model.bundle as b; "
        "web = pathlib.Path(hyperscene.__file__).parent / 'service' / 'web'; "
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


def test_the_server_runs_as_an_unprivileged_user(first_run):
    assert first_run["ids"] == {str(USER)}
    assert first_run["live"] == 200


def test_nothing_but_the_data_folder_can_be_written(first_run, data):
    assert first_run["writable"] == [data]


def test_a_scene_is_mapped_on_a_read_only_root(first_run, folder, scene):
    assert first_run["job"]["status"] == "successful"
    assert {path.name for path in (folder / "map").iterdir()} == set(RESULTS)
    with rasterio.open(folder / "map" / "classes.tif") as mapped, rasterio.open(scene) as read:
        assert (mapped.shape, mapped.transform) == (read.shape, read.transform)
        assert mapped.read(1).max() > 0


def test_no_file_is_left_outside_of_the_data_folder(first_run, folder, data):
    theirs = {path for path in folder.rglob("*") if path.lstat().st_uid == USER}
    assert data / "hyperscene.sqlite" in theirs
    assert [path for path in theirs if not path.is_relative_to(data)] == []


def test_the_log_has_no_warning(first_run):
    for word in ("Traceback", '"level": "error"', '"level": "warning"', "Warning"):
        assert word not in first_run["log"]


def test_the_server_stops_in_time(first_run):
    assert first_run["code"] == 0
    assert first_run["seconds"] < Settings.model_fields["stop_s"].default


def test_a_new_server_on_the_same_volume_still_has_the_map(first_run, installation, folder, data):
    job_id = first_run["job"]["jobID"]
    with plain_server(installation, data, folder / "shelf") as server:
        assert server.client.get(f"/jobs/{job_id}").json()["status"] == "successful"
        kept = server.client.get(f"/jobs/{job_id}/results/classes.tif").content
        assert server.stop()[0] == 0
    assert kept == (folder / "map" / "classes.tif").read_bytes()
