"""The settings of the service; each is an option of `serve`, a HYPERSCENE_ variable and a line of help."""

from __future__ import annotations

import os
import re
import ssl
from importlib.util import find_spec
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any

from pydantic import ByteSize, Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from hyperscene.service.mapping.devices import DEVICES, Precision
from hyperscene.service.mapping.limits import Limits
from hyperscene.service.mapping.remote import check_url_prefix

WEEK_S, CENTURY_S = 7 * 86400, 100 * 365 * 86400
PREVIEWS_FOLDER = "views"  # in a scene's folder

# Its origin stands in the Content-Security-Policy: a plain host, and no other placeholder than the tile's.
BASEMAP = re.compile(r"https?://[A-Za-z0-9.-]+(:\d{1,5})?/([^\s{}\"'<>]|\{[zxy]\})+")
Words = Annotated[tuple[str, ...], NoDecode]
Secrets = Annotated[tuple[SecretStr, ...], NoDecode]


class Settings(BaseSettings):
    """All settings; sizes are given as 20GB, 512MiB or plain bytes."""

    model_config = SettingsConfigDict(env_prefix="HYPERSCENE_", frozen=True, extra="ignore", allow_inf_nan=False)

    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8000, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    data: Path = Field(Path("hyperscene-data"), description="folder for uploads, jobs and results")
    bundles: Path | None = Field(None, description="folder of .onnx bundles to serve (the demo bundle)")
    model: str | None = Field(None, description="default bundle (the first by name)")
    device: str = Field(
        "auto",
        description="comma-separated devices, each with a worker: auto, cpu, openvino, fused, cuda, cuda:1, tensorrt",
    )
    threads: int = Field(0, ge=0, description="number of threads of all CPU workers together (all cores)")
    precision: Precision = Field("auto", description="float32, bfloat16, or auto: bfloat16 where it is faster")
    batch: int = Field(0, ge=0, description="patches in a batch (16, or 256 on a GPU)")
    strip_px: int = Field(0, ge=0, description="height of a strip, the unit of checkpoints, in pixels (by memory)")

    max_upload_bytes: ByteSize = Field(ByteSize(50 * 10**9), gt=0, description="largest upload, in bytes")
    max_unpacked_bytes: ByteSize = Field(ByteSize(500 * 10**9), gt=0, description="largest scene, unpacked, in bytes")
    max_header_bytes: ByteSize = Field(ByteSize(16 * 10**6), gt=0, description="longest ENVI header, in bytes")
    max_pixels: int = Field(1_000_000_000, gt=0, description="largest scene, in pixels")
    max_bands: int = Field(2_000, gt=0, description="largest number of bands of a scene")
    max_waiting: int = Field(100, gt=0, description="largest number of waiting jobs; more are refused")
    max_waiting_per_key: int = Field(
        0, ge=0, description="largest number of waiting jobs of one API key (half of --max-waiting)"
    )
    max_running_s_per_key: float = Field(
        0, ge=0, description="seconds that the jobs of one API key may run within a day; more jobs wait (no limit)"
    )
    max_job_s: float = Field(
        3 * 86400, gt=0, description="longest job by its estimate, in seconds; longer ones are refused"
    )
    max_owner_s: float = Field(
        7 * 86400, gt=0, description="estimate of all waiting and running jobs of an API key together, in seconds"
    )
    max_uploads: int = Field(32, gt=0, description="largest number of uploads at the same time")
    max_uploads_per_key: int = Field(
        0, ge=0, description="largest number of uploads of one API key at the same time (half of --max-uploads)"
    )
    upload_grace_s: float = Field(
        60, gt=0, description="seconds of waiting for an upload's data after which its rate is checked, each time"
    )
    min_upload_bytes_per_s: ByteSize = Field(
        ByteSize(10_000), ge=0, description="least rate of an upload, in bytes per second"
    )
    upload_idle_s: float = Field(60, gt=0, description="longest pause within an upload, in seconds")
    upload_s: float = Field(6 * 3600, gt=0, description="longest upload, in seconds")
    headers_after_s: float = Field(
        5, ge=0, description="seconds until a request that waits for a map gets its response headers; the map follows"
    )
    keep_results_s: float = Field(
        7 * 86400, gt=0, le=CENTURY_S, description="how long jobs and results are kept, in seconds"
    )
    keep_scenes_s: float = Field(
        7 * 86400, gt=0, le=CENTURY_S, description="how long uploaded scenes are kept, in seconds"
    )
    min_free_bytes: ByteSize = Field(
        ByteSize(10**9), ge=0, description="free disk space below which no work is accepted, in bytes"
    )
    lease_s: float = Field(15, ge=2, description="time without a heartbeat until a worker counts as dead, in seconds")
    stall_s: float = Field(900, gt=0, description="time without progress until a worker is ended, in seconds")
    train_workers: int | None = Field(
        None, ge=0, le=16, description="processes that train models (1 where torch is installed, else 0)"
    )
    stop_s: float = Field(8, gt=0, description="longest shutdown, in seconds")

    live_sessions: int = Field(4, gt=0, description="number of label sets whose live maps are drawn at the same time")
    live_memory_bytes: ByteSize = Field(
        ByteSize(2 * 10**9), gt=0, description="memory of the process of a live map, in bytes"
    )
    live_idle_s: float = Field(
        600, gt=0, description="seconds without use until the process of a live map ends; it starts again when needed"
    )

    cluster: str | None = Field(
        None, description="scheduler of the Dask cluster that runs the jobs, tcp://HOST:PORT or tls://HOST:PORT (none)"
    )
    cluster_jobs: int = Field(2, gt=0, description="number of jobs that share the cluster at the same time")
    cluster_memory_bytes: ByteSize = Field(
        ByteSize(10**9), gt=0, description="pixels of one job in flight to the cluster, in bytes"
    )
    cluster_ca: Path | None = Field(None, description="certificate of the cluster's authority, for tls:// (none)")
    cluster_cert: Path | None = Field(None, description="certificate of this service, for tls:// (none)")
    cluster_key: Path | None = Field(None, description="private key of that certificate, for tls:// (none)")

    hrefs: Words = Field(
        (),
        description="URL prefixes (https://, http://, s3://) from which scenes may be read, separated by commas "
        "(none: scenes are uploaded)",
    )

    href_networks: Words = Field(
        (),
        description="private networks, such as 10.0.0.0/8, in which hosts of --hrefs may be, separated by commas "
        "(none, but for addresses in --hrefs)",
    )

    basemap: str | None = Field(
        None,
        description="URL template of map tiles that the page shows below the scene, with {z}, {x} and {y} (none: the "
        "page loads nothing from other hosts)",
    )
    basemap_attribution: str = Field("", max_length=200, description="text about the source of the basemap (none)")

    api_keys: Secrets = Field((), description="API keys, separated by commas (no key is needed)")
    cors_origins: Words = Field((), description="web origins that may read responses, separated by commas (none)")
    public_url: str | None = Field(None, description="URL that links start with (that of the request)")
    trusted_proxies: str = Field(
        "127.0.0.1", description="proxies whose X-Forwarded headers are trusted, comma-separated"
    )
    log_level: str = Field("info", pattern="^(debug|info|warning|error)$", description="debug, info, warning or error")

    @field_validator("api_keys", "cors_origins", "hrefs", "href_networks", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        if isinstance(value, str):
            return tuple(word.strip() for word in value.split(",") if word.strip())
        return value

    @field_validator("api_keys", mode="before")
    @classmethod
    def _holds_keys(cls, value: Any) -> Any:
        if isinstance(value, str) and value.strip() and not value.replace(",", "").strip():
            raise ValueError("holds no key: leave it out, or give a key")
        return value

    @field_validator("train_workers", mode="before")
    @classmethod
    def _may_be_empty(cls, value: Any) -> Any:
        return None if value == "" else value

    @field_validator("hrefs")
    @classmethod
    def _are_url_prefixes(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(check_url_prefix(prefix) for prefix in value)

    @field_validator("href_networks")
    @classmethod
    def _are_networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(str(ip_network(network)) for network in value)

    @field_validator("device")
    @classmethod
    def _is_known(cls, value: str) -> str:
        for device in value.split(","):
            kind, _, number = device.strip().partition(":")
            if kind not in DEVICES or (number and (kind not in ("cuda", "tensorrt") or not number.isdigit())):
                raise ValueError(f"must be some of {', '.join(DEVICES)}, a GPU's number after a colon; not {device}")
        return value

    @field_validator("basemap")
    @classmethod
    def _is_a_template(cls, value: str | None) -> str | None:
        if value and not (BASEMAP.fullmatch(value) and all(value.count(part) == 1 for part in ("{z}", "{x}", "{y}"))):
            raise ValueError(f"must be a URL such as https://tiles.example.org/{{z}}/{{x}}/{{y}}.png, not {value}")
        return value or None

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
        """The device of each worker."""
        return tuple(device.strip() for device in self.device.split(","))

    @property
    def training_processes(self) -> int:
        """The training workers of this server; torch is looked for, not imported."""
        return int(has_torch()) if self.train_workers is None else self.train_workers

    @property
    def waiting_per_key(self) -> int:
        """The largest number of waiting jobs of one owner."""
        return self.share_of_key(self.max_waiting, self.max_waiting_per_key)

    @property
    def uploads_per_key(self) -> int:
        """The largest number of uploads of one owner at the same time."""
        return self.share_of_key(self.max_uploads, self.max_uploads_per_key)

    def share_of_key(self, places: int, chosen: int = 0) -> int:
        """The places that one of several API keys may take: never all of them."""
        if len(self.api_keys) < 2:
            return min(chosen or places, places)
        return max(1, min(chosen or places // 2, places - 1))

    @property
    def basemap_origin(self) -> str:
        """Scheme, host and port of the basemap; empty without one."""
        return "/".join(self.basemap.split("/", 3)[:3]) if self.basemap else ""

    @property
    def limits(self) -> Limits:
        """Limits on a scene."""
        return Limits(self.max_pixels, self.max_bands, self.max_unpacked_bytes, self.max_header_bytes)

    @property
    def database(self) -> Path:
        """The SQLite file."""
        return self.data / "hyperscene.sqlite"

    def heartbeat_file(self, worker: str) -> Path:
        """A worker's heartbeat file; its mtime is the last beat."""
        return self.data / "workers" / worker

    def scene_folder(self, scene_id: str) -> Path:
        """The folder of an uploaded scene."""
        return self.data / "scenes" / scene_id

    def previews_folder(self, scene_id: str) -> Path:
        """The folder of a scene's previews, which are made again if they are missing."""
        return self.scene_folder(scene_id) / PREVIEWS_FOLDER

    def job_folder(self, job_id: str) -> Path:
        """The folder of a job's strips and results."""
        return self.data / "jobs" / job_id

    def results_folder(self, job_id: str) -> Path:
        """The folder of a finished job's results."""
        return self.job_folder(job_id) / "results"

    def model_folder(self, model_id: str) -> Path:
        """The folder of a version of an owner's model."""
        return self.data / "models" / model_id

    def bundle_of(self, model_id: str) -> Path:
        """The bundle of a version of an owner's model."""
        return self.model_folder(model_id) / "bundle.onnx"

    def training_folder(self, job_id: str) -> Path:
        """The folder of a training's checkpoint."""
        return self.job_folder(job_id) / "training"

    def labels_folder(self, job_id: str) -> Path:
        """The folder of the label file of a training."""
        return self.job_folder(job_id) / "labels"

    def strips_folder(self, job_id: str) -> Path:
        """The folder of a job's finished strips."""
        return self.job_folder(job_id) / "strips"


def check_scheduler(address: str | None, files: tuple[Path | None, Path | None, Path | None]) -> None:
    """Refuse an invalid address, and TLS without all of its files."""
    if address is not None and not re.fullmatch(r"(tcp|tls)://[^/\s]+:\d{1,5}", address):
        raise ValueError(f"the scheduler must be tcp://HOST:PORT or tls://HOST:PORT, not {address}")
    if (address or "").startswith("tls:") and None in files:
        raise ValueError("tls:// needs the certificate of an authority, a certificate and its key")
    if (address or "").startswith("tcp:") and any(files):
        raise ValueError("certificates are given, but tcp:// is not encrypted: use tls://")
    ca, cert, key = files
    if ca is not None and cert is not None and key is not None:
        check_certificates(ca, cert, key)


def check_certificates(ca: Path, cert: Path, key: Path) -> None:
    """Refuse files that TLS cannot use, by name: the errors of the ssl module name none."""
    for file in (ca, cert, key):
        try:
            file.open("rb").close()
        except FileNotFoundError:
            raise ValueError(f"there is no file {file}") from None
        except PermissionError:
            raise ValueError(f"user {os.geteuid()} cannot read {file}: change its owner or mode") from None
        except OSError as error:
            raise ValueError(f"cannot read {file}: {error.strerror}") from None

    def no_password() -> str:
        raise ValueError(f"{key} is encrypted: remove its password with openssl pkey")

    try:
        context = ssl.create_default_context(cafile=ca)
    except ssl.SSLError:
        raise ValueError(f"{ca} holds no certificate in PEM format") from None
    try:
        context.load_cert_chain(cert, key, no_password)
    except ssl.SSLError:
        raise ValueError(f"{cert} and {key} are not a certificate and its private key in PEM format") from None


def has_torch() -> bool:
    """Whether torch is installed."""
    try:
        return find_spec("torch") is not None
    except (ImportError, ValueError):
        return False


def child_environment() -> dict[str, str]:
    """The environment of child processes: all variables but the API keys, since they open uploaded files."""
    return {name: value for name, value in os.environ.items() if name.upper() != "HYPERSCENE_API_KEYS"}
