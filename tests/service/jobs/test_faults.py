"""Faults that a service survives: kills, a scene that crashes its worker, a full disk, SIGTERM, a second server."""

import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import threading
import time
from pathlib import Path

import h5py
import httpx
import numpy as np
import pytest

from hyperscene.model.bundle import DEMO_BUNDLE, load_bundle
from hyperscene.service.mapping.engines import make_engine
from hyperscene.service.mapping.fused_engine import kernel_for
from hyperscene.service.mapping.options import MapOptions
from hyperscene.service.mapping.pipeline import map_scene
from hyperscene.service.mapping.scenes import open_scene
from hyperscene.training.data.synthetic import SyntheticScene, write_scene
from tests.command_line import refusal, run
from tests.faults import Attack, processes_of, undisturbed
from tests.fuzz import Fuzzer
from tests.power_cuts import KINDS, memory_folder, record, replay
from tests.programs import POISON_PATH
from tests.scenes import WAVELENGTHS, write_tif
from tests.server import RunningServer, part, running_server, wait_for

pytestmark = pytest.mark.slow

POISON, HESITATION = 77.0, 79.0  # as in poison/sitecustomize.py


@pytest.fixture(scope="module")
def long_scene(tmp_path_factory):
    """Several seconds of work for the demo bundle."""
    path = tmp_path_factory.mktemp("scene") / "long.tif"
    write_scene(SyntheticScene(rows=192, cols=128, seed=4), path, None)
    return path


@pytest.fixture(scope="module")
def small_scene(tmp_path_factory):
    path = tmp_path_factory.mktemp("scene") / "small.tif"
    write_scene(SyntheticScene(rows=32, cols=32, seed=4), path, None)
    return path


@pytest.mark.timeout(900)
def test_nothing_is_lost_when_processes_are_killed(tmp_path):
    report = Attack(tmp_path, seed=1).run(kills=10)
    assert report.findings == []
    assert report.jobs >= 3
    assert report.scenes >= 3
    assert report.resumes > 0


def test_a_scene_is_inspected_again_if_its_process_is_killed(tmp_path, bundle_folder, small_scene):
    with running_server(tmp_path / "data", "--bundles", bundle_folder, "--device", "cpu") as server:
        responses: list[httpx.Response] = []
        request = server.client.build_request("POST", "/scenes", files={"scene": part(small_scene)})
        for process in (inspectors := processes_of(server, "hyperscene.service.jobs.inspector")):
            process.suspend()
        caller = threading.Thread(target=lambda: responses.append(send(request)))
        caller.start()
        wait_for(lambda: list((server.data / "incoming").glob("*/scene.tif")))
        wait_for(lambda: server.client.get("/livez").status_code == 200)
        for process in inspectors:
            process.kill()
        caller.join(60)
    assert inspectors
    assert responses[0].status_code == 201, responses[0].text


@pytest.mark.timeout(900)
def test_hostile_requests_are_answered_and_end_no_process(tmp_path):
    """All past findings, and some random requests."""
    report = Fuzzer(tmp_path, seed=1).run(requests=400)
    assert report.findings == {}
    assert report.requests == 400


@pytest.mark.strace
@pytest.mark.timeout(900)
def test_a_power_cut_loses_nothing_that_was_acknowledged(tmp_path):
    with memory_folder() as states:
        report = replay(record(tmp_path), states / "state", share=0.02)
    assert report.findings == {}
    assert set(report.states) == set(KINDS)
    assert len(report.acknowledged.scenes) == 2
    assert len(report.acknowledged.jobs) == 3
    assert len(report.acknowledged.successful) == 2
    assert len(report.acknowledged.deleted) == len(report.acknowledged.dismissed) == 1


def test_python_files_in_the_working_folder_are_not_imported(tmp_path, small_scene):
    folder = tmp_path / "start"
    folder.mkdir()
    for name in ("model", "service", "training", "hyperscene", "numpy"):
        (folder / f"{name}.py").write_text("raise SystemExit(f'{__file__} was imported')")
    with running_server(tmp_path / "data", "--device", "cpu", cwd=folder) as server:
        assert server.finished(server.submit(small_scene))["status"] == "successful"


@pytest.mark.parametrize(("first_pixel", "row", "strip_px"), [(0.5, 70, 16), (HESITATION, 350, 400)])
def test_a_scene_that_always_crashes_its_worker_fails_after_three_attempts(
    tmp_path, bundle_folder, first_pixel, row, strip_px
):
    """Also if another thread of the worker was far behind at the first crash."""
    values = np.random.default_rng(0).uniform(0.1, 0.9, (row + 50, 40, 5)).astype("float32")
    sound = write_tif(tmp_path / "sound.tif", values, wavelengths_nm=WAVELENGTHS)
    values[0, 0], values[row, 20] = first_pixel, POISON
    poisoned = write_tif(tmp_path / "poisoned.tif", values, wavelengths_nm=WAVELENGTHS)
    options = ("--bundles", bundle_folder, "--model", "pixel", "--device", "cpu", "--strip-px", strip_px)
    poisoning = {"PYTHONPATH": POISON_PATH, "HESITATED": str(tmp_path / "hesitated")}
    with running_server(tmp_path / "data", *options, **poisoning) as server:
        job, waiting = server.submit(poisoned), server.submit(sound)
        failed = server.finished(job)
        assert failed["problem"]["code"] == "inference_failed"
        assert job in failed["problem"]["detail"]
        assert failed["resumes"] == 2
        assert server.log.read_text().count("ended with -9") == 3
        assert server.finished(waiting)["status"] == "successful"


def test_a_worker_that_is_killed_before_it_works_on_a_job_does_not_fail_it(tmp_path, bundle_folder, small_scene):
    kills = tmp_path / "kills"
    kills.write_text("4")
    options = ("--bundles", bundle_folder, "--model", "pixel", "--device", "cpu")
    poisoning = {"PYTHONPATH": POISON_PATH, "CRASH_AFTER_CLAIM": str(kills)}
    with running_server(tmp_path / "data", *options, **poisoning) as server:
        job = server.finished(server.submit(small_scene))
        assert (job["status"], job["resumes"], kills.read_text()) == ("successful", 4, "0")


def test_a_scene_that_crashes_its_worker_when_it_is_opened_fails_after_three_attempts(
    tmp_path, bundle_folder, small_scene
):
    options = ("--bundles", bundle_folder, "--model", "pixel", "--device", "cpu")
    poisoning = {"PYTHONPATH": POISON_PATH, "CRASH_AT_OPENING": "1"}
    with running_server(tmp_path / "data", *options, **poisoning) as server:
        failed = server.finished(server.submit(small_scene))
        assert (failed["problem"]["code"], failed["resumes"]) == ("inference_failed", 2)


def test_a_job_resumes_from_its_strips_after_sigterm(tmp_path, long_scene):
    options = ("--device", "cpu", "--strip-px", 16)
    with running_server(tmp_path / "data", *options) as server:
        job = server.submit(long_scene)
        strips = server.data / "jobs" / job / "strips"
        wait_for(lambda: len(list(strips.rglob("*.npz"))) >= 3)
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 10
        assert "Fatal" not in server.log.read_text()
    kept = {path.name: path.stat().st_mtime_ns for path in strips.rglob("*.npz")}
    assert len(kept) >= 3
    with running_server(tmp_path / "data", *options) as server:
        wait_for(lambda: server.job(job)["patches_done"] > 0)
        now = {path.name: path.stat().st_mtime_ns for path in strips.rglob("*.npz")}
        assert kept.items() <= now.items()  # finished strips were not computed again
        done = server.finished(job)
        assert done["status"] == "successful"
        assert done["resumes"] == 1
        expected = undisturbed(long_scene, tmp_path / "undisturbed")
        for name, content in expected.items():
            assert server.client.get(f"/jobs/{job}/results/{name}").content == content, name


@pytest.mark.skipif(kernel_for("bfloat16") is None, reason="no fused kernel in bfloat16 here")
def test_a_job_that_is_continued_in_another_precision_has_one_precision_only(tmp_path):
    scene, folder = tmp_path / "scene.tif", tmp_path / "bfloat16"
    write_scene(SyntheticScene(rows=512, cols=128, seed=4), scene, None)
    options = ("--device", "fused", "--strip-px", 16)
    with running_server(tmp_path / "data", *options, "--precision", "float32") as server:
        job = server.submit(scene, probability_type="float32")
        wait_for(lambda: list((server.data / "jobs" / job / "strips").rglob("*.npz")))
        assert server.stop() == 0
    with running_server(tmp_path / "data", *options, "--precision", "bfloat16") as server:
        done = server.finished(job)
        assert (done["status"], done["resumes"]) == ("successful", 1)
        found = server.client.get(f"/jobs/{job}/results/probabilities.tif").content
    bundle = load_bundle(DEMO_BUNDLE)
    engine = make_engine(bundle, "fused", 2, precision="bfloat16")
    map_scene(open_scene(scene), bundle, engine, folder, MapOptions(probability_type="float32"))
    assert found == (folder / "probabilities.tif").read_bytes()


def write_one_chunk(path):
    """A cube of one chunk, which has to be rewritten before it can be read by rows."""
    values = np.random.default_rng(0).uniform(0.1, 0.9, (60, 40, 1)).astype("f4")
    with h5py.File(path, "w") as file:
        shape = (600, 400, len(WAVELENGTHS) * 24)
        cube = file.create_dataset("cube", shape, "f4", chunks=shape, compression="gzip", compression_opts=1)
        cube[:] = np.tile(values, (10, 10, shape[2]))
        file["wavelengths"] = np.linspace(440, 910, shape[2])
    return path


def test_a_rewritten_cube_gives_the_same_bytes_after_kills_and_leaves_nothing(tmp_path, bundle_folder):
    cube = write_one_chunk(tmp_path / "cube.h5")
    options = ("--bundles", bundle_folder, "--model", "pixel", "--device", "cpu")
    with running_server(tmp_path / "data", *options) as server:
        job = server.submit(cube, stride_px="8")
        work = server.data / "jobs" / job
        first = wait_for(lambda: list(work.glob("attempt-*-work/cube-*")))[0]
        os.kill(server.workers()[0], signal.SIGKILL)
        wait_for(lambda: [path for path in work.glob("attempt-*-work/*") if path.parent != first.parent])
        assert not first.parent.exists()
        done = server.finished(job)
        assert (done["status"], done["resumes"]) == ("successful", 1), done
        found = server.client.get(f"/jobs/{job}/results/probabilities.tif").content
        # The worker removes its files after the job is marked as successful.
        assert wait_for(lambda: sorted(path.name for path in work.iterdir()) == ["record.json", "results"])
        spectrum = server.client.get(f"/jobs/{job}/pixel", params={"row": 5, "col": 5}).json()
        assert "blocks that must be unpacked whole" in spectrum["spectrum_missing"]
    bundle = bundle_folder / "pixel.onnx"
    run("classify", cube, "-o", tmp_path / "map", "--bundle", bundle, "--device", "cpu", "--stride", 8)
    assert found == (tmp_path / "map" / "probabilities.tif").read_bytes()


@pytest.mark.parametrize("after_s", [0.0, 0.05, 0.15, 0.4])
def test_sigterm_right_after_the_start_of_a_job_does_not_fail_it(tmp_path, long_scene, after_s):
    with running_server(tmp_path / "data", "--device", "cpu") as server:
        job = server.submit(long_scene)
        time.sleep(after_s)
        assert server.stop() == 0
    assert "unexpected error" not in server.log.read_text()
    assert status_in_store(server, job) == "accepted"


def test_a_job_that_restarts_with_another_batch_is_not_stuck(tmp_path, long_scene):
    with running_server(tmp_path / "data", "--device", "cpu", "--strip-px", 16) as server:
        job = server.submit(long_scene)
        wait_for(lambda: server.job(job)["progress"] > 80)
    with running_server(tmp_path / "data", "--device", "cpu", "--batch", 8, "--stall-s", 3) as server:
        assert server.finished(job)["status"] == "successful"
        assert "stuck" not in server.log.read_text()


def status_in_store(server, job):
    with contextlib.closing(sqlite3.connect(server.data / "hyperscene.sqlite")) as db:
        return db.execute("SELECT status FROM jobs WHERE id = ?", (job,)).fetchone()[0]


def test_a_worker_without_heartbeat_is_replaced(tmp_path, long_scene):
    with running_server(tmp_path / "data", "--device", "cpu", "--lease-s", 2, "--strip-px", 16) as server:
        job = server.submit(long_scene)
        wait_for(lambda: server.job(job)["patches_done"])
        [frozen] = server.workers()
        os.kill(frozen, signal.SIGSTOP)
        assert server.finished(job)["status"] == "successful"
        assert server.workers() != [frozen]


def test_dismissing_a_running_job_logs_no_error_and_leaves_nothing(tmp_path, long_scene):
    with running_server(tmp_path / "data", "--device", "cpu", "--strip-px", 16) as server:
        workers = server.workers()
        for wait_s in (0, 0.1, 0.3, 0.8):
            job = server.submit(long_scene)
            wait_for(lambda waiting=job: server.job(waiting)["status"] == "running")
            time.sleep(wait_s)
            server.client.delete(f"/jobs/{job}")
        wait_for(lambda: not any((server.data / "jobs").iterdir()))
        assert not any((server.data / "scenes").iterdir())
        assert "unexpected error" not in server.log.read_text()
        assert server.workers() == workers


def test_other_folders_in_the_data_folder_are_kept(tmp_path, bundle_folder):
    options = ("--bundles", bundle_folder, "--device", "cpu")
    running = RunningServer(tmp_path / "data", *options)
    running.stop()
    own = tmp_path / "data" / "scenes" / "enmap2024"
    own.mkdir()
    RunningServer(tmp_path / "data", *options).stop()
    assert own.is_dir()


def test_an_upload_leaves_the_reserved_disk_space_free(small_disk, bundle_folder):
    options = ("--bundles", bundle_folder, "--device", "cpu", "--min-free-bytes", "20MB")
    with running_server(small_disk / "data", *options) as server:
        answer = server.client.post("/scenes", content=(b"II*\0" + b"\0" * (1 << 20) for _ in range(80)))
        assert answer.json()["code"] == "storage_full"
        assert server.client.get("/readyz").status_code == 200


def test_the_scene_of_a_failed_job_is_removed_with_it(tmp_path, bundle_folder):
    scene = write_tif(tmp_path / "negative.tif", np.full((20, 20, 5), -0.5, "float32"), wavelengths_nm=WAVELENGTHS)
    with running_server(tmp_path / "data", "--bundles", bundle_folder, "--device", "cpu") as server:
        job = server.submit(scene, model="root")
        assert server.finished(job)["status"] == "failed"
        wait_for(lambda: not any((server.data / "scenes").iterdir()))
        assert not any((server.data / "jobs").iterdir())


def send(request):
    with httpx.Client() as client:
        return client.send(request)


def test_a_waiting_request_gets_503_and_its_job_at_shutdown(tmp_path, long_scene):
    with running_server(tmp_path / "data", "--device", "cpu", "--headers-after-s", 30) as server:
        request = server.client.build_request("POST", "/classify", files={"scene": part(long_scene)}, timeout=60)
        responses: list[httpx.Response] = []
        caller = threading.Thread(target=lambda: responses.append(send(request)))
        caller.start()
        wait_for(lambda: server.client.get("/jobs").json()["jobs"])
        server.stop()
        caller.join(15)
    assert responses[0].status_code == 503
    assert responses[0].json()["code"] == "not_ready"
    assert "/jobs/" in responses[0].headers["location"]


def test_ctrl_c_ends_the_server_without_a_traceback(tmp_path, bundle_folder):
    with running_server(tmp_path / "data", "--bundles", bundle_folder, "--device", "cpu") as server:
        assert server.stop(signal.SIGINT) in (0, 130)
        assert "Traceback" not in server.log.read_text()


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 48 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("only root may mount a small disk")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Fill the disk."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 4096)
        except OSError:
            return filler


def test_a_full_disk_fails_one_job_only_and_the_service_recovers(small_disk, tmp_path, long_scene, small_scene):
    options = ("--device", "cpu", "--strip-px", 16, "--min-free-bytes", "10MB")
    with running_server(small_disk / "data", *options) as server:
        first = server.submit(small_scene)
        assert server.finished(first)["status"] == "successful"
        running, waiting = server.submit(long_scene), server.submit(small_scene)
        wait_for(lambda: list((server.data / "jobs" / running / "strips").rglob("*.npz")))
        filler = fill(small_disk)
        failed = server.finished(running)
        assert failed["problem"]["code"] == "storage_full"
        assert not (server.data / "jobs" / running).exists()
        assert server.client.get("/readyz").status_code == 503
        refused = server.client.post("/classify", files={"scene": part(small_scene)})
        assert refused.status_code == 507
        assert refused.json()["code"] == "storage_full"
        assert server.job(waiting)["status"] == "accepted"

        filler.unlink()
        assert server.finished(waiting)["status"] == "successful"
        wait_for(lambda: server.client.get("/readyz").status_code == 200)
        assert server.client.get(f"/jobs/{first}/results/classes.tif").status_code == 200
        assert server.finished(server.submit(small_scene))["status"] == "successful"


def test_a_job_that_needs_more_disk_than_is_free_fails_before_it_starts(small_disk, bundle_folder, tmp_path):
    scene = write_tif(tmp_path / "wide.tif", np.full((1500, 1500, 5), 3000, "int16"), wavelengths_nm=WAVELENGTHS,
                      compress="deflate")  # fmt: skip
    options = ("--bundles", bundle_folder, "--model", "pixel", "--device", "cpu", "--min-free-bytes", "1MB")
    with running_server(small_disk / "data", *options) as server:
        job = server.submit(scene, probability_type="float32")
        failed = server.finished(job)
        assert failed["problem"]["code"] == "storage_full"
        assert "MB are free" in failed["problem"]["detail"]
        assert failed["patches_done"] == 0


def test_an_upload_that_fills_the_disk_is_refused_and_leaves_nothing(small_disk, bundle_folder):
    options = ("--bundles", bundle_folder, "--model", "pixel", "--device", "cpu", "--min-free-bytes", "1MB")
    with running_server(small_disk / "data", *options) as server:
        free = shutil.disk_usage(small_disk).free

        def body():
            for _ in range(80):
                yield b"II*\0" + b"\0" * (1 << 20)

        answer = server.client.post("/scenes", content=body())
        assert answer.status_code == 507
        assert answer.json()["code"] == "storage_full"
        assert not any((server.data / "incoming").iterdir())
        assert shutil.disk_usage(small_disk).free > free - (1 << 20)


def test_a_second_server_on_the_same_folder_is_refused(tmp_path, bundle_folder):
    options = ("--bundles", bundle_folder, "--device", "cpu", "--data", tmp_path / "data", "--port", 0)
    server = RunningServer(tmp_path / "data", "--bundles", bundle_folder, "--device", "cpu")
    try:
        assert "another server uses the data folder" in refusal(run("serve", *options))
    finally:
        server.stop()


def test_a_port_in_use_is_reported_at_once(server, tmp_path):
    port = server.url.rsplit(":", 1)[1]
    assert f"port {port}" in refusal(run("serve", "--port", port, "--data", tmp_path / "data"))


def test_results_without_a_store_are_not_removed(tmp_path):
    (tmp_path / "data" / "jobs" / "0123" / "results").mkdir(parents=True)
    message = refusal(run("serve", "--data", tmp_path / "data", "--port", 0))
    assert "hyperscene.sqlite is missing" in message
    assert (tmp_path / "data" / "jobs" / "0123" / "results").is_dir()


def test_a_bad_bundle_stops_the_server_at_start(tmp_path):
    (tmp_path / "bundles").mkdir()
    (tmp_path / "bundles" / "bad.onnx").write_bytes(b"no bundle")
    message = refusal(run("serve", "--bundles", tmp_path / "bundles", "--data", tmp_path / "data", "--port", 0))
    assert "bad.onnx is cut short or not an ONNX file" in message


def test_an_invalid_setting_is_refused_with_its_option(tmp_path):
    done = run("serve", "--device", "gpu", "--data", tmp_path / "data")
    assert done.returncode == 2
    assert "--device" in done.stderr
    assert "tensorrt" in done.stderr


def test_a_worker_without_heartbeat_loses_its_job_to_another(tmp_path, long_scene):
    with running_server(tmp_path / "data", "--device", "cpu,cpu", "--lease-s", 2, "--strip-px", 16) as server:
        wait_for(lambda: len(server.workers()) == 2)
        job = server.submit(long_scene)
        holder = wait_for(lambda: worker_of(server, job))
        os.kill(holder, signal.SIGSTOP)
        try:
            done = server.finished(job)
        finally:
            with contextlib.suppress(ProcessLookupError):  # a worker without heartbeat is killed
                os.kill(holder, signal.SIGCONT)
        assert done["status"] == "successful"
        assert done["resumes"] >= 1


def worker_of(server, job):
    """The process that has the job, once a strip is finished."""
    if not list((server.data / "jobs" / job / "strips").rglob("*.npz")):
        return None
    with sqlite3.connect(server.data / "hyperscene.sqlite") as db:
        name = db.execute("SELECT worker FROM jobs WHERE id = ?", (job,)).fetchone()[0]
        row = db.execute("SELECT pid FROM workers WHERE name = ?", (name,)).fetchone()
    db.close()
    return row[0] if row else None
