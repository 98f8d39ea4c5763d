"""A service that maps with a real Dask scheduler and real workers, each a process."""

import asyncio
import hashlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import psutil
import pytest

from hyperscene.lru import LruCache
from hyperscene.model.bundle import load_bundle
from hyperscene.service.cluster import dispatch, tasks, worker_main
from hyperscene.service.cluster.remote_engine import Cluster
from hyperscene.service.cluster.tasks import EngineOptions
from hyperscene.service.cluster.worker_main import WorkerConfig, run_worker
from hyperscene.service.cluster.worker_pool import LOAD_S, WorkerPool
from hyperscene.service.cluster.worker_state import WorkerState
from hyperscene.service.health_check import check
from hyperscene.service.mapping.band_view import PixelRows
from hyperscene.service.mapping.classify import RunControl, WorkersLost
from hyperscene.service.mapping.engines import make_engine
from hyperscene.service.mapping.lattice import Lattice, plan_mapping
from hyperscene.service.mapping.options import MapOptions
from hyperscene.service.mapping.pipeline import map_scene
from hyperscene.service.mapping.prefetch import Cancelled
from hyperscene.service.mapping.scenes import open_scene
from hyperscene.service.mapping.strip_mapper import StripMapper, plan_scene
from hyperscene.service.settings import Settings
from tests.bundles import write_patch_bundle
from tests.cluster import RunningCluster, free_port, running_cluster
from tests.cluster_faults import ClusterAttack, strips_by_worker
from tests.command_line import refusal, run
from tests.faults import COMPARED
from tests.lifetimes import ends_with_parent
from tests.programs import POISON_PATH
from tests.scenes import WAVELENGTHS, write_tif
from tests.server import RunningServer, running_server, wait_for

pytestmark = pytest.mark.slow
# root reads every file; so that a test can take a file from it, it has to do without this right.
WITHOUT_ROOTS_RIGHTS = ("setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all")

POISON, SLOW = 77.0, 78.0  # as in poison/sitecustomize.py
# Ten rows of tiles of a slow scene: half a second each on one worker.
ROWS, COLS = 160, 160


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bundles")
    for head in ("pooled", "token"):
        write_patch_bundle(folder / f"{head}.onnx", head=head)
    return folder


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Two workers that crash on poisoned pixels."""
    poisoned = {"PYTHONPATH": POISON_PATH, "CLUSTER_POISON": "1"}
    with running_cluster(tmp_path_factory.mktemp("cluster"), 2, **poisoned) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def server(tmp_path_factory, cluster, bundles):
    options = ("--cluster", cluster.address, "--bundles", bundles, "--model", "pooled", "--strip-px", 16)
    with running_server(tmp_path_factory.mktemp("server") / "data", *options) as server:
        yield server


@pytest.fixture(scope="module")
def connection(cluster):
    """A connection to the cluster without a service."""
    connection = Cluster(Settings(cluster=cluster.address))
    yield connection
    connection.close()


def values_of(rows=ROWS, cols=COLS, seed=0):
    return np.random.default_rng(seed).uniform(0.1, 0.9, (rows, cols, 5)).astype("float32")


def slow_scene(path, seed=0, rows=ROWS):
    """A scene whose every batch takes half a second."""
    values = values_of(rows, seed=seed)
    values[::8, ::8, 2] = SLOW
    return write_tif(path, values, wavelengths_nm=WAVELENGTHS)


def local_map(scene, bundle, folder, options=None):
    """The files that one machine writes."""
    engine = make_engine(bundle, "cpu", 2)
    map_scene(open_scene(scene), bundle, engine, folder, options or MapOptions(strip_px=16))
    return {name: (folder / name).read_bytes() for name in COMPARED}


def results_of(server, job_id):
    return {name: server.client.get(f"/jobs/{job_id}/results/{name}").content for name in COMPARED}


def texts(job):
    return [event["text"] for event in job["history"]]


@pytest.mark.parametrize(
    ("head", "rows", "cols", "options"),
    [
        ("pooled", 131, 77, MapOptions()),
        ("pooled", 131, 77, MapOptions(strip_px=1)),
        ("pooled", 40, 33, MapOptions(1, "none", "float32", 7)),
        ("pooled", 1, 1, MapOptions()),
        ("token", 75, 41, MapOptions(strip_px=10)),
        ("pooled", 75, 41, MapOptions(8, "linear", strip_px=30)),
    ],
)
def test_a_cluster_writes_the_same_bytes_as_one_machine(tmp_path, connection, bundles, head, rows, cols, options):
    values = values_of(rows, cols)
    values[20:50, 10:30] = np.nan
    scene = write_tif(tmp_path / "s.tif", values, wavelengths_nm=WAVELENGTHS)
    bundle = load_bundle(bundles / f"{head}.onnx")
    engine = connection.engine(bundle, lambda text: None, lambda: False)
    map_scene(open_scene(scene), bundle, engine, tmp_path / "there", options)
    there = {name: (tmp_path / "there" / name).read_bytes() for name in COMPARED}
    assert there == local_map(scene, bundle, tmp_path / "here", options)


def test_a_bundle_is_sent_to_each_worker_once(cluster, bundles, tmp_path, monkeypatch):
    sent, send = [], WorkerPool.send

    async def counted(self, worker, value):
        if isinstance(value, bytes):
            sent.append(worker.name)
        return await send(self, worker, value)

    monkeypatch.setattr(WorkerPool, "send", counted)
    path = write_patch_bundle(tmp_path / "new.onnx", name="new")
    for _ in range(2):
        connection = Cluster(Settings(cluster=cluster.address))
        connection.engine(load_bundle(path), lambda text: None, lambda: False)
        connection.close()
    assert sorted(sent) == ["w1", "w2"]


def test_predictions_of_an_earlier_run_are_not_computed_again(tmp_path, connection, bundles):
    scene = slow_scene(tmp_path / "s.tif")
    bundle = load_bundle(bundles / "pooled.onnx")
    cancelled, notes = threading.Event(), []

    def stop_half_way(now):
        if now.cells_done > now.cells_total / 2:
            cancelled.set()

    def map_once(report):
        notes.clear()
        engine = connection.engine(bundle, notes.append, lambda: False)
        map_scene(
            open_scene(scene), bundle, engine, tmp_path / "out", MapOptions(strip_px=16),
            RunControl(report, cancelled, tmp_path / "checkpoint"),
        )  # fmt: skip

    with pytest.raises(Cancelled):
        map_once(stop_half_way)
    cancelled.clear()
    map_once(lambda _: None)
    # The first run has predictions for more than half of the ten groups, in any order.
    assert 0 < sum(strips_by_worker({"history": [{"text": text} for text in notes]}).values()) <= 5
    assert {name: (tmp_path / "out" / name).read_bytes() for name in COMPARED} == local_map(
        scene, bundle, tmp_path / "here"
    )


def test_a_job_names_the_workers_that_mapped_it(server, bundles, tmp_path):
    scene = slow_scene(tmp_path / "s.tif")
    job = server.finished(server.submit(scene))
    assert (job["status"], job["device"]) == ("successful", "cluster")
    assert "ONNX Runtime" in job["provider"]
    assert set(strips_by_worker(job)) == {"w1", "w2"}
    for worker in server.client.get("/health").json()["workers"]:
        assert worker["members"] == [{"name": "w1", "reason": None}, {"name": "w2", "reason": None}]
    assert 'hyperscene_cluster_workers{used="yes"} 2.0' in server.client.get("/metrics").text
    assert results_of(server, job["jobID"]) == local_map(scene, load_bundle(bundles / "pooled.onnx"), tmp_path / "here")


def test_jobs_share_the_cluster(server, tmp_path):
    """When the first of two equal jobs is done, the other one is past half of its work."""
    jobs = [server.submit(slow_scene(tmp_path / f"{seed}.tif", seed, rows=320)) for seed in (1, 2)]
    wait_for(lambda: any(server.job(job)["status"] == "successful" for job in jobs))
    assert all(server.job(job)["progress"] > 50 for job in jobs)
    assert all(server.finished(job)["status"] == "successful" for job in jobs)


def test_a_strip_that_crashes_its_workers_fails_the_job_and_not_the_cluster(server, bundles, tmp_path):
    values = values_of()
    values[70, 20, 1] = POISON
    poisoned = write_tif(tmp_path / "poisoned.tif", values, wavelengths_nm=WAVELENGTHS)
    sound = slow_scene(tmp_path / "sound.tif", 3)
    job, other = server.submit(poisoned), server.submit(sound)
    failed = server.finished(job)
    assert failed["problem"]["code"] == "inference_failed"
    assert "ended 3 workers" in failed["problem"]["detail"]
    # Patches of both groups cover row 70.
    assert re.match("rows (48 to 63|64 to 79) of the scene", failed["problem"]["detail"])
    assert sum("was lost with" in text for text in texts(failed)) >= 3
    found = server.finished(other)
    assert found["status"] == "successful", found
    assert results_of(server, other) == local_map(sound, load_bundle(bundles / "pooled.onnx"), tmp_path / "here")


def test_a_worker_that_hangs_is_restarted_and_its_strips_go_to_others(cluster, bundles, tmp_path):
    scene = slow_scene(tmp_path / "s.tif", 4)
    options = ("--cluster", cluster.address, "--bundles", bundles, "--model", "pooled", "--strip-px", 16)
    wait_for(lambda: all(worker.child() for worker in cluster.workers))
    with running_server(tmp_path / "data", *options, "--stall-s", 5) as server:
        job = server.submit(scene)
        wait_for(lambda: server.job(job)["progress"] > 10)
        child = cluster.workers[0].child()
        child.send_signal(signal.SIGSTOP)
        found = server.finished(job)
    assert (found["status"], found["resumes"]) == ("successful", 0), found
    assert any("w1 did not respond for 5 seconds" in text for text in texts(found)), texts(found)
    wait_for(lambda: has_ended(child))
    wait_for(cluster.workers[0].child)  # its nanny has started another one


def has_ended(process):
    """Whether a process is gone, or waits only for its parent to notice."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it ended between the two calls
        return True


def in_loop(connection, work):
    """The result of a coroutine in the cluster's event loop."""
    return asyncio.run_coroutine_threadsafe(work, connection._loop).result(60)


@contextmanager
def joined_pool(cluster):
    """A separate connection with two workers, and its pool."""
    connection = Cluster(Settings(cluster=cluster.address))
    wait_for(lambda: len(connection._pool.workers) == 2)
    try:
        yield connection, connection._pool
    finally:
        connection.close()


def test_a_cancelled_call_does_not_block_later_ones(cluster):
    """Dask gathers results in five batches at a time: all later calls would wait for one that is cancelled while it
    queues."""

    async def call_and_cancel(pool):
        worker, client = next(iter(pool.workers.values())), pool._client
        for _ in range(5):
            await client._gather_semaphore.acquire()
        calling = asyncio.create_task(pool.call(worker, tasks.find_engine, ""))
        while client._gather_future is None:
            await asyncio.sleep(0.001)
        calling.cancel()
        await asyncio.wait([calling])
        for _ in range(5):
            client._gather_semaphore.release()
        return await asyncio.wait_for(pool.call(worker, tasks.find_engine, ""), 20)

    with joined_pool(cluster) as (connection, pool):
        assert in_loop(connection, call_and_cancel(pool)) == tasks.BundleMissing()


def test_pixels_of_a_cancelled_call_do_not_stay_on_a_worker(cluster):
    async def send_and_cancel(pool):
        for after_s in np.linspace(0.001, 0.03, 20):
            worker = next(iter(pool.workers.values()))
            sending = asyncio.create_task(pool.send(worker, np.zeros(2_000_000, np.float32)))
            await asyncio.sleep(after_s)
            sending.cancel()
        del sending  # its traceback holds what was sent
        for _ in range(100):
            held = await pool._client.run(lambda dask_worker: len(dask_worker.data))
            if not any(held.values()):
                return held
            await asyncio.sleep(0.1)
        return held

    with joined_pool(cluster) as (connection, pool):
        assert not any(in_loop(connection, send_and_cancel(pool)).values())


@pytest.mark.parametrize("fault", ["memory", "engine", "task"])
def test_a_faulty_worker_fails_no_job_and_is_excluded(bundles, tmp_path, fault):
    scene = slow_scene(tmp_path / "s.tif", 8)
    poisoned = {"PYTHONPATH": POISON_PATH, "CLUSTER_POISON": "1"}
    with running_cluster(tmp_path / "cluster", 1, **poisoned) as cluster:
        cluster.add_worker(**poisoned | {"CLUSTER_POISON": fault})
        cluster.wait_for_workers()
        options = ("--cluster", cluster.address, "--bundles", bundles, "--model", "pooled", "--strip-px", 16)
        with running_server(tmp_path / "data", *options, "--cluster-jobs", 1) as server:
            found = server.finished(server.submit(scene))
            assert (found["status"], found["resumes"]) == ("successful", 0), found
            assert any("worker w2 failed at rows" in text for text in texts(found)), texts(found)
            assert any("worker w2 is not used: it failed at 3 strips" in text for text in texts(found)), texts(found)
            assert set(strips_by_worker(found)) == {"w1"}
            later = server.finished(server.submit(scene))
            assert not any("failed at rows" in text for text in texts(later)), texts(later)


def test_a_job_that_every_worker_refuses_fails_with_their_message(tmp_path, bundles):
    scene = slow_scene(tmp_path / "s.tif", 9)
    poisoned = {"PYTHONPATH": POISON_PATH, "CLUSTER_POISON": "engine"}
    with running_cluster(tmp_path / "cluster", 2, **poisoned) as cluster:
        options = ("--cluster", cluster.address, "--bundles", bundles, "--model", "pooled", "--strip-px", 16)
        with running_server(tmp_path / "data", *options) as server:
            found = server.finished(server.submit(scene))
    assert found["problem"]["code"] == "inference_failed"
    assert "the GPU has fallen off the bus" in found["problem"]["detail"]


def test_a_bundle_that_no_worker_runs_fails_its_job_and_the_service_stays_ready(tmp_path, bundles):
    scene = write_tif(tmp_path / "s.tif", values_of(), wavelengths_nm=WAVELENGTHS)
    poisoned = {"PYTHONPATH": POISON_PATH, "CLUSTER_POISON": "without token"}
    with running_cluster(tmp_path / "cluster", 2, **poisoned) as cluster:
        options = ("--cluster", cluster.address, "--bundles", bundles, "--model", "pooled", "--strip-px", 16)
        with running_server(tmp_path / "data", *options) as server:
            found = server.finished(server.submit(scene, model="token"))
            assert found["problem"]["code"] == "not_ready"
            assert "does not reproduce the bundle's reference output" in found["problem"]["detail"]
            assert server.client.get("/readyz").status_code == 200
            assert server.finished(server.submit(scene))["status"] == "successful"


def test_a_frozen_worker_does_not_delay_a_new_bundle(tmp_path):
    path = write_patch_bundle(tmp_path / "new.onnx", name="new")
    with running_cluster(tmp_path / "cluster", 2) as cluster:
        cluster.workers[0].child().send_signal(signal.SIGSTOP)
        connection = Cluster(Settings(cluster=cluster.address))
        began = time.monotonic()
        connection.engine(load_bundle(path), lambda text: None, lambda: False)
        waited_s = time.monotonic() - began
        cluster.workers[0].child().send_signal(signal.SIGCONT)
        connection.close()
    assert waited_s < LOAD_S / 2


def test_a_workers_dashboard_is_local_and_ctrl_c_ends_it_without_a_traceback(tmp_path):
    with running_cluster(tmp_path / "cluster", 1) as cluster:
        (worker,) = cluster.workers
        child = worker.child()
        listening = [port for port in child.net_connections("tcp") if port.status == psutil.CONN_LISTEN]
        dask_port = int(re.search(r"joined .* as tcp://.*:(\d+)", worker.log.read_text())[1])
        others = [port.laddr for port in listening if port.laddr.port != dask_port]
        assert others
        assert {address.ip for address in others} == {"127.0.0.1"}
        for process in (child, worker.process):  # as a terminal does: it signals all of them
            process.send_signal(signal.SIGINT)
        assert worker.process.wait(20) == 0
        assert "Traceback" not in worker.log.read_text()


def test_a_worker_that_returns_to_its_address_is_not_leaving(tmp_path):
    port = free_port()
    with running_cluster(tmp_path / "cluster") as cluster:
        cluster.add_worker("--port", port)
        cluster.wait_for_workers()
        assert cluster.workers[0].stop() == 0
        cluster.add_worker("--port", port)
        cluster.wait_for_workers()
        connection = Cluster(Settings(cluster=cluster.address))
        (worker,) = wait_for(lambda: list(connection._pool.workers.values()))
        assert worker.address.endswith(f":{port}")
        assert not in_loop(connection, connection._pool.is_leaving(worker))
        connection.close()


def test_a_job_whose_kind_of_worker_is_gone_restarts_with_others(tmp_path, bundles, monkeypatch):
    monkeypatch.setattr(dispatch, "NO_MATCH_S", 1.0)
    scene = slow_scene(tmp_path / "s.tif", 10, rows=320)
    bundle = load_bundle(bundles / "pooled.onnx")
    poisoned = {"PYTHONPATH": POISON_PATH, "CLUSTER_POISON": "1"}
    with running_cluster(tmp_path / "cluster", 2, **poisoned) as cluster:
        cluster.add_worker("--device", "openvino")
        cluster.wait_for_workers()
        connection, notes = Cluster(Settings(cluster=cluster.address)), []
        engine = connection.engine(bundle, notes.append, lambda: False)
        assert "ONNX Runtime" in engine.provider

        def kill_two(now):
            for worker in cluster.workers[:2]:
                worker.kill()

        options, control = MapOptions(strip_px=16), RunControl(kill_two)
        with pytest.raises(WorkersLost):
            map_scene(open_scene(scene), bundle, engine, tmp_path / "out", options, control)
        assert any("the job restarts" in text for text in notes), notes
        assert "OpenVINO" in connection.engine(bundle, notes.append, lambda: False).provider
        connection.close()


def test_a_stopped_worker_is_not_reported_as_lost(cluster, server, tmp_path):
    leaver = cluster.add_worker(PYTHONPATH=POISON_PATH, CLUSTER_POISON="1")
    cluster.wait_for_workers()
    job = server.submit(slow_scene(tmp_path / "s.tif", 5, rows=640))
    wait_for(lambda: server.job(job)["progress"] > 20)
    assert leaver.stop() == 0
    found = server.finished(job)
    assert found["status"] == "successful"
    assert any(f"worker {leaver.name} was stopped" in text for text in texts(found)), texts(found)


def test_a_killed_service_resumes_from_its_finished_strips(cluster, bundles, tmp_path):
    scene = slow_scene(tmp_path / "s.tif", 6, rows=320)
    options = ("--cluster", cluster.address, "--bundles", bundles, "--model", "pooled", "--strip-px", 16)
    server = RunningServer(tmp_path / "data", *options).wait_until_ready()
    job = server.submit(scene)
    wait_for(lambda: server.job(job)["progress"] > 40)
    server.process.kill()
    server.stop()
    with running_server(tmp_path / "data", *options) as server:
        found = server.finished(job)
        assert (found["status"], found["resumes"]) == ("successful", 1)
        assert "the server crashed" in " ".join(texts(found))
        assert sum(strips_by_worker(found).values()) <= 12  # of 20
        expected = local_map(scene, load_bundle(bundles / "pooled.onnx"), tmp_path / "here")
        assert results_of(server, job) == expected


def test_pixels_in_flight_are_limited_and_bypass_the_scheduler(tmp_path, bundles):
    """No worker responds, so all pixels that are read stay in our memory, and not in the scheduler's."""
    memory_bytes = 4_000_000
    bundle = load_bundle(bundles / "pooled.onnx")
    with running_cluster(tmp_path / "cluster", 1) as cluster:
        connection = Cluster(Settings(cluster=cluster.address, cluster_memory_bytes=memory_bytes))
        engine = connection.engine(bundle, lambda text: None, lambda: False)
        cluster.workers[0].child().send_signal(signal.SIGSTOP)
        held_before = psutil.Process(cluster.scheduler.pid).memory_info().rss
        source, cancelled = Endless(cols=1000), threading.Event()
        plan = plan_scene(100_000, 1000, bundle.manifest, MapOptions(4, strip_px=16), engine.batch)
        mapper = StripMapper(engine, bundle.manifest, plan, "angle", control=RunControl(cancelled=cancelled))
        strips = mapper.map_source(source, plan.strips)
        reader = threading.Thread(target=lambda: [None for _ in quietly(strips)])
        reader.start()
        wait_for(lambda: source.is_quiet_for(1.0))
        cancelled.set()
        reader.join(30)
        held = psutil.Process(cluster.scheduler.pid).memory_info().rss - held_before
        connection.close()
    block_bytes = 1000 * 5 * 4 * 48
    assert memory_bytes / 2 < source.read_bytes < memory_bytes + 4 * block_bytes
    assert held < 2_000_000


def quietly(strips):
    try:
        yield from strips
    except Cancelled:
        return


class Endless:
    """A source that counts the bytes read."""

    def __init__(self, cols):
        self.cols, self.read_bytes, self._last = cols, 0, time.monotonic()

    def read(self, top, bottom):
        cube = np.full((bottom - top, self.cols, 5), 0.5, np.float32)
        self.read_bytes += cube.nbytes
        self._last = time.monotonic()
        return PixelRows(top, cube, np.ones(cube.shape[:2], bool))

    def is_quiet_for(self, seconds):
        return self.read_bytes > 0 and time.monotonic() - self._last > seconds


def test_a_service_without_its_cluster_is_not_ready_and_says_why(tmp_path, bundles):
    cluster = RunningCluster(tmp_path / "cluster")
    cluster.kill_scheduler()
    server = RunningServer(tmp_path / "data", "--cluster", cluster.address, "--bundles", bundles, "--model", "pooled")
    try:

        def is_reason(words):
            answer = server.client.get("/readyz")
            return answer.status_code == 503 and words in answer.json()["detail"]

        wait_for(lambda: is_reason("cannot be reached") or is_reason("does not respond"))
        cluster.start_scheduler()
        wait_for(lambda: is_reason(f"hyperscene worker --scheduler {cluster.address}"))
        version = "hyperscene 0.0.1, bundle format 0"
        command = [sys.executable, "-c", STRANGER, cluster.address, version]
        stranger = subprocess.Popen(command, preexec_fn=ends_with_parent())
        wait_for(lambda: is_reason("it is hyperscene 0.0.1, bundle format 0"))
        assert is_reason(f"this service {tasks.version_tag()}: install the same version on both")
        assert cluster.add_worker().process.poll() is None
        server.wait_until_ready()
        scene = write_tif(tmp_path / "s.tif", values_of(), wavelengths_nm=WAVELENGTHS)
        job = server.finished(server.submit(scene))
        assert job["status"] == "successful"
        assert any("worker stranger is not used: it is hyperscene 0.0.1" in text for text in texts(job))
        cluster.kill_scheduler()
        wait_for(lambda: server.client.get("/readyz").status_code == 503)
    finally:
        stranger.kill()
        stranger.wait()
        server.stop()
        cluster.stop()


# A worker of another version, known by its resources only.
STRANGER = """
import asyncio, sys
from distributed import Worker
async def main():
    async with Worker(sys.argv[1], name="stranger", nthreads=1, resources={sys.argv[2]: 1}) as worker:
        await worker.finished()
asyncio.run(main())
"""


def test_strips_are_sent_over_tls_with_certificates(tmp_path, bundles, certificates):
    ca, cert, key = certificates
    scheduler_options = ("--tls-ca-file", ca, "--tls-cert", cert, "--tls-key", key)
    cluster = RunningCluster(tmp_path / "cluster", *scheduler_options, scheme="tls")
    connection = None
    try:
        cluster.add_worker("--ca", ca, "--cert", cert, "--key", key)
        cluster.wait_for_workers()
        check(["dask", "scheduler", "--port", str(cluster.port), *map(str, scheduler_options)], {})
        settings = Settings(cluster=cluster.address, cluster_ca=ca, cluster_cert=cert, cluster_key=key)
        connection = Cluster(settings)
        bundle = load_bundle(bundles / "pooled.onnx")
        scene = write_tif(tmp_path / "s.tif", values_of(), wavelengths_nm=WAVELENGTHS)
        engine = connection.engine(bundle, lambda text: None, lambda: False)
        map_scene(open_scene(scene), bundle, engine, tmp_path / "there", MapOptions(strip_px=16))
        there = {name: (tmp_path / "there" / name).read_bytes() for name in COMPARED}
        assert there == local_map(scene, bundle, tmp_path / "here")
    finally:
        if connection is not None:
            connection.close()
        cluster.stop()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl")
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def make_certificates(folder):
    """A self-signed authority that is also the certificate of all sides."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=hyperscene",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert],
        check=True, capture_output=True,
    )  # fmt: skip
    return cert, cert, key


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--scheduler", "scheduler:8786"), "tcp://HOST:PORT or tls://HOST:PORT"),
        (("--scheduler", "tls://scheduler:8786"), "needs the certificate"),
        (("--scheduler", "tcp://scheduler:8786", "--ca", "/no/such"), "use tls://"),
        (("--scheduler", "tcp://scheduler:8786", "--port", "abc"), "9000:9100"),
        (("--scheduler", "tls://s:1", "--ca", "/no/ca", "--cert", "/no/cert", "--key", "/no/key"), "no file /no/ca"),
    ],
)
def test_a_worker_refuses_wrong_options(options, words):
    done = run("worker", *options)
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("damaged", "words"),
    [
        ("ca", "{ca} holds no certificate"),
        ("cert", "{cert} and {key} are not a certificate and its private key"),
        ("key", "{cert} and {key} are not a certificate and its private key"),
        ("encrypted", "{key} is encrypted"),
        ("unreadable", "cannot read {key}"),
    ],
)
def test_files_that_tls_cannot_use_are_named_at_the_start(certificates, tmp_path, damaged, words):
    files = {name: tmp_path / f"{name}.pem" for name in ("ca", "cert", "key")}
    for source, target in zip(certificates, files.values(), strict=True):
        shutil.copy(source, target)
    command = [sys.executable, "-m", "hyperscene.service.cli", "worker", "--scheduler", "tls://127.0.0.1:1"]
    if damaged in files:
        files[damaged].write_text("no certificate\n")
    elif damaged == "encrypted":
        encrypt = ["openssl", "pkey", "-in", certificates[2], "-aes256", "-passout", "pass:hush", "-out", files["key"]]
        subprocess.run(encrypt, check=True)
    else:
        files["key"].chmod(0)
        command = [*WITHOUT_ROOTS_RIGHTS, *command]
    options = [word for name, file in files.items() for word in (f"--{name}", str(file))]
    done = subprocess.run([*command, *options], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)
    assert done.returncode == 2
    assert words.format(**files) in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_worker_names_a_certificate_that_is_lost_later_and_says_so_again(certificates, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(worker_main, "REMIND_EVERY_S", 0.0)
    monkeypatch.setattr(worker_main, "RETRY_S", 0.01)
    key = tmp_path / "lost.pem"
    ca, cert, _ = certificates
    config = WorkerConfig("tls://127.0.0.1:1", EngineOptions("cpu", 1, 1), ca=ca, cert=cert, key=key)

    async def run_until_reminded():
        running = asyncio.ensure_future(run_worker(config))
        while len(caplog.records) < 2:
            await asyncio.sleep(0.01)
        signal.raise_signal(signal.SIGTERM)
        await running

    asyncio.run(run_until_reminded())
    assert all(f"there is no file {key}" in record.getMessage() for record in caplog.records)


def test_a_worker_without_the_requested_device_ends_at_once():
    done = run("worker", "--scheduler", "tcp://127.0.0.1:1", "--device", "cuda")
    assert done.returncode == 1
    assert "CUDAExecutionProvider" in refusal(done)


@pytest.mark.parametrize("setting", ["scheduler:8786", "http://scheduler:8786", "tls://scheduler:8786"])
def test_a_service_refuses_an_invalid_cluster_address(setting, tmp_path):
    done = run("serve", "--cluster", setting, "--data", tmp_path / "data", "--port", 0)
    assert done.returncode == 2
    assert done.stderr.startswith("hyperscene: --cluster: ")
    assert "tls://" in done.stderr


def test_dask_is_not_imported_without_the_setting(tmp_path):
    code = (
        "import sys, hyperscene.service.app, hyperscene.service.jobs.worker\n"
        "import hyperscene.service.commands.serve, hyperscene.service.commands.classify\n"
        "assert not {'dask', 'distributed', 'tornado'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_stopped_run_is_not_computed_any_further(bundles):
    content = (bundles / "pooled.onnx").read_bytes()
    bundle = load_bundle(bundles / "pooled.onnx")
    assert isinstance(tasks.find_engine(bundle.sha256), tasks.BundleMissing)
    assert isinstance(tasks.receive_bundle(content + b" ", bundle.sha256, "damaged"), tasks.Refusal)
    assert isinstance(tasks.receive_bundle(content, bundle.sha256, "pooled"), tasks.EngineInfo)
    plan = plan_mapping(Lattice(32, 20, 4, 16), is_voting=True, batch=16, strip_px=16)
    pixels = PixelRows(0, values_of(32, 20), np.ones((32, 20), bool))
    request = tasks.StripRequest("run", bundle.sha256, plan, [0, 1], pixels)
    assert isinstance(tasks.predict_strip(request), tasks.StripPrediction)
    tasks.stop_run("run")
    assert tasks.predict_strip(request) == tasks.Refusal("not_ready", "the job was stopped")
    assert isinstance(tasks.predict_strip(replace(request, run_id="other")), tasks.StripPrediction)


def test_a_cluster_worker_keeps_the_engines_and_stops_used_last(monkeypatch):
    monkeypatch.setattr(tasks, "_engines", LruCache(2))
    monkeypatch.setattr(tasks, "_stops", LruCache(2))
    monkeypatch.setattr(tasks, "parse_bundle", lambda content, path: content)
    found = tasks.EngineInfo("cpu", "ONNX Runtime", 16)
    monkeypatch.setattr(tasks, "choose_engine", lambda *_: (found, []))
    ids = []
    for content in (b"a", b"b", b"c"):
        ids.append(hashlib.sha256(content).hexdigest())
        tasks.receive_bundle(content, ids[-1], "bundle")
        tasks.find_engine(ids[0])
    assert [isinstance(tasks.find_engine(sha256), tasks.EngineInfo) for sha256 in ids] == [True, False, True]
    for run_id in "abc":
        tasks.stop_run(run_id)
        tasks.stop_run("a")
    assert [tasks._stop_of(run_id).is_set() for run_id in "acb"] == [True, True, False]


def test_workers_that_run_different_engines_are_not_mixed():
    worker = WorkerState.from_identity("tcp://a:1", {"name": "a", "resources": {tasks.version_tag(): 1, "GPU": 1}})
    worker.engines["sha"] = tasks.EngineInfo("cuda", "ONNX Runtime 1 CUDAExecutionProvider", 256)
    assert worker.has_gpu
    assert worker.can_run("sha", "ONNX Runtime 1 CUDAExecutionProvider")
    assert not worker.can_run("sha", "OpenVINO 2 CPU")
    assert "may differ" in worker.refusal("sha", "OpenVINO 2 CPU")
    assert "not a hyperscene worker" in WorkerState.from_identity("tcp://b:1", {"name": "b", "resources": {}}).reason


@pytest.mark.slow
@pytest.mark.timeout(660)  # it may wait 300 s for each of two jobs
def test_nothing_is_lost_when_workers_and_the_scheduler_are_killed(tmp_path):
    report = ClusterAttack(tmp_path, seed=1, rows=320, cols=96).run(rounds=1)
    assert (report.jobs, report.worker_kills, report.scheduler_kills) == (1, 2, 1)
    assert report.completed == report.strips
    assert any("the scheduler was lost" in text for text in report.history)
