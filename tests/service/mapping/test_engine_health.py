"""Engines that crash are left out with a reason, and the next engine is used."""

import os
import signal
import sqlite3
import subprocess
import sys
import time

import numpy as np
import pytest

from hyperscene.model.bundle import read_bundle
from hyperscene.service.cluster import tasks
from hyperscene.service.mapping import engine_health, engines
from hyperscene.service.mapping.engine_health import EngineReport, engine_report
from hyperscene.service.mapping.engines import choose_engine
from tests import scenes
from tests.command_line import run
from tests.server import RunningServer, running_server, wait_for

pytestmark = pytest.mark.slow

CPU_WORKS = EngineReport("cpu", "ONNX Runtime", 100.0)
KILL = "import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n"
# An OpenVINO that works until its first call, which crashes the process.
CRASHES_ON_FIRST_BATCH = """
import os, signal
__version__ = "2099.1"
class Graph:
    def reshape(self, shapes): pass
    def get_ordered_ops(self): return []
class Compiled:
    def create_infer_request(self): return self
    def infer(self, *_, **__): os.kill(os.getpid(), signal.SIGILL)
class Core:
    def read_model(self, content): return Graph()
    def compile_model(self, *_): return Compiled()
"""
# The real package, which breaks as soon as a certain file exists.
BREAKS_LATER = """
import importlib, os, signal, sys
if os.path.exists({flag!r}):
    os.kill(os.getpid(), signal.SIGILL)
sys.path.remove({folder!r})
del sys.modules["openvino"]
real = importlib.import_module("openvino")
real.__spec__ = __spec__  # as long as it is imported, too, this is the package's file
"""
# The real package, which crashes on one of the bundles only.
CRASHES_ON_ONE_BUNDLE = """
import hashlib, importlib, os, signal, sys
sys.path.remove({folder!r})
del sys.modules["openvino"]
real = importlib.import_module("openvino")
real.__spec__ = __spec__
read_model = real.Core.read_model
def read_unless_refused(core, content, *rest):
    if hashlib.sha256(content).hexdigest() == {sha256!r}:
        os.kill(os.getpid(), signal.SIGSEGV)
    return read_model(core, content, *rest)
real.Core.read_model = read_unless_refused
"""


@pytest.fixture
def packages(tmp_path):
    """A folder of packages that are found before the installed ones, with a separate cache."""

    def write(**modules):
        folder = tmp_path / "packages"
        for name, text in modules.items():
            (folder / name).mkdir(parents=True, exist_ok=True)
            (folder / name / "__init__.py").write_text(text)
            (folder / name / "utils.py").touch()
        path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
        return {"PYTHONPATH": path, "HYPERSCENE_CACHE": str(tmp_path / "cache")}

    return write


def write_scene(path, rows, cols):
    spectra = scenes.spectra_of(scenes.quadrants(rows, cols), 5)
    return scenes.write_tif(path, spectra, wavelengths_nm=np.linspace(450, 900, 5))


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    return write_scene(tmp_path_factory.mktemp("scene") / "scene.tif", 60, 50)


def served_by(server, scene):
    job = server.finished(server.submit(scene))
    assert job["status"] == "successful", job
    return job


@pytest.mark.parametrize("openvino", [KILL, CRASHES_ON_FIRST_BATCH], ids=["on loading", "on the first batch"])
def test_a_crashing_openvino_is_replaced_by_onnx_runtime(tmp_path, packages, bundle_folder, scene, openvino):
    environment = packages(openvino=openvino)
    with running_server(tmp_path / "data", "--bundles", bundle_folder, "--model", "patch", **environment) as server:
        health = server.client.get("/health").json()
        reason = "openvino is not used: a probe of it was ended by SIGILL"
        assert health["warnings"] == [reason]
        assert server.client.get("/readyz").json() == {"status": "ready", "warnings": [reason]}
        assert health["workers"][0]["left_out"] == [reason]
        job = served_by(server, scene)
        assert job["provider"].startswith("ONNX Runtime")
        assert reason in [event["text"] for event in job["history"]]
        assert [worker["pid"] for worker in health["workers"]] == server.workers()


def test_a_crashing_onnx_runtime_is_replaced_by_openvino(tmp_path, packages, bundle_folder, scene):
    environment = packages(onnxruntime=KILL)
    with running_server(tmp_path / "data", "--bundles", bundle_folder, "--model", "patch", **environment) as server:
        assert served_by(server, scene)["provider"].startswith("OpenVINO")


def test_a_requested_engine_that_crashes_is_named_and_not_restarted_for_ever(tmp_path, packages, bundle_folder):
    environment = packages(openvino=KILL)
    server = RunningServer(tmp_path / "data", "--bundles", bundle_folder, "--device", "openvino", **environment)
    try:
        wait_for(lambda: "SIGILL" in server.client.get("/readyz").text)
        problem = server.client.get("/readyz")
        assert problem.status_code == 503
        assert "openvino is not used: a probe of it was ended by SIGILL" in problem.json()["detail"]
        first = server.workers()
        time.sleep(3)
        assert server.workers() == first
        assert "starting another" not in server.log.read_text()
    finally:
        server.stop()


def test_an_engine_that_breaks_later_is_probed_again_without_blaming_the_job(tmp_path, packages, bundle_folder, scene):
    flag, folder = tmp_path / "broken", tmp_path / "packages"
    environment = packages(openvino=BREAKS_LATER.format(flag=str(flag), folder=str(folder)))
    options = ("--bundles", bundle_folder, "--model", "patch")
    with running_server(tmp_path / "data", *options, **environment) as server:
        assert served_by(server, scene)["provider"].startswith("OpenVINO")
        large = write_scene(tmp_path / "large.tif", 500, 300)
        job_id = server.submit(large, stride_px="1")
        wait_for(lambda: server.job(job_id)["status"] == "running" and server.job(job_id)["progress"] > 0)
        flag.touch()
        os.kill(server.workers()[0], signal.SIGILL)
        job = server.finished(job_id)
        assert job["status"] == "successful"
        assert job["provider"].startswith("ONNX Runtime")
        assert any("the engine openvino crashed" in event["text"] for event in job["history"])
        with sqlite3.connect(server.data / "hyperscene.sqlite") as store:
            assert store.execute(
                "SELECT worker_crashes, server_crashes FROM jobs WHERE id = ?", (job_id,)
            ).fetchone() == (0, 0)


def test_a_server_restarted_after_its_engine_broke_uses_the_next_one(tmp_path, packages, bundle_folder, scene):
    flag, folder = tmp_path / "broken", tmp_path / "packages"
    environment = packages(openvino=BREAKS_LATER.format(flag=str(flag), folder=str(folder)))
    options = ("--bundles", bundle_folder, "--model", "patch")
    with running_server(tmp_path / "data", *options, **environment) as server:
        assert server.client.get("/health").json()["warnings"] == []
    flag.touch()
    with running_server(tmp_path / "data", *options, **environment) as server:
        assert served_by(server, scene)["provider"].startswith("ONNX Runtime")
        assert server.log.read_text().count("starting another") == 1


def test_an_engine_that_crashes_on_one_bundle_still_runs_the_others(tmp_path, packages, bundle_folder, scene):
    sha256 = read_bundle(bundle_folder / "patch.onnx").sha256
    environment = packages(openvino=CRASHES_ON_ONE_BUNDLE.format(folder=str(tmp_path / "packages"), sha256=sha256))
    with running_server(tmp_path / "data", "--bundles", bundle_folder, "--model", "pixel", **environment) as server:
        workers = server.workers()
        for model, provider in (("patch", "ONNX Runtime"), ("pixel", "OpenVINO")):
            job = server.finished(server.submit(scene, model=model))
            assert job["status"] == "successful"
            assert job["provider"].startswith(provider)
            said = "openvino is not used: a probe of it was ended by SIGSEGV" in str(job["history"])
            assert said == (model == "patch")
        assert server.workers() == workers


def test_classify_uses_the_next_engine_with_a_warning(tmp_path, packages, scene, bundle):
    done = run("classify", scene, "-o", tmp_path / "map", "--bundle", bundle, **packages(openvino=KILL))
    assert done.returncode == 0, done.stderr
    assert "warning: openvino is not used: a probe of it was ended by SIGILL" in done.stderr
    assert "ONNX Runtime" in (tmp_path / "map" / "summary.json").read_text()


def test_without_a_working_engine_classify_fails_in_one_line(tmp_path, packages, scene, bundle):
    environment = packages(openvino=KILL, onnxruntime=KILL)
    done = run("classify", scene, "-o", tmp_path / "map", "--bundle", bundle, **environment)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "openvino is not used" in done.stderr
    assert "cpu is not used" in done.stderr
    assert not (tmp_path / "map").exists()


def test_the_python_api_loads_bundles_without_a_crashing_onnx_runtime(packages, bundle):
    code = f"import hyperscene as hs; print(hs.load_bundle({str(bundle)!r}).manifest.bands)"
    environment = os.environ | packages(onnxruntime=KILL)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "5\n"), done.stderr


def test_a_cluster_worker_uses_the_next_engine_and_says_why(bundle, monkeypatch):
    crashed = EngineReport("openvino", failure="openvino is not used: it crashed", is_broken=True)
    monkeypatch.setattr(engines, "candidates", lambda *_: ["openvino", "cpu"])
    monkeypatch.setattr(engines, "engine_report", lambda device, _: crashed if device == "openvino" else CPU_WORKS)
    sent = read_bundle(bundle)
    found = tasks.receive_bundle(sent.content, sent.sha256, "test.onnx")
    assert found.provider.startswith("ONNX Runtime")
    assert found.left_out == (crashed.failure,)
    assert tasks.find_engine(sent.sha256).left_out == found.left_out


def test_an_engine_that_hangs_is_left_out_for_some_minutes(bundle, monkeypatch, tmp_path):
    monkeypatch.setenv("HYPERSCENE_CACHE", str(tmp_path))
    monkeypatch.setattr(engine_health, "_known", {})
    sent = read_bundle(bundle)
    assert choose_engine(sent, "cpu")[1] == []
    monkeypatch.setattr(engine_health, "PROBE_S", 0.05)
    report = engine_report("openvino", sent, timeout_s=0.05)
    assert report.is_broken
    assert "did not finish" in report.failure
    assert choose_engine(sent)[1] == [report.failure]
    later = time.time() + 700
    monkeypatch.setattr(time, "time", lambda: later)
    assert choose_engine(sent)[1] == []


def test_a_probe_measures_the_speed_of_an_engine():
    report = engine_report("cpu")
    assert report.failure is None
    assert report.patches_per_s > 0
    assert report.provider.startswith("ONNX Runtime")
