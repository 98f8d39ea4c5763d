"""The service under load: many concurrent clients, and a health probe while a job runs.

As a test: a few seconds, and nothing may be lost. Measured: pytest tests/benchmarks --benchmark-enable -s
"""

from __future__ import annotations

import statistics
import threading
import time
from collections import Counter
from pathlib import Path

import httpx
import pytest

from hyperscene.model.bundle import DEMO_BUNDLE, load_bundle
from hyperscene.service.mapping.engines import make_engine
from hyperscene.service.mapping.options import MapOptions
from hyperscene.service.mapping.pipeline import map_scene
from hyperscene.service.mapping.scenes import open_scene
from hyperscene.training.data.synthetic import SyntheticScene, write_scene
from tests.scaling import measure
from tests.server import RunningServer, part, running_server

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def is_measured(request):
    return request.config.getoption("--benchmark-enable")


@pytest.fixture(scope="module")
def scene(tmp_path_factory) -> Path:
    """A small scene with about 300 patches."""
    path = tmp_path_factory.mktemp("scene") / "small.tif"
    write_scene(SyntheticScene(rows=72, cols=72, seed=2), path, None)
    return path


def library_rate(scene: Path, folder: Path, seconds: float) -> float:
    """Scenes per second by the library alone, one after the other."""
    bundle = load_bundle(DEMO_BUNDLE)
    engine = make_engine(bundle)
    began, done = time.monotonic(), 0
    while time.monotonic() - began < seconds:
        map_scene(open_scene(scene), bundle, engine, folder / "map", MapOptions())
        done += 1
    return done / (time.monotonic() - began)


class Load:
    """Clients that post the same scene repeatedly, each waiting for its map."""

    def __init__(self, server: RunningServer, scene: Path) -> None:
        self._server = server
        self._part = part(scene)
        self.statuses: Counter[int] = Counter()
        self.maps: Counter[bytes] = Counter()
        self.jobs: list[str] = []
        self._last = 0.0

    def run(self, clients: int, seconds: float) -> float:
        """Scenes per second until the last response."""
        began, earlier = time.monotonic(), self.statuses[200]
        threads = [threading.Thread(target=self._post, args=(began + seconds,)) for _ in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return (self.statuses[200] - earlier) / (self._last - began)

    def _post(self, deadline: float) -> None:
        with httpx.Client(base_url=self._server.url, timeout=300) as client:
            while time.monotonic() < deadline:
                response = client.post("/classify", files={"scene": self._part})
                self.statuses[response.status_code] += 1
                if response.status_code == 200:
                    self._last = time.monotonic()
                    self.maps[response.content] += 1
                    self.jobs.append(response.headers["location"])
                else:
                    time.sleep(float(response.headers.get("retry-after", 1)))


def test_many_concurrent_clients_lose_no_request(tmp_path, scene, is_measured):
    # Rounds, because the machine's speed changes from minute to minute; a minute of load in total when measured.
    clients, seconds, alone_s, rounds = (32, 15, 10, 4) if is_measured else (8, 3, 0.5, 1)
    ratios = []
    with running_server(tmp_path / "data", "--max-waiting", 20 if is_measured else 4) as server:
        load = Load(server, scene)
        for _ in range(rounds):
            before = library_rate(scene, tmp_path, alone_s)
            rate = load.run(clients, seconds)
            after = library_rate(scene, tmp_path, alone_s)
            ratios.append(2 * rate / (before + after))
        finished = server.client.get("/health").json()["jobs"]
    assert set(load.statuses) <= {200, 429}
    assert len(load.maps) == 1  # the same scene, the same map
    assert finished == {"successful": load.statuses[200]}
    assert len(set(load.jobs)) == load.statuses[200]
    if is_measured:
        print(
            f"\n{clients} clients, {rounds} rounds of {seconds} s: {dict(load.statuses)}; scenes a second, to the "
            f"library alone before and after: {', '.join(f'{ratio:.2f}' for ratio in ratios)}; "
            f"median {statistics.median(ratios):.2f}"
        )


def test_the_health_probe_responds_while_a_job_runs(tmp_path, is_measured):
    large = tmp_path / "large.tif"
    side = 400 if is_measured else 128
    write_scene(SyntheticScene(rows=side, cols=side, seed=2), large, None)
    with running_server(tmp_path / "data") as server:
        headers = {"Prefer": "respond-async"}
        job = server.client.post("/classify", files={"scene": part(large)}, headers=headers).json()["jobID"]
        taken_ms = []
        while server.client.get(f"/jobs/{job}").json()["status"] != "successful":
            for _ in range(20):
                began = time.perf_counter()
                assert server.client.get("/livez").status_code == 200
                taken_ms.append(1000 * (time.perf_counter() - began))
                time.sleep(0.005)
    if is_measured:
        percentiles = statistics.quantiles(taken_ms, n=100)
        print(
            f"\n/livez while a job runs, {len(taken_ms)} times: median {percentiles[49]:.1f} ms, "
            f"99th percentile {percentiles[98]:.1f} ms, longest {max(taken_ms):.1f} ms"
        )


def test_a_cluster_is_compared_with_one_machine(tmp_path):
    figures = measure(tmp_path, rows=64, cols=64, rounds=1, device="cpu")
    assert figures["two_to_one"] > 0
    assert figures["one_to_thread"] > 0
    assert set(figures["seconds"]) == {"one thread", "one worker", "two workers"}
