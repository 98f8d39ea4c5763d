"""Sends hostile requests to a real server, and reports what it should not have done.

The corpus is made by tests/fuzz_corpus.py. Run by the suite with some hundred requests, and by hand with many:
python -m tests.fuzz --requests 50000 --seed 1. A finding is saved, and sent again by --replay FILE. All requests go to
this machine.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import os
import random
import re
import socket
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from multiprocessing.synchronize import Event
from pathlib import Path

import psutil

from hyperscene.errors import ServiceError
from hyperscene.model.bundle import BundleRefused
from hyperscene.service.jobs.inspector import Inspector
from tests.bundles import write_bundle, write_patch_bundle
from tests.file_host import FileHost, running_file_host
from tests.fuzz_corpus import (
    KEY,
    OTHER_KEY,
    HostileRequest,
    generators,
    seeds,
    sound_tiff,
)
from tests.server import RunningServer

CONNECTIONS = 6
TIMEOUT_S = 120.0  # for a response; the service sends headers within seconds
MEMORY_BYTES = 4 << 30  # bound on the resident bytes of server, workers and sandboxes together
LIVEZ_P99_S = 0.05
MAX_EXISTING = 12  # scenes, and jobs, that a run leaves at a time
ALLOWED_5XX = (503, 507)
CLASS_NAME = re.compile(rb"\b[A-Z]\w*(Error|Exception)\b|Traceback")
RESPONSE_HEADERS = ("x-request-id", "x-content-type-options")


@dataclass(frozen=True)
class Answer:
    """A response; status 0 if the connection was closed without one."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    seconds: float = 0.0


class Connection:
    """A connection that is kept as long as the server keeps it."""

    def __init__(self, url: str) -> None:
        host, port = url.removeprefix("http://").split(":")
        self._address = (host, int(port))
        self._socket: socket.socket | None = None

    def send(self, raw: bytes, method: str) -> Answer:
        """The answer; a connection that the server closed while it was idle is opened again."""
        for is_last in (False, True):
            was_used = self._socket is not None
            began = time.monotonic()
            try:
                return self._exchange(raw, method, began)
            except (ConnectionError, http.client.HTTPException):
                self.close()
                if is_last or not was_used:
                    return Answer(0, seconds=time.monotonic() - began)
        raise AssertionError

    def _exchange(self, raw: bytes, method: str, began: float) -> Answer:
        if self._socket is None:
            self._socket = socket.create_connection(self._address, timeout=TIMEOUT_S)
        with suppress(ConnectionError):  # a refusal may be there already
            self._socket.sendall(raw)
        response = http.client.HTTPResponse(self._socket, method=method)
        response.begin()
        with suppress(http.client.IncompleteRead):  # of a failed job
            body = response.read(64 << 20)
        headers = {name.lower(): value for name, value in response.getheaders()}
        if response.will_close or b"100-continue" in raw or b"Content-Length" not in raw.split(b"\r\n\r\n")[0]:
            self.close()
        return Answer(response.status, headers, body, time.monotonic() - began)

    def close(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


# The watcher, in a process of its own


def watch(url: str, pid: int, is_over: Event, results: multiprocessing.Queue) -> None:
    """Request /livez fifty times a second; reports the latencies and the largest memory of all processes together."""
    host, port = url.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=30)
    server, latencies, most, failures = psutil.Process(pid), [], 0, 0
    family, looked = [server], 0.0
    results.put("started")
    while not is_over.wait(0.02):
        began = time.perf_counter()
        try:
            connection.request("GET", "/livez")
            response = connection.getresponse()
            response.read()
            failures += response.status != 200
        except (OSError, http.client.HTTPException):
            failures += 1
            connection.close()
        latencies.append(time.perf_counter() - began)
        if len(latencies) % 10 == 0:
            with suppress(psutil.NoSuchProcess):
                if time.monotonic() - looked > 2:  # it reads /proc of all processes
                    family, looked = [server, *server.children(recursive=True)], time.monotonic()
                most = max(most, _resident_bytes(family))
    results.put((sorted(latencies), most, failures))


def _resident_bytes(processes: list[psutil.Process]) -> int:
    total = 0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            total += process.memory_info().rss
    return total


# The attack


@dataclass
class Report:
    """What happened; any finding is a fault."""

    requests: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    slowest_s: float = 0.0
    sandbox_deaths: int = 0  # refusals because a sandbox ended, which contains a crash of GDAL
    livez_p99_s: float = 0.0
    livez_requests: int = 0
    memory_bytes: int = 0
    seconds: float = 0.0
    findings: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        statuses = ", ".join(f"{status or 'closed'}: {count}" for status, count in sorted(self.statuses.items()))
        return (
            f"{self.requests} requests in {self.seconds:.0f} s ({dict(self.kinds)})\n{statuses}\n"
            f"slowest {self.slowest_s:.1f} s, {self.sandbox_deaths} refusals after the end of a sandbox process\n"
            f"/livez p99 {1000 * self.livez_p99_s:.1f} ms of {self.livez_requests}, "
            f"most memory {self.memory_bytes / 1e9:.2f} GB (bound {MEMORY_BYTES / 1e9:.2f})"
        )


class Fuzzer:
    """A server, and threads that send it hostile requests."""

    def __init__(self, folder: Path, seed: int, findings: Path | None = None) -> None:
        self._folder = folder
        self._findings = findings or folder / "findings"
        self._random = random.Random(seed)
        self._generators = generators()
        self._lock = threading.Lock()
        self._scenes: deque[str] = deque()
        self._jobs: deque[str] = deque()
        self._existing: dict[str, str] = {}  # a sound scene and its job, and the hosts
        self._makers: dict[str, HostileRequest] = {}  # of scenes and jobs
        self.report = Report()

    def run(self, requests: int) -> Report:
        """Send the seeds one by one, then other requests at the same time, and check the server."""
        with ExitStack() as stack:
            self._start(stack)
            self._watch(stack)
            began = time.monotonic()
            expected = self._map_sound()
            self._attack(seeds(), 1)
            self._attack((self._make() for _ in range(requests - self.report.requests)), CONNECTIONS)
            self.report.seconds = time.monotonic() - began
            self._drop_all()
            if self._server.process.poll() is not None:
                self._found("the server ended")
            elif self._map_sound() != expected:
                self._found("a sound scene gets other bytes than before")
            if self.report.requests < requests:
                self._found(f"only {self.report.requests} requests were sent")
        self._read_log()
        return self.report

    def replay(self, paths: list[Path]) -> list[Answer | None]:
        """Send saved requests to a new server; each can be about the scene or the job that the one before made."""
        answers = []
        with ExitStack() as stack:
            self._start(stack)
            self._map_sound()
            for path in paths:
                request = HostileRequest.loaded(path.read_bytes())
                answers.append(answer := self._send(Connection(self._server.url), request, self._existing))
                if answer and (made := self._made(request, answer)):
                    self._existing |= made
        return answers

    def _start(self, stack: ExitStack) -> None:
        bundles, files = self._folder / "bundles", self._folder / "files"
        for folder in (bundles, files):
            folder.mkdir()
        write_bundle(bundles / "pixel.onnx")
        write_patch_bundle(bundles / "patch.onnx")
        sound = sound_tiff().content()
        for name, content in (("sound", sound), ("short", sound[:700]), ("vrt", b"<VRTDataset/>")):
            (files / f"{name}.tif").write_bytes(content)
        host, self._forbidden = (stack.enter_context(running_file_host(files)) for _ in range(2))
        host.redirects["/away.tif"] = f"{self._forbidden.url}/sound.tif"
        self._existing |= {"host": f"{host.url}/", "forbidden": f"{self._forbidden.url}/"}
        options = ("--bundles", bundles, "--model", "pixel", "--device", "cpu", "--hrefs", f"{host.url}/",
                   "--max-uploads", 16, "--upload-idle-s", 5, "--headers-after-s", 1)  # fmt: skip
        self._server = RunningServer(
            self._folder / "data", *options, HYPERSCENE_API_KEYS=f"{KEY},{OTHER_KEY}", **FileHost(files).s3_variables()
        )
        stack.callback(self._stop)
        self._server.wait_until_ready()
        self._inspector = Inspector()
        stack.callback(self._inspector.close)

    def _stop(self) -> None:
        with suppress(Exception):
            self._server.stop(within_s=30)
        self._server.process.kill()

    def _watch(self, stack: ExitStack) -> None:
        context = multiprocessing.get_context("spawn")
        is_over, results = context.Event(), context.Queue()
        watcher = context.Process(
            target=watch, args=(self._server.url, self._server.process.pid, is_over, results), daemon=True
        )
        watcher.start()
        results.get(timeout=60)

        def stop() -> None:
            is_over.set()
            latencies, self.report.memory_bytes, failures = results.get(timeout=60)
            watcher.join()
            self.report.livez_requests = len(latencies)
            self.report.livez_p99_s = latencies[int(0.99 * (len(latencies) - 1))]
            if failures:
                self._found(f"/livez failed {failures} times")
            if self.report.memory_bytes > MEMORY_BYTES:
                self._found(f"the processes took {self.report.memory_bytes / 1e9:.2f} GB together")

        stack.callback(stop)

    def _make(self) -> HostileRequest:
        kinds = list(self._generators)
        [kind] = self._random.choices(kinds, [self._generators[kind][0] for kind in kinds])
        return self._generators[kind][1](self._random)

    def _attack(self, requests: Iterable[HostileRequest], connections: int) -> None:
        waiting = iter(requests)

        def work() -> None:
            os.nice(5)  # of this thread only: the server's responses come first
            connection = Connection(self._server.url)
            while self._server.process.poll() is None:
                with self._lock:
                    request = next(waiting, None)
                if request is None:
                    break
                try:
                    existing = self._existing | self._hostile()
                    self._judge(request, self._send(connection, request, existing), existing)
                    self._drop_old(connection)
                except Exception as error:
                    self._found(f"the fuzzer failed: {error!r}", request)
            connection.close()

        threads = [threading.Thread(target=work) for _ in range(connections)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _hostile(self) -> dict[str, str]:
        """A scene and a job that an earlier request made, half of the time."""
        with self._lock:
            known = {name: ids for name, ids in (("scene", self._scenes), ("job", self._jobs)) if ids}
            return {name: random.choice(ids) for name, ids in known.items() if random.random() < 0.5}

    def _send(self, connection: Connection, request: HostileRequest, existing: dict[str, str]) -> Answer | None:
        """The answer; None if there is none in time."""
        if request.method == "INSPECT":
            return self._inspect(request)
        try:
            return connection.send(request.raw(existing), request.method)
        except TimeoutError:
            connection.close()
            return None

    def _inspect(self, request: HostileRequest) -> Answer:
        """Read a bundle as the server does."""
        path = self._folder / f"bundle-{threading.get_ident()}.onnx"
        path.write_bytes(request.body or b"")
        try:
            self._inspector.inspect_bundle(path)
        except (BundleRefused, ServiceError) as error:
            return Answer(422, dict.fromkeys(RESPONSE_HEADERS, ""), str(error).encode())
        except Exception as error:
            return Answer(500, dict.fromkeys(RESPONSE_HEADERS, ""), repr(error).encode())
        return Answer(200, dict.fromkeys(RESPONSE_HEADERS, ""))

    def _made(self, request: HostileRequest, answer: Answer) -> dict[str, str]:
        """The scene or the job that a request made."""
        found = re.search(r"/(scene|job)s/(\w{32})$", answer.headers.get("location", ""))
        if answer.status != 201 or found is None:
            return {}
        self._makers[found[2]] = request
        return {found[1]: found[2]}

    def _judge(self, request: HostileRequest, answer: Answer | None, existing: dict[str, str]) -> None:
        with self._lock:
            self.report.requests += 1
            self.report.kinds[request.kind] += 1
            if self.report.requests % 5000 == 0:
                print(f"{self.report.requests}: {dict(self.report.statuses)}", file=sys.stderr, flush=True)
        if answer is None:
            self._found(f"no response within {TIMEOUT_S:.0f} s", request, existing)
            return
        with self._lock:
            self.report.statuses[answer.status] += 1
            self.report.slowest_s = max(self.report.slowest_s, answer.seconds)
            self.report.sandbox_deaths += b" of memory: " in answer.body
            for name, made in self._made(request, answer).items():
                (self._scenes if name == "scene" else self._jobs).append(made)
        for finding in faults_of(answer, str(self._folder).encode()):
            self._found(finding, request, existing)
        if self._forbidden.requests:
            self._forbidden.requests.clear()
            self._found("a host out of the list was asked", request)

    def _found(
        self, finding: str, request: HostileRequest | None = None, existing: dict[str, str] | None = None
    ) -> None:
        """Note a fault, and save the request with those that made what it was about."""
        with self._lock:
            self.report.findings[finding] += 1
            count = self.report.findings[finding]
            if request is None or count > 3:
                return
            makers = [self._makers[id] for id in (existing or {}).values() if id in self._makers]
            self._findings.mkdir(exist_ok=True)
            name = re.sub(r"\W+", "-", finding)[:60]
            for step, sent in enumerate([*makers, request]):
                (self._findings / f"{name}-{count}-{step}.request").write_bytes(sent.saved())
        print(f"found: {finding}: {request.kind}, saved in {self._findings}", file=sys.stderr, flush=True)

    def _map_sound(self) -> bytes:
        """The map of a sound scene; later requests are about this scene and its job."""
        client = self._server.client
        client.headers["X-API-Key"] = KEY
        scene = client.post("/scenes", content=sound_tiff().content())
        body = {"inputs": {"scene": {"href": f"/scenes/{scene.json()['id']}"}}}
        job = client.post("/processes/classify-scene/execution", json=body, headers={"Prefer": "respond-async"})
        self._existing |= {"scene": scene.json()["id"], "job": job.json()["jobID"]}
        status = self._server.finished(self._existing["job"], within_s=300)
        assert status["status"] == "successful", status
        return client.get(f"/jobs/{self._existing['job']}/results/classes.tif").content

    def _drop_old(self, connection: Connection, keep: int = MAX_EXISTING) -> None:
        """Dismiss jobs, then delete scenes, so that the queue and the disk do not fill up."""
        for name, ids in (("jobs", self._jobs), ("scenes", self._scenes)):
            while len(ids) > keep:
                with suppress(IndexError, TimeoutError):
                    with self._lock:
                        self._makers.pop(dropped := ids.popleft(), None)
                    raw = HostileRequest("drop", "DELETE", f"/{name}/{dropped}").raw({})
                    if (answer := connection.send(raw, "DELETE")).status >= 500:
                        self._found(f"DELETE /{name}: {answer.status}")

    def _drop_all(self) -> None:
        connection = Connection(self._server.url)
        self._drop_old(connection, 0)
        connection.close()

    def _read_log(self) -> None:
        """Errors in the log; a worker that ends is one."""
        for line in self._server.log.read_text("utf-8", "replace").splitlines():
            with suppress(ValueError):
                entry = json.loads(line)
                if entry["level"] in ("error", "critical") or "Traceback" in line:
                    self._found(f"log: {entry['message'][:200]}: {line[-400:] if 'Traceback' in line else ''}")


def faults_of(answer: Answer, folder: bytes) -> list[str]:
    """What is wrong with an answer."""
    found = []
    if answer.status >= 500 and answer.status not in ALLOWED_5XX:
        found.append(f"status {answer.status}: {answer.body[:200].decode('utf-8', 'replace')}")
    is_text = "json" in answer.headers.get("content-type", "")
    if answer.status >= 400 and (name := CLASS_NAME.search(answer.body)):
        found.append(f"status {answer.status} with the words {name[0].decode()}")
    if folder in answer.body:
        found.append(f"status {answer.status} with a path of the server")
    is_unread = answer.status == 400 and answer.headers.get("content-type", "").startswith("text/plain")
    if answer.status and not is_unread:  # the parser refuses what is not HTTP before anything else
        found += [f"status {answer.status} without {name}" for name in RESPONSE_HEADERS if name not in answer.headers]
    if is_text and answer.body and answer.status != 206:
        try:
            json.loads(answer.body, parse_constant=_refuse)
        except ValueError as error:
            found.append(f"status {answer.status} with invalid JSON ({error})")
    return found


def _refuse(name: str) -> None:
    raise ValueError(name)


def main() -> int:
    """Run the fuzzer and print a report."""
    parser = argparse.ArgumentParser(description="Send hostile requests to a server of its own.")
    parser.add_argument("--requests", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--findings", type=Path, default=Path("fuzz-findings"), help="folder for requests with findings"
    )
    parser.add_argument("--replay", type=Path, nargs="+", help="send saved requests, in this order")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        fuzzer = Fuzzer(Path(folder), options.seed, options.findings)
        if options.replay:
            print(*fuzzer.replay(options.replay), sep="\n")
            return 0
        report = fuzzer.run(options.requests)
    if report.livez_p99_s > LIVEZ_P99_S:
        report.findings[f"/livez p99 is {1000 * report.livez_p99_s:.0f} ms"] += 1
    print(report)
    for finding, count in report.findings.items():
        print(f"FOUND {count} times: {finding}")
    return 1 if report.findings else 0


if __name__ == "__main__":
    sys.exit(main())
