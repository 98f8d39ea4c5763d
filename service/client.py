"""A server's client: sends a scene, watches its job, and brings the results home."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx

from service.errors import NotReady, OutputUnwritable, ServiceError, error_of
from service.mapping.classify import Report
from service.mapping.pipeline import RESULTS, MapOptions, move_results, require_own_place, workplace
from service.mapping.scenes import scene_files

POLL_S = 0.3
PATIENCE_S = 120.0  # without a word from the server, once it has the job
CONNECT_S = 10.0
BUSY = (429, 503)
PASSING = (502, 503, 504)  # of a proxy, or a server that starts anew
SUBMIT_S = 1800.0

Say = Callable[[str], None]


class Client:
    """A server, and the key to it."""

    def __init__(self, server: str, api_key: str | None = None, say: Say = print) -> None:
        headers = [(b"X-API-Key", api_key.encode())] if api_key else []
        try:
            self._http = httpx.Client(base_url=server, headers=headers, timeout=httpx.Timeout(60, connect=CONNECT_S))
        except (httpx.InvalidURL, ValueError) as error:
            raise NotReady(f"{server} is no address ({error}): give one like http://localhost:8000") from error
        self._server = server
        self._say = say

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def map_scene(
        self, scene: Path, output: Path, model: str | None, options: MapOptions, report: Report, sent: Report
    ) -> dict[str, Any]:
        """Map a scene on the server into the same files as without one; answers the summary."""
        files = scene_files(scene)
        for file in files:
            require_own_place(file, output)
        with workplace(output) as folder:
            job = self._submit(files, _form(model, options), sent)
            try:
                self._wait(job, report)
                for name in RESULTS:
                    self._fetch(job, name, folder / name)
            except (KeyboardInterrupt, OutputUnwritable):
                self._dismiss(job)
                raise
            summary: dict[str, Any] = json.loads((folder / "summary.json").read_text("utf-8"))
            move_results(folder, output)
        return summary

    def _submit(self, files: list[Path], form: dict[str, str], sent: Report) -> str:
        """The new job's id. Sent again where the connection broke: the key makes it one job."""
        headers = {"Prefer": "respond-async", "Idempotency-Key": uuid4().hex}
        total = sum(file.stat().st_size for file in files)
        # A large file is flushed to the server's disk and looked at before there is an answer.
        timeout = httpx.Timeout(SUBMIT_S, connect=CONNECT_S)
        broken = 0
        for _ in range(1000):
            with _opened(files, total, sent) as parts, self._told():
                try:
                    answer = self._http.post("/classify", files=parts, data=form, headers=headers, timeout=timeout)
                except httpx.TransportError:
                    broken += 1
                    if broken > 2:
                        raise
                    time.sleep(1)
                    continue
            if answer.status_code in BUSY and "retry-after" in answer.headers:
                self._say(f"the server is busy ({_detail(answer)})")
                time.sleep(_seconds(answer.headers["retry-after"]))
                continue
            return str(_document(answer)["jobID"])
        raise NotReady(f"{self._server} stays busy: try again later")

    def _wait(self, job: str, report: Report) -> None:
        while True:
            status = _document(self._get(job, f"/jobs/{job}"))
            if status["patches_total"]:
                report(status["patches_done"], status["patches_total"])
            if status["status"] == "successful":
                return
            if status["status"] == "failed":
                raise error_of(status["problem"]["code"], status["problem"]["detail"])
            if status["status"] == "dismissed":
                raise NotReady(f"the job {job} was dismissed by somebody else: send the scene again")
            time.sleep(POLL_S)

    def _get(self, job: str, path: str, target: Path | None = None) -> httpx.Response:
        """An answer, into a file if there is one. A server that starts anew, or a line that breaks, is waited for."""
        began = heard = time.monotonic()
        while True:
            with self._told(job):
                try:
                    with self._http.stream("GET", path) as answer:
                        heard = time.monotonic()
                        if target is not None and answer.is_success:
                            _write(answer, target)
                        else:
                            answer.read()
                    if answer.status_code not in PASSING or time.monotonic() - began > PATIENCE_S:
                        return answer
                except httpx.TransportError:
                    if time.monotonic() - heard > PATIENCE_S:
                        raise
            time.sleep(1)

    def _fetch(self, job: str, name: str, target: Path) -> None:
        _require_success(self._get(job, f"/jobs/{job}/results/{name}", target))

    def _dismiss(self, job: str) -> None:
        try:
            self._http.delete(f"/jobs/{job}")
        except httpx.HTTPError:
            self._say(f"the job {job} could not be dismissed and goes on at {self._server}")

    @contextmanager
    def _told(self, job: str | None = None) -> Generator[None, None, None]:
        """What goes wrong on the way, in one line."""
        try:
            yield
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            remedy = f"its job and results are kept, see {self._server}/jobs/{job}" if job else "check the address"
            raise NotReady(f"{self._server} cannot be reached ({reason}): {remedy}") from error


class _Counted(io.FileIO):
    """A file that tells how much of it was read."""

    def __init__(self, path: Path, advance: Callable[[int], None]) -> None:
        super().__init__(path, "rb")
        self._advance = advance

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(-1 if size is None else size) or b""
        self._advance(len(data))
        return data


@contextmanager
def _opened(files: list[Path], total: int, sent: Report) -> Generator[list[tuple[str, Any]], None, None]:
    done = 0

    def advance(amount: int) -> None:
        nonlocal done
        done += amount
        sent(done, total)

    opened = [_Counted(path, advance) for path in files]
    try:
        yield [("scene", (path.name, file)) for path, file in zip(files, opened, strict=True)]
    finally:
        for file in opened:
            file.close()


def _form(model: str | None, options: MapOptions) -> dict[str, str]:
    form: dict[str, str] = {"blend": options.blend, "probability_type": options.probability_type}
    if options.stride_px:
        form["stride_px"] = str(options.stride_px)
    return form | ({"model": model} if model else {})


def _write(answer: httpx.Response, target: Path) -> None:
    try:
        with target.open("wb") as file:
            for chunk in answer.iter_bytes(1 << 20):
                file.write(chunk)
    except OSError as error:
        raise OutputUnwritable(f"{target.name} cannot be written ({error.strerror}): free the disk") from error


def _seconds(retry_after: str) -> float:
    """Retry-After in seconds; it may be a date, which is not worth reading."""
    return min(60.0, float(retry_after)) if retry_after.isascii() and retry_after.isdigit() else 10.0


def _document(answer: httpx.Response) -> dict[str, Any]:
    """A job's document, or the refusal."""
    _require_success(answer)
    try:
        document: dict[str, Any] = answer.json()
        if "jobID" in document:
            return document
    except (ValueError, TypeError):
        pass
    raise NotReady("the answer is not that of a hyperscene server: check the address")


def _detail(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return f"status {answer.status_code}"


def _require_success(answer: httpx.Response) -> None:
    """Raise what the server refused with, in its own words."""
    if answer.is_success:
        return
    try:
        problem = answer.json()
        error: ServiceError = error_of(problem["code"], problem["detail"])
    except (ValueError, KeyError, TypeError):
        error = NotReady(f"the server answered {answer.status_code} {answer.reason_phrase}: is it a hyperscene server?")
    raise error
