"""Several machines: a real scheduler and real workers, each a process, and a service that maps with them."""

import asyncio
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from model.bundle import load_bundle
from service.cluster import dispatch, tasks
from service.cluster.crew import Cluster
from service.cluster.members import Member
from service.cluster.roster import EQUIP_S, Roster
from service.mapping.ahead import Cancelled
from service.mapping.classify import CrewLost
from service.mapping.engines import make_engine
from service.mapping.lattice import Lattice, plan_mapping
from service.mapping.pipeline import MapOptions, StripMapper, map_scene, plan_scene
from service.mapping.scenes import open_scene
from service.mapping.view import Pixels
from service.settings import Settings
from tests.bundles import write_patch_bundle
from tests.cluster import RunningCluster, free_port, running_cluster
from tests.cluster_faults import Attack, strips_by_worker
from tests.command_line import refusal, run
from tests.faults import COMPARED
from tests.scenes import write_tif
from tests.server import RunningServer, running_server, wait_for

WAVELENGTHS = np.linspace(450, 900, 5)
POISON_FOLDER = Path(__file__).parent / "poison"
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
    """Two workers that poison kills."""
    poisoned = {"PYTHONPATH": str(POISON_FOLDER), "CLUSTER_POISON": "1"}
    with running_cluster(tmp_path_factory.mktemp("cluster"), 2, **poisoned) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def server(tmp_path_factory, cluster, bundles):
    options = ("--cluster", cluster.address, "--bundles", bundles, "--model", "pooled", "--strip-px", 16)
    with running_server(tmp_path_factory.mktemp("server") / "data", *options) as server:
        yield server


@pytest.fixture(scope="module")
def connection(cluster):
    """A cluster as the library uses it, without a service."""
    connection = Cluster(Settings(cluster=cluster.address))
    yield connection
    connection.close()


def values_of(rows=ROWS, cols=COLS, seed=0):
    return np.random.default_rng(seed).uniform(0.1, 0.9, (rows, cols, 5)).astype("float32")


def slow_scene(path, seed=0, rows=ROWS):
    """A scene every tile of which takes its time."""
    values = values_of(rows, seed=seed)
    values[::8, ::8, 2] = SLOW
    return write_tif(path, values, wavelengths_nm=WAVELENGTHS)


def local_map(scene, bundle, folder, options=None):
    """What one machine writes."""
    engine = make_engine(bundle, "cpu", 2)
    map_scene(open_scene(scene), bundle, engine, folder, options or MapOptions(strip_px=16))
    return {name: (folder / name).read_bytes() for name in COMPARED}


def results_of(server, job_id):
    return {name: server.client.get(f"/jobs/{job_id}/results/{name}").content for name in COMPARED}


def told(job):
    return [past["text"] for past in job["history"]]


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
    crew = connection.crew(bundle, lambda text: None, lambda: False)
    map_scene(open_scene(scene), bundle, crew, tmp_path / "there", options)
    there = {name: (tmp_path / "there" / name).read_bytes() for name in COMPARED}
    assert there == local_map(scene, bundle, tmp_path / "here", options)


def test_a_bundle_is_sent_to_each_worker_once(cluster, bundles, tmp_path, monkeypatch):
    sent, send = [], Roster.send

    async def counted(self, member, value):
        if isinstance(value, bytes):
            sent.append(member.name)
        return await send(self, member, value)

    monkeypatch.setattr(Roster, "send", counted)
    path = write_patch_bundle(tmp_path / "new.onnx", name="new")
    for _ in range(2):
        connection = Cluster(Settings(cluster=cluster.address))
        connection.crew(load_bundle(path), lambda text: None, lambda: False)
        connection.close()
    assert sorted(sent) == ["w1", "w2"]


def test_answers_of_an_earlier_run_are_not_asked_for_again(tmp_path, connection, bundles):
    scene = slow_scene(tmp_path / "s.tif")
    bundle = load_bundle(bundles / "pooled.onnx")
    cancelled, notes = threading.Event(), []

    def stop_half_way(done, total):
        if done > total / 2:
            cancelled.set()

    def map_once(report):
        notes.clear()
        crew = connection.crew(bundle, notes.append, lambda: False)
        map_scene(
            open_scene(scene), bundle, crew, tmp_path / "out", MapOptions(strip_px=16), report, cancelled,
            tmp_path / "checkpoint",
        )  # fmt: skip

    with pytest.raises(Cancelled):
        map_once(stop_half_way)
    cancelled.clear()
    map_once(None)
    # The first run had answers for more than half of the ten groups, whatever order they came in.
    assert 0 < sum(strips_by_worker({"history": [{"text": text} for text in notes]}).values()) <= 5
    assert {name: (tmp_path / "out" / name).read_bytes() for name in COMPARED} == local_map(
        scene, bundle, tmp_path / "here"
    )


def test_a_job_says_who_mapped_it(server, bundles, tmp_path):
    scene = slow_scene(tmp_path / "s.tif")
    job = server.finished(server.submit(scene))
    assert (job["status"], job["device"]) == ("successful", "cluster")
    assert "ONNX Runtime" in job["provider"]
    assert set(strips_by_worker(job)) == {"w1", "w2"}
    for slot in server.client.get("/health").json()["workers"]:
        assert slot["members"] == [{"name": "w1", "reason": None}, {"name": "w2", "reason": None}]
    assert 'hyperscene_cluster_workers{used="yes"} 2.0' in server.client.get("/metrics").text
    assert results_of(server, job["jobID"]) == local_map(scene, load_bundle(bundles / "pooled.onnx"), tmp_path / "here")


def test_jobs_share_the_cluster(server, tmp_path):
    """When the first of two like jobs is done, the other is far, too: neither waits for the other's end."""
    jobs = [server.submit(slow_scene(tmp_path / f"{seed}.tif", seed, rows=320)) for seed in (1, 2)]
    wait_for(lambda: any(server.job(job)["status"] == "successful" for job in jobs))
    assert all(server.job(job)["progress"] > 50 for job in jobs)
    assert all(server.finished(job)["status"] == "successful" for job in jobs)


def test_a_strip_that_kills_its_workers_fails_the_job_and_not_the_cluster(server, bundles, tmp_path):
    values = values_of()
    values[70, 20, 1] = POISON
    poisoned = write_tif(tmp_path / "poisoned.tif", values, wavelengths_nm=WAVELENGTHS)
    sound = slow_scene(tmp_path / "sound.tif", 3)
    job, other = server.submit(poisoned), server.submit(sound)
    failed = server.finished(job)
    assert failed["problem"]["code"] == "inference_failed"
    assert "ended 3 workers" in failed["problem"]["detail"]
    # Patches of both groups see row 70.
    assert re.match("rows (48 to 63|64 to 79) of the scene", failed["problem"]["detail"])
    assert sum("was lost with" in text for text in told(failed)) >= 3
    found = server.finished(other)
    assert found["status"] == "successful", found
    assert results_of(server, other) == local_map(sound, load_bundle(bundles / "pooled.onnx"), tmp_path / "here")


def test_a_worker_that_hangs_is_ended_and_its_strips_go_to_others(cluster, bundles, tmp_path):
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
    assert any("w1 did not answer for 5 seconds" in text for text in told(found)), told(found)
    wait_for(lambda: has_ended(child))
    wait_for(cluster.workers[0].child)  # its nanny has started another one


def has_ended(process):
    """Whether a process is gone, or waits only for its parent to notice."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # went between the two questions
        return True


def in_loop(connection, work):
    """What a coroutine gives in the thread that talks to the cluster."""
    return asyncio.run_coroutine_threadsafe(work, connection._loop).result(60)


@contextmanager
def joined_roster(cluster):
    """A connection of its own with two workers, and its roster."""
    connection = Cluster(Settings(cluster=cluster.address))
    wait_for(lambda: len(connection._roster.members) == 2)
    try:
        yield connection, connection._roster
    finally:
        connection.close()


def test_a_question_that_nobody_waits_for_any_more_does_no_harm_to_later_ones(cluster):
    """Dask fetches answers together, five times at a time: one that is cancelled while it waits for its turn would be
    what all later ones wait for."""

    async def ask_and_leave(roster):
        member, client = next(iter(roster.members.values())), roster._client
        for _ in range(5):
            await client._gather_semaphore.acquire()
        asking = asyncio.create_task(roster.call(member, tasks.equip, ""))
        while client._gather_future is None:
            await asyncio.sleep(0.001)
        asking.cancel()
        await asyncio.wait([asking])
        for _ in range(5):
            client._gather_semaphore.release()
        return await asyncio.wait_for(roster.call(member, tasks.equip, ""), 20)

    with joined_roster(cluster) as (connection, roster):
        assert in_loop(connection, ask_and_leave(roster)) == tasks.Missing()


def test_pixels_that_nobody_waits_for_any_more_do_not_stay_on_a_worker(cluster):
    async def send_and_leave(roster):
        for after_s in np.linspace(0.001, 0.03, 20):
            member = next(iter(roster.members.values()))
            sending = asyncio.create_task(roster.send(member, np.zeros(2_000_000, np.float32)))
            await asyncio.sleep(after_s)
            sending.cancel()
        del sending  # its traceback holds what was sent
        for _ in range(100):
            held = await roster._client.run(lambda dask_worker: len(dask_worker.data))
            if not any(held.values()):
                return held
            await asyncio.sleep(0.1)
        return held

    with joined_roster(cluster) as (connection, roster):
        assert not any(in_loop(connection, send_and_leave(roster)).values())


@pytest.mark.parametrize("sickness", ["memory", "engine", "task"])
def test_a_sick_worker_costs_no_job(bundles, tmp_path, sickness):
    scene = slow_scene(tmp_path / "s.tif", 8)
    poisoned = {"PYTHONPATH": str(POISON_FOLDER), "CLUSTER_POISON": "1"}
    with running_cluster(tmp_path / "cluster", 1, **poisoned) as cluster:
        cluster.add_worker(**poisoned | {"CLUSTER_POISON": sickness})
        cluster.wait_for_workers()
        options = ("--cluster", cluster.address, "--bundles", bundles, "--model", "pooled", "--strip-px", 16)
        with running_server(tmp_path / "data", *options, "--cluster-jobs", 1) as server:
            found = server.finished(server.submit(scene))
            assert (found["status"], found["resumes"]) == ("successful", 0), found
            assert any("worker w2 failed at rows" in text for text in told(found)), told(found)
            assert any("worker w2 is not used: it failed at 3 strips" in text for text in told(found)), told(found)
            assert set(strips_by_worker(found)) == {"w1"}
            later = server.finished(server.submit(scene))
            assert not any("failed at rows" in text for text in told(later)), told(later)


def test_what_every_worker_refuses_fails_the_job_in_the_words_of_one_machine(tmp_path, bundles):
    scene = slow_scene(tmp_path / "s.tif", 9)
    poisoned = {"PYTHONPATH": str(POISON_FOLDER), "CLUSTER_POISON": "engine"}
    with running_cluster(tmp_path / "cluster", 2, **poisoned) as cluster:
        options = ("--cluster", cluster.address, "--bundles", bundles, "--model", "pooled", "--strip-px", 16)
        with running_server(tmp_path / "data", *options) as server:
            found = server.finished(server.submit(scene))
    assert found["problem"]["code"] == "inference_failed"
    assert "the GPU has fallen off the bus" in found["problem"]["detail"]


def test_a_bundle_that_no_worker_runs_fails_its_job_and_closes_nothing(tmp_path, bundles):
    scene = write_tif(tmp_path / "s.tif", values_of(), wavelengths_nm=WAVELENGTHS)
    poisoned = {"PYTHONPATH": str(POISON_FOLDER), "CLUSTER_POISON": "without token"}
    with running_cluster(tmp_path / "cluster", 2, **poisoned) as cluster:
        options = ("--cluster", cluster.address, "--bundles", bundles, "--model", "pooled", "--strip-px", 16)
        with running_server(tmp_path / "data", *options) as server:
            found = server.finished(server.submit(scene, model="token"))
            assert found["problem"]["code"] == "not_ready"
            assert "does not give the bundle's own answers" in found["problem"]["detail"]
            assert server.client.get("/readyz").status_code == 200
            assert server.finished(server.submit(scene))["status"] == "successful"


def test_a_frozen_worker_does_not_hold_up_a_new_bundle(tmp_path):
    path = write_patch_bundle(tmp_path / "new.onnx", name="new")
    with running_cluster(tmp_path / "cluster", 2) as cluster:
        cluster.workers[0].child().send_signal(signal.SIGSTOP)
        connection = Cluster(Settings(cluster=cluster.address))
        began = time.monotonic()
        connection.crew(load_bundle(path), lambda text: None, lambda: False)
        waited_s = time.monotonic() - began
        cluster.workers[0].child().send_signal(signal.SIGCONT)
        connection.close()
    assert waited_s < EQUIP_S / 2


def test_a_workers_pages_are_for_its_own_machine_and_ctrl_c_ends_it_without_a_traceback(tmp_path):
    with running_cluster(tmp_path / "cluster", 1) as cluster:
        (worker,) = cluster.workers
        child = worker.child()
        listening = [place for place in child.net_connections("tcp") if place.status == psutil.CONN_LISTEN]
        dask_port = int(re.search(r"joined .* as tcp://.*:(\d+)", worker.log.read_text())[1])
        others = [place.laddr for place in listening if place.laddr.port != dask_port]
        assert others
        assert {place.ip for place in others} == {"127.0.0.1"}
        for process in (child, worker.process):  # as a terminal does: all of them hear it
            process.send_signal(signal.SIGINT)
        assert worker.process.wait(20) == 0
        assert "Traceback" not in worker.log.read_text()


def test_a_worker_that_comes_back_to_its_address_is_not_leaving_any_more(tmp_path):
    port = free_port()
    with running_cluster(tmp_path / "cluster") as cluster:
        cluster.add_worker("--port", port)
        cluster.wait_for_workers()
        assert cluster.workers[0].stop() == 0
        cluster.add_worker("--port", port)
        cluster.wait_for_workers()
        connection = Cluster(Settings(cluster=cluster.address))
        (member,) = wait_for(lambda: list(connection._roster.members.values()))
        assert member.address.endswith(f":{port}")
        assert not in_loop(connection, connection._roster.is_leaving(member))
        connection.close()


def test_a_job_whose_kind_of_worker_is_gone_begins_anew_with_others(tmp_path, bundles, monkeypatch):
    monkeypatch.setattr(dispatch, "ALONE_S", 1.0)
    scene = slow_scene(tmp_path / "s.tif", 10, rows=320)
    bundle = load_bundle(bundles / "pooled.onnx")
    poisoned = {"PYTHONPATH": str(POISON_FOLDER), "CLUSTER_POISON": "1"}
    with running_cluster(tmp_path / "cluster", 2, **poisoned) as cluster:
        cluster.add_worker("--device", "openvino")
        cluster.wait_for_workers()
        connection, notes = Cluster(Settings(cluster=cluster.address)), []
        crew = connection.crew(bundle, notes.append, lambda: False)
        assert "ONNX Runtime" in crew.provider

        def lose_them(done, total):
            for worker in cluster.workers[:2]:
                worker.kill()

        with pytest.raises(CrewLost):
            map_scene(open_scene(scene), bundle, crew, tmp_path / "out", MapOptions(strip_px=16), lose_them)
        assert any("begins anew" in text for text in notes), notes
        assert "OpenVINO" in connection.crew(bundle, notes.append, lambda: False).provider
        connection.close()


def test_a_stopped_worker_says_goodbye_and_nobody_is_blamed(cluster, server, tmp_path):
    leaver = cluster.add_worker(PYTHONPATH=str(POISON_FOLDER), CLUSTER_POISON="1")
    cluster.wait_for_workers()
    job = server.submit(slow_scene(tmp_path / "s.tif", 5, rows=640))
    wait_for(lambda: server.job(job)["progress"] > 20)
    assert leaver.stop() == 0
    found = server.finished(job)
    assert found["status"] == "successful"
    assert any(f"worker {leaver.name} was stopped" in text for text in told(found)), told(found)


def test_a_service_that_is_killed_goes_on_from_the_strips_that_were_answered(cluster, bundles, tmp_path):
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
        assert "the server died" in " ".join(told(found))
        assert sum(strips_by_worker(found).values()) <= 12  # of 20
        expected = local_map(scene, load_bundle(bundles / "pooled.onnx"), tmp_path / "here")
        assert results_of(server, job) == expected


def test_pixels_under_way_are_bounded_and_none_pass_through_the_scheduler(tmp_path, bundles):
    """No worker answers, so whatever is read has to stay: in our memory, and not in the scheduler's."""
    memory_bytes = 4_000_000
    bundle = load_bundle(bundles / "pooled.onnx")
    with running_cluster(tmp_path / "cluster", 1) as cluster:
        connection = Cluster(Settings(cluster=cluster.address, cluster_memory_bytes=memory_bytes))
        crew = connection.crew(bundle, lambda text: None, lambda: False)
        cluster.workers[0].child().send_signal(signal.SIGSTOP)
        held_before = psutil.Process(cluster.scheduler.pid).memory_info().rss
        source, cancelled = Endless(cols=1000), threading.Event()
        plan = plan_scene(100_000, 1000, bundle.manifest, MapOptions(4, strip_px=16), crew.batch)
        mapper = StripMapper(crew, bundle.manifest, plan, "angle", cancelled=cancelled)
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
    """A source that counts what is read of it."""

    def __init__(self, cols):
        self.cols, self.read_bytes, self._last = cols, 0, time.monotonic()

    def read(self, top, bottom):
        cube = np.full((bottom - top, self.cols, 5), 0.5, np.float32)
        self.read_bytes += cube.nbytes
        self._last = time.monotonic()
        return Pixels(top, cube, np.ones(cube.shape[:2], bool))

    def is_quiet_for(self, seconds):
        return self.read_bytes > 0 and time.monotonic() - self._last > seconds


def test_a_service_without_its_cluster_is_not_ready_and_says_why(tmp_path, bundles):
    cluster = RunningCluster(tmp_path / "cluster")
    cluster.kill_scheduler()
    server = RunningServer(tmp_path / "data", "--cluster", cluster.address, "--bundles", bundles, "--model", "pooled")
    try:

        def is_told(words):
            answer = server.client.get("/readyz")
            return answer.status_code == 503 and words in answer.json()["detail"]

        wait_for(lambda: is_told("cannot be reached") or is_told("does not answer"))
        cluster.start_scheduler()
        wait_for(lambda: is_told(f"hyperscene worker --scheduler {cluster.address}"))
        version = "hyperscene 0.0.1, bundle format 0"
        stranger = subprocess.Popen([sys.executable, "-c", STRANGER, cluster.address, version])
        wait_for(lambda: is_told("it is hyperscene 0.0.1, bundle format 0"))
        assert is_told(f"this service {tasks.tag()}: install the same version on both")
        assert cluster.add_worker().process.poll() is None
        server.wait_until_ready()
        scene = write_tif(tmp_path / "s.tif", values_of(), wavelengths_nm=WAVELENGTHS)
        job = server.finished(server.submit(scene))
        assert job["status"] == "successful"
        assert any("worker stranger is not used: it is hyperscene 0.0.1" in text for text in told(job))
        cluster.kill_scheduler()
        wait_for(lambda: server.client.get("/readyz").status_code == 503)
    finally:
        stranger.kill()
        stranger.wait()
        server.stop()
        cluster.stop()


# A worker of another version: what it carries is all that is known of it.
STRANGER = """
import asyncio, sys
from distributed import Worker
async def main():
    async with Worker(sys.argv[1], name="stranger", nthreads=1, resources={sys.argv[2]: 1}) as worker:
        await worker.finished()
asyncio.run(main())
"""


def test_strips_cross_the_network_encrypted_where_certificates_are_given(tmp_path, bundles):
    certificates = make_certificates(tmp_path)
    ca, cert, key = certificates
    scheduler_options = ("--tls-ca-file", ca, "--tls-cert", cert, "--tls-key", key)
    cluster = RunningCluster(tmp_path / "cluster", *scheduler_options, scheme="tls")
    connection = None
    try:
        cluster.add_worker("--ca", ca, "--cert", cert, "--key", key)
        cluster.wait_for_workers()
        settings = Settings(cluster=cluster.address, cluster_ca=ca, cluster_cert=cert, cluster_key=key)
        connection = Cluster(settings)
        bundle = load_bundle(bundles / "pooled.onnx")
        scene = write_tif(tmp_path / "s.tif", values_of(), wavelengths_nm=WAVELENGTHS)
        crew = connection.crew(bundle, lambda text: None, lambda: False)
        map_scene(open_scene(scene), bundle, crew, tmp_path / "there", MapOptions(strip_px=16))
        there = {name: (tmp_path / "there" / name).read_bytes() for name in COMPARED}
        assert there == local_map(scene, bundle, tmp_path / "here")
    finally:
        if connection is not None:
            connection.close()
        cluster.stop()


@pytest.fixture(autouse=True)
def _needs_openssl(request):
    if "certificates" in request.node.name and shutil.which("openssl") is None:
        pytest.skip("there is no openssl")


def make_certificates(folder):
    """An authority that signed itself, and is everybody's certificate at once."""
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
def test_a_worker_refuses_what_cannot_work(options, words):
    done = run("worker", *options)
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_worker_without_the_device_that_it_was_told_to_lend_ends_at_once():
    done = run("worker", "--scheduler", "tcp://127.0.0.1:1", "--device", "cuda")
    assert done.returncode == 1
    assert "CUDAExecutionProvider" in refusal(done)


@pytest.mark.parametrize("setting", ["scheduler:8786", "http://scheduler:8786", "tls://scheduler:8786"])
def test_a_service_refuses_a_cluster_that_is_none(setting, tmp_path):
    done = run("serve", "--cluster", setting, "--data", tmp_path / "data", "--port", 0)
    assert done.returncode == 2
    assert done.stderr.startswith("hyperscene: --cluster: ")
    assert "tls://" in done.stderr


def test_nothing_of_dask_is_imported_without_the_setting(tmp_path):
    code = (
        "import sys, service.app, service.jobs.worker, service.commands.serve, service.commands.classify\n"
        "assert not {'dask', 'distributed', 'tornado'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_stopped_run_is_not_computed_any_further(bundles):
    content = (bundles / "pooled.onnx").read_bytes()
    bundle = load_bundle(bundles / "pooled.onnx")
    assert isinstance(tasks.equip(bundle.sha256), tasks.Missing)
    assert isinstance(tasks.keep_bundle(content + b" ", bundle.sha256, "damaged"), tasks.Refused)
    assert isinstance(tasks.keep_bundle(content, bundle.sha256, "pooled"), tasks.Ready)
    plan = plan_mapping(Lattice(32, 20, 4, 16), is_voting=True, batch=16, strip_px=16)
    pixels = Pixels(0, values_of(32, 20), np.ones((32, 20), bool))
    question = tasks.Question("run", bundle.sha256, plan, [0, 1], pixels)
    assert isinstance(tasks.answer_question(question), tasks.Answer)
    tasks.stop_run("run")
    assert tasks.answer_question(question) == tasks.Refused("not_ready", "the job was stopped")
    assert isinstance(tasks.answer_question(replace(question, run_id="other")), tasks.Answer)


def test_a_worker_that_computes_otherwise_is_not_mixed_with_the_others():
    member = Member.introduce("tcp://a:1", {"name": "a", "resources": {tasks.tag(): 1, "GPU": 1}})
    member.ready["sha"] = tasks.Ready("cuda", "ONNX Runtime 1 CUDAExecutionProvider", 256)
    assert member.has_gpu
    assert member.is_fit("sha", "ONNX Runtime 1 CUDAExecutionProvider")
    assert not member.is_fit("sha", "OpenVINO 2 CPU")
    assert "may differ" in member.refusal("sha", "OpenVINO 2 CPU")
    assert "no worker of hyperscene" in Member.introduce("tcp://b:1", {"name": "b", "resources": {}}).reason


@pytest.mark.slow
def test_nothing_is_lost_when_workers_and_the_scheduler_are_killed(tmp_path):
    report = Attack(tmp_path, seed=1, rows=320, cols=96).run(rounds=1)
    assert (report.jobs, report.worker_kills, report.scheduler_kills) == (1, 2, 1)
    assert report.answered == report.strips
    assert any("the scheduler was lost" in text for text in report.history)
