"""A client of the service: uploads a scene, waits for its job, and downloads the results."""

from __future__ import annotations

import glob
import io
import json
import re
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx

from hyperscene.errors import NotReady, OutputUnwritable, SceneUnreadable, ServiceError, error_from_code, error_text
from hyperscene.service.mapping.options import MapOptions
from hyperscene.service.mapping.output import OPTIONAL_RESULTS, RESULTS, check_output, move_results, temporary_output
from hyperscene.service.mapping.products.containers import ARCHIVE_NAME
from hyperscene.service.mapping.products.finding import list_files
from hyperscene.service.mapping.scene_files import scene_files

POLL_S = 0.3
OUTAGE_S = 120.0  # how long the server may be unreachable once it has accepted the job
CONNECT_S = 10.0
BUSY = (429, 503)
TRANSIENT = (502, 503, 504)  # from a proxy, or from a server that restarts
NOT_FOUND = 404
SUBMIT_S = 1800.0
HDF5_NAME = re.compile(r".+\.(h5|he5|hdf5?|nc4?)", re.IGNORECASE)
PRODUCT_NAME = re.compile(r"(?P<stem>(ENMAP|DESIS).+)-(METADATA\.XML|SPECTRAL_IMAGE.*)", re.IGNORECASE)
SENT_SUFFIXES = (".tif", ".tiff", ".xml", ".hdr")  # of a product's files
MAX_ATTEMPTS = 1000
MAX_BROKEN = 2  # connections that break during the upload

Print = Callable[[str], None]
Report = Callable[[int, int], None]  # done, total


class Client:
    """A connection to a server with an optional API key."""

    def __init__(self, server: str, api_key: str | None = None, print_message: Print = print) -> None:
        headers = [(b"X-API-Key", api_key.encode())] if api_key else []
        try:
            self._http = httpx.Client(base_url=server, headers=headers, timeout=httpx.Timeout(60, connect=CONNECT_S))
        except (httpx.InvalidURL, ValueError) as error:
            raise NotReady(f"{server} is not a valid URL ({error}): use one like http://localhost:8000") from error
        self._server = server
        self._print = print_message

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def map_scene(
        self,
        scene: Path,
        output: Path,
        model: str | None,
        options: MapOptions,
        report: Report,
        report_upload: Report,
        mask: str | None = None,
    ) -> dict[str, Any]:
        """Map a scene on the server; writes the same files as `map_scene` without one and returns the summary."""
        files = files_to_send(scene)
        for file in files:
            check_output(file, output)
        with temporary_output(output) as folder:
            job = self._submit(files, _form(model, options, mask), report_upload)
            try:
                self._wait(job, report)
                for name in RESULTS:
                    self._fetch(job, name, folder / name)
                for name in OPTIONAL_RESULTS:
                    self._fetch(job, name, folder / name, is_optional=True)
            except (KeyboardInterrupt, OutputUnwritable):
                self._dismiss(job)
                raise
            summary: dict[str, Any] = json.loads((folder / "summary.json").read_text("utf-8"))
            move_results(folder, output)
        return summary

    def _submit(self, files: list[Path], form: dict[str, str], report_upload: Report) -> str:
        """Upload the scene and return the job's id. The idempotency key allows to repeat a broken upload."""
        headers = {"Prefer": "respond-async", "Idempotency-Key": uuid4().hex}
        total = sum(file.stat().st_size for file in files)
        # The server writes a large file to disk and inspects it before it responds.
        timeout = httpx.Timeout(SUBMIT_S, connect=CONNECT_S)
        broken = 0
        for _ in range(MAX_ATTEMPTS):
            with _opened(files, total, report_upload) as parts, self._as_not_ready():
                try:
                    response = self._http.post("/classify", files=parts, data=form, headers=headers, timeout=timeout)
                except httpx.TransportError:
                    broken += 1
                    if broken > MAX_BROKEN:
                        raise
                    time.sleep(1)
                    continue
            if response.status_code in BUSY and "retry-after" in response.headers:
                self._print(f"the server is busy ({_detail(response)})")
                time.sleep(_seconds(response.headers["retry-after"]))
                continue
            return str(_document(response)["jobID"])
        raise NotReady(f"{self._server} is still busy: try again later")

    def _wait(self, job: str, report: Report) -> None:
        while True:
            status = _document(self._get(job, f"/jobs/{job}"))
            if status["patches_total"]:
                report(status["patches_done"], status["patches_total"])
            if status["status"] == "successful":
                return
            if status["status"] == "failed":
                raise error_from_code(status["problem"]["code"], status["problem"]["detail"])
            if status["status"] == "dismissed":
                raise NotReady(f"the job {job} was dismissed by another client: send the scene again")
            time.sleep(POLL_S)

    def _get(self, job: str, path: str, target: Path | None = None) -> httpx.Response:
        """A response, written to `target` if given. Retries while the server restarts or the connection is broken."""
        started = connected = time.monotonic()
        while True:
            with self._as_not_ready(job):
                try:
                    with self._http.stream("GET", path) as response:
                        connected = time.monotonic()
                        if target is not None and response.is_success:
                            _write(response, target)
                        else:
                            response.read()
                    if response.status_code not in TRANSIENT or time.monotonic() - started > OUTAGE_S:
                        return response
                except httpx.TransportError:
                    if time.monotonic() - connected > OUTAGE_S:
                        raise
            time.sleep(1)

    def _fetch(self, job: str, name: str, target: Path, *, is_optional: bool = False) -> None:
        response = self._get(job, f"/jobs/{job}/results/{name}", target)
        if not (is_optional and response.status_code == NOT_FOUND):
            _require_success(response)

    def _dismiss(self, job: str) -> None:
        try:
            self._http.delete(f"/jobs/{job}")
        except httpx.HTTPError:
            self._print(f"the job {job} could not be dismissed and continues on {self._server}")

    @contextmanager
    def _as_not_ready(self, job: str | None = None) -> Generator[None, None, None]:
        """Turn connection errors into NotReady."""
        try:
            yield
        except httpx.HTTPError as error:
            remedy = f"the server keeps the job, see {self._server}/jobs/{job}" if job else "check the URL"
            raise NotReady(f"{self._server} cannot be reached ({error_text(error)}): {remedy}") from error


class _CountingFile(io.FileIO):
    """A file that reports the bytes read."""

    def __init__(self, path: Path, advance: Callable[[int], None]) -> None:
        super().__init__(path, "rb")
        self._advance = advance

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(-1 if size is None else size) or b""
        self._advance(len(data))
        return data


@contextmanager
def _opened(files: list[Path], total: int, report: Report) -> Generator[list[tuple[str, Any]], None, None]:
    done = 0

    def advance(amount: int) -> None:
        nonlocal done
        done += amount
        report(done, total)

    opened = [_CountingFile(path, advance) for path in files]
    try:
        yield [("scene", (path.name, file)) for path, file in zip(files, opened, strict=True)]
    finally:
        for file in opened:
            file.close()


def files_to_send(scene: Path) -> list[Path]:
    """A GeoTIFF, an ENVI pair, an archive, or the files of a product in a folder or beside the given one."""
    if scene.is_dir():
        files = list_files(scene)
        image = next((file for file in files if PRODUCT_NAME.fullmatch(file.name) or _is_image(file)), None)
        if image is None:
            raise SceneUnreadable(f"{scene} holds no product that can be sent: give its file, or a zip of it")
        return files_to_send(image)
    if not scene.is_file():
        return scene_files(scene)  # which says so
    if ARCHIVE_NAME.fullmatch(scene.name):
        return [scene]
    if HDF5_NAME.fullmatch(scene.name):
        mask = scene.with_name(re.sub("_(RFL|RAD)_", "_MASK_", scene.name))  # of EMIT
        return [scene, mask] if mask != scene and mask.is_file() else [scene]
    if found := PRODUCT_NAME.fullmatch(scene.name):
        beside = sorted(scene.parent.glob(f"{glob.escape(found['stem'])}-*"))
        return [file for file in beside if file.suffix.lower() in SENT_SUFFIXES and file.is_file()]
    return scene_files(scene)


def _is_image(file: Path) -> bool:
    return HDF5_NAME.fullmatch(file.name) is not None and "_MASK_" not in file.name


def _form(model: str | None, options: MapOptions, mask: str | None) -> dict[str, str]:
    form: dict[str, str] = {"blend": options.blend, "probability_type": options.probability_type}
    if options.stride_px:
        form["stride_px"] = str(options.stride_px)
    if options.unknown:
        form["unknown"] = "yes"
    return form | ({"model": model} if model else {}) | ({"mask": mask} if mask else {})


def _write(response: httpx.Response, target: Path) -> None:
    try:
        with target.open("wb") as file:
            for chunk in response.iter_bytes(1 << 20):
                file.write(chunk)
    except OSError as error:
        raise OutputUnwritable(f"{target.name} cannot be written ({error.strerror}): free the disk") from error


def _seconds(retry_after: str) -> float:
    """Retry-After in seconds; 10 if it is a date."""
    return min(60.0, float(retry_after)) if retry_after.isascii() and retry_after.isdigit() else 10.0


def _document(response: httpx.Response) -> dict[str, Any]:
    """A job's document; raises the error of an error response."""
    _require_success(response)
    try:
        document: dict[str, Any] = response.json()
        if "jobID" in document:
            return document
    except (ValueError, TypeError):
        pass
    raise NotReady("the response is not from a hyperscene server: check the URL")


def _detail(response: httpx.Response) -> str:
    try:
        return str(response.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return f"status {response.status_code}"


def _require_success(response: httpx.Response) -> None:
    """Raise the error of an error response, with the server's message."""
    if response.is_success:
        return
    try:
        problem = response.json()
        error: ServiceError = error_from_code(problem["code"], problem["detail"])
    except (ValueError, KeyError, TypeError):
        error = NotReady(
            f"the server responded with {response.status_code} {response.reason_phrase}: is it a hyperscene server?"
        )
    raise error
