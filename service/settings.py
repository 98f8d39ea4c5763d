"""Every setting of the service: a flag of `serve`, a HYPERSCENE_ variable, and a line of help, from one table."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import ByteSize, Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from service.mapping.engines import DEVICES
from service.mapping.remote import check_beginning
from service.mapping.scenes import Limits

WEEK_S, CENTURY_S = 7 * 86400, 100 * 365 * 86400
VIEWS_FOLDER = "views"  # in a scene's

Words = Annotated[tuple[str, ...], NoDecode]
Secrets = Annotated[tuple[SecretStr, ...], NoDecode]


class Settings(BaseSettings):
    """What an operator may set; sizes read as 20GB, 512MiB or plain bytes."""

    model_config = SettingsConfigDict(env_prefix="HYPERSCENE_", frozen=True, extra="ignore", allow_inf_nan=False)

    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8000, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    data: Path = Field(Path("hyperscene-data"), description="folder for uploads, jobs and results")
    bundles: Path | None = Field(None, description="folder of .onnx bundles to serve (the demo bundle)")
    model: str | None = Field(None, description="bundle for requests that name none (the first by name)")
    device: str = Field(
        "auto",
        description="devices, a worker process each: auto, cpu, openvino, cuda, cuda:1, tensorrt; with commas between",
    )
    threads: int = Field(0, ge=0, description="threads of all workers on processors together, a count (all cores)")
    batch: int = Field(0, ge=0, description="patches a call, a count (16, or 256 on a GPU)")
    strip_px: int = Field(0, ge=0, description="rows of a strip, the unit of checkpoints, in pixels (by memory)")

    max_upload_bytes: ByteSize = Field(ByteSize(50 * 10**9), gt=0, description="largest upload, in bytes")
    max_unpacked_bytes: ByteSize = Field(ByteSize(500 * 10**9), gt=0, description="largest scene, unpacked, in bytes")
    max_header_bytes: ByteSize = Field(ByteSize(16 * 10**6), gt=0, description="longest ENVI header, in bytes")
    max_pixels: int = Field(1_000_000_000, gt=0, description="largest scene, in pixels")
    max_bands: int = Field(2_000, gt=0, description="most bands of a scene, a count")
    max_waiting: int = Field(100, gt=0, description="most jobs that wait, a count; more are told to come back")
    max_uploads: int = Field(32, gt=0, description="most uploads at a time, a count")
    upload_idle_s: float = Field(60, gt=0, description="longest silence within an upload, in seconds")
    upload_s: float = Field(6 * 3600, gt=0, description="longest upload, in seconds")
    headers_after_s: float = Field(
        5, ge=0, description="a caller who waits for a map gets its headers after so many seconds, the map later"
    )
    keep_results_s: float = Field(
        7 * 86400, gt=0, le=CENTURY_S, description="how long jobs and results are kept, in seconds"
    )
    keep_scenes_s: float = Field(
        7 * 86400, gt=0, le=CENTURY_S, description="how long uploaded scenes are kept, in seconds"
    )
    min_free_bytes: ByteSize = Field(
        ByteSize(10**9), ge=0, description="free disk below which no work is taken, in bytes"
    )
    lease_s: float = Field(15, ge=2, description="silence after which a worker counts as dead, in seconds")
    stall_s: float = Field(900, gt=0, description="silence of the network after which a worker is ended, in seconds")
    stop_s: float = Field(8, gt=0, description="longest shutdown, in seconds")

    cluster: str | None = Field(
        None, description="scheduler of a Dask cluster that computes, tcp://HOST:PORT or tls://HOST:PORT (none)"
    )
    cluster_jobs: int = Field(2, gt=0, description="jobs that share the cluster at a time, a count")
    cluster_memory_bytes: ByteSize = Field(
        ByteSize(10**9), gt=0, description="pixels that one job has under way in the cluster, in bytes"
    )
    cluster_ca: Path | None = Field(None, description="certificate of the cluster's authority, for tls:// (none)")
    cluster_cert: Path | None = Field(None, description="certificate to show to the cluster, for tls:// (none)")
    cluster_key: Path | None = Field(None, description="private key of that certificate, for tls:// (none)")

    hrefs: Words = Field(
        (),
        description="places that scenes may be read from, beginnings of https://, http:// or s3:// addresses with "
        "commas between (none: scenes are uploaded)",
    )

    api_keys: Secrets = Field((), description="keys that may use the service, with commas between (everybody may)")
    cors_origins: Words = Field((), description="web origins that may read answers, with commas between (none)")
    public_url: str | None = Field(None, description="address that links begin with (that of the request)")
    trusted_proxies: str = Field("127.0.0.1", description="proxies whose X-Forwarded headers count, with commas")
    log_level: str = Field("info", pattern="^(debug|info|warning|error)$", description="debug, info, warning or error")

    @field_validator("api_keys", "cors_origins", "hrefs", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        if isinstance(value, str):
            return tuple(word.strip() for word in value.split(",") if word.strip())
        return value

    @field_validator("api_keys", mode="before")
    @classmethod
    def _holds_keys(cls, value: Any) -> Any:
        if isinstance(value, str) and value.strip() and not value.replace(",", "").strip():
            raise ValueError("holds no key: a service that was meant to be closed would be open")
        return value

    @field_validator("hrefs")
    @classmethod
    def _are_beginnings(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(check_beginning(beginning) for beginning in value)

    @field_validator("device")
    @classmethod
    def _is_known(cls, value: str) -> str:
        for device in value.split(","):
            kind, _, number = device.strip().partition(":")
            if kind not in DEVICES or (number and (kind not in ("cuda", "tensorrt") or not number.isdigit())):
                raise ValueError(f"must be some of {', '.join(DEVICES)}, a GPU's number after a colon; not {device}")
        return value

    @model_validator(mode="after")
    def _names_a_cluster(self) -> Settings:
        files = (self.cluster_ca, self.cluster_cert, self.cluster_key)
        check_scheduler(self.cluster, files)
        return self

    @field_validator("public_url")
    @classmethod
    def _has_no_slash(cls, value: str | None) -> str | None:
        return value.rstrip("/") if value else None

    @property
    def devices(self) -> tuple[str, ...]:
        """One for each worker."""
        return tuple(device.strip() for device in self.device.split(","))

    @property
    def limits(self) -> Limits:
        """What a scene may ask for."""
        return Limits(self.max_pixels, self.max_bands, self.max_unpacked_bytes, self.max_header_bytes)

    @property
    def database(self) -> Path:
        """The one SQLite file."""
        return self.data / "hyperscene.sqlite"

    def breath_file(self, worker: str) -> Path:
        """The file whose time says when a worker was last alive."""
        return self.data / "workers" / worker

    def scene_folder(self, scene_id: str) -> Path:
        """Where an uploaded scene lies."""
        return self.data / "scenes" / scene_id

    def views_folder(self, scene_id: str) -> Path:
        """Where pictures of a scene lie; they are made anew when they are missing."""
        return self.scene_folder(scene_id) / VIEWS_FOLDER

    def job_folder(self, job_id: str) -> Path:
        """Where a job's strips and results lie."""
        return self.data / "jobs" / job_id

    def results_folder(self, job_id: str) -> Path:
        """Where a finished job's files lie."""
        return self.job_folder(job_id) / "results"

    def strips_folder(self, job_id: str) -> Path:
        """Where a job's finished strips lie."""
        return self.job_folder(job_id) / "strips"


def check_scheduler(address: str | None, files: tuple[Path | None, Path | None, Path | None]) -> None:
    """Refuse an address that is none, and encryption with half of its files."""
    if address is not None and not re.fullmatch(r"(tcp|tls)://[^/\s]+:\d{1,5}", address):
        raise ValueError(f"the scheduler is given as tcp://HOST:PORT or tls://HOST:PORT, not {address}")
    if (address or "").startswith("tls:") and None in files:
        raise ValueError("tls:// needs the certificate of an authority, a certificate and its key")
    if (address or "").startswith("tcp:") and any(files):
        raise ValueError("certificates are given, and tcp:// would not be encrypted: use tls://")
    for file in files:
        if file is not None and not file.is_file():
            raise ValueError(f"there is no file {file}")


def child_environment() -> dict[str, str]:
    """What a child process needs of our environment: everything but the keys, since it opens files from outside."""
    return {name: value for name, value in os.environ.items() if name.upper() != "HYPERSCENE_API_KEYS"}
