"""The models that are served: the operator's bundles, checked at start, and those that owners trained or uploaded."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hyperscene.errors import NoSuchModel, OptionsUnusable
from hyperscene.lru import LruCache
from hyperscene.model.bundle import DEMO_BUNDLE, BundleRefused, Manifest
from hyperscene.service.jobs.model_store import ModelStore
from hyperscene.service.jobs.records import JobRecord, ModelRecord
from hyperscene.service.settings import Settings

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
VERSIONED = re.compile(r"(.{1,100}?)@([0-9]{1,9})")  # a version of a model in a request
KEPT_MANIFESTS = 64


@dataclass(frozen=True)
class ServedModel:
    """A bundle that passed its check."""

    name: str  # the operator's: the file name without its suffix, used in requests
    path: Path
    manifest: Manifest
    sha256: str
    record: ModelRecord | None = None  # of an owner's model

    @property
    def version(self) -> int:
        return 1 if self.record is None else self.record.version


class OwnedModels:
    """The models of owners; the latest manifests stay parsed."""

    def __init__(self, settings: Settings, store: ModelStore) -> None:
        self._settings = settings
        self._store = store
        self._manifests: LruCache[str, Manifest] = LruCache(KEPT_MANIFESTS)
        self._lock = threading.Lock()

    def find(self, owner: str, name: str, version: int | None = None) -> ServedModel | None:
        """A version of an owner's model, or the latest one."""
        record = self._store.model(owner, name, version)
        return None if record is None else self._served(record)

    def versions(self, owner: str, name: str | None = None) -> list[ServedModel]:
        """Every version of an owner's models, or of one of them, the latest first."""
        return [self._served(record) for record in self._store.models(owner, name)]

    def _served(self, record: ModelRecord) -> ServedModel:
        with self._lock:
            manifest = self._manifests.get_or_make(record.id, lambda: Manifest.model_validate(record.manifest))
        return ServedModel(record.name, self._settings.bundle_of(record.id), manifest, record.sha256, record)


@dataclass(frozen=True)
class Models:
    """The operator's models, the default, and the models of owners. An owner's model hides the operator's."""

    by_name: dict[str, ServedModel]
    default: ServedModel
    owned: OwnedModels | None = field(default=None, compare=False)

    def find(self, name: str | None, owner: str = "") -> ServedModel:
        """The requested model, `name` or `name@version`, or the default."""
        if not name:
            return self.default
        versioned = VERSIONED.fullmatch(name)
        wanted, number = (versioned[1], int(versioned[2])) if versioned else (name, None)
        found = self.owned.find(owner, wanted, number) if self.owned is not None else None
        if found is None and wanted in self.by_name and number in (None, 1):
            found = self.by_name[wanted]
        if found is None:
            known = ", ".join(model.name for model in self.visible(owner))
            raise NoSuchModel(f"there is no model {name[:110]!r}; this server has {known}")
        return found

    def versions(self, name: str, owner: str) -> list[ServedModel]:
        """Every version of a model, the latest first; raises if there is none."""
        found = self.owned.versions(owner, name) if self.owned is not None else []
        return found or [self.find(name, owner)]

    def visible(self, owner: str) -> list[ServedModel]:
        """The models that an owner may use, each in its latest version: the operator's, then their own."""
        latest: dict[str, ServedModel] = {}
        for model in [] if self.owned is None else self.owned.versions(owner):
            latest.setdefault(model.name, model)
        return [*(model for name, model in self.by_name.items() if name not in latest), *latest.values()]

    def of_job(self, job: JobRecord) -> ServedModel | None:
        """The model that a map uses; None if it is no longer served."""
        if job.model_version is None:
            return self.by_name.get(job.model)
        return None if self.owned is None else self.owned.find(job.owner, job.model, job.model_version)


def find_bundles(folder: Path | None) -> list[Path]:
    """The bundles of a folder; the demo bundle if none is given."""
    if folder is None:
        return [DEMO_BUNDLE]
    paths = sorted(folder.glob("*.onnx")) if folder.is_dir() else []
    if not paths:
        raise OptionsUnusable(f"there is no .onnx bundle in {folder}: put one there, or leave --bundles out")
    for path in paths:
        if not NAME.fullmatch(path.stem):
            raise OptionsUnusable(f"{path.name} is not a valid model name: use letters, digits, '.', '_' and '-' only")
    return paths


def load_models(folder: Path | None, default: str | None, inspect: Callable[[Path], tuple[Manifest, str]]) -> Models:
    """Inspect every bundle; one that fails stops the server."""
    by_name = {}
    for path in find_bundles(folder):
        manifest, sha256 = inspect(path)
        by_name[path.stem] = ServedModel(path.stem, path, manifest, sha256)
    if default is not None and default not in by_name:
        raise BundleRefused(f"the model {default} is not among the bundles: {', '.join(by_name)}")
    return Models(by_name, by_name[default] if default else next(iter(by_name.values())))
