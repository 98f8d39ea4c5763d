"""Models that owners upload, and their removal; a new version is ready for mapping at once."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

from hyperscene.errors import ModelProtected, ModelUnusable, NoSuchModel, RequestUnusable, SceneUnreadable
from hyperscene.model.bundle import BundleRefused
from hyperscene.service.jobs.adoption import write_record
from hyperscene.service.jobs.disk import RECORD, drop_model, flush, flush_folder
from hyperscene.service.jobs.inspector import Inspector
from hyperscene.service.jobs.models import NAME, Models, ServedModel
from hyperscene.service.jobs.received_files import ReceivedFile, clean_name
from hyperscene.service.jobs.records import ModelRecord, new_id
from hyperscene.service.jobs.store import Store
from hyperscene.service.settings import Settings

MAX_BUNDLE_BYTES = 256 << 20
BUNDLE, REPORT, NETWORK_MAP, LABELS_MAP = "bundle.onnx", "report.json", "network.png", "propagation.png"
MODEL_FILES = (BUNDLE, REPORT, NETWORK_MAP, LABELS_MAP)  # of a version; an uploaded one has the first only


class ModelAdmission:
    """Adds and removes the models of owners."""

    def __init__(self, settings: Settings, store: Store, models: Models, inspector: Inspector) -> None:
        self._settings = settings
        self._store = store
        self._models = models
        self._inspector = inspector

    def require_name(self, name: str) -> None:
        """Refuse a name that is not one, or that is the operator's."""
        if not NAME.fullmatch(name):
            raise RequestUnusable(
                f"{name[:100]!r} is not a valid model name: use up to 100 letters, digits, '.', '_' and '-', and begin "
                "with a letter or digit"
            )
        if name in self._models.by_name:
            raise ModelProtected(f"the model {name} belongs to this server's operator: choose another name")

    def upload(self, folder: Path, file: ReceivedFile, name: str, owner: str) -> ServedModel:
        """Check a received bundle in the sandbox, and add it as the next version of a model."""
        bundle = folder / BUNDLE
        if file.size_bytes > MAX_BUNDLE_BYTES:
            raise ModelUnusable(f"the bundle has {file.size_bytes} bytes; at most {MAX_BUNDLE_BYTES} are accepted")
        if file.size_bytes == 0:
            raise ModelUnusable("the body is empty: send the .onnx file that hyperscene train wrote")
        file.path.rename(bundle)
        try:
            manifest, sha256 = self._inspector.inspect_upload(bundle)
        except (BundleRefused, SceneUnreadable) as error:
            raise ModelUnusable(str(error).replace(BUNDLE, clean_name(file.name))) from error
        flush_folder(folder)
        model = ModelRecord(
            id=new_id(),
            owner=owner,
            name=name,
            version=0,  # the store numbers it
            created=time.time(),
            size_bytes=bundle.stat().st_size,
            sha256=sha256,
            manifest=manifest.model_dump(mode="json"),
        )
        added = self._store.add_model(model, lambda numbered: publish_model(self._settings, folder, numbered))
        return ServedModel(name, self._settings.bundle_of(added.id), manifest, sha256, added)

    def remove(self, name: str, owner: str, version: int | None = None) -> None:
        """Remove a version of an owner's model, or all of them."""
        owned = self._models.owned
        assert owned is not None
        found = [model for model in owned.versions(owner, name) if version in (None, model.version)]
        if not found and name in self._models.by_name:
            raise ModelProtected(f"the model {name} belongs to this server's operator, who alone can remove it")
        if not found:
            which = f"version {version} of {name[:100]!r}" if version else repr(name[:100])
            raise NoSuchModel(f"there is no model {which} of yours: GET /models lists them")
        for model in found:
            assert model.record is not None
            drop_model(self._settings, self._store, model.record)


def publish_model(settings: Settings, source: Path, model: ModelRecord) -> None:
    """Give the files of a model their place, flushed to disk; a second attempt replaces the first."""
    target = settings.model_folder(model.id)
    target.mkdir(parents=True, exist_ok=True)
    for name in MODEL_FILES:
        if (source / name).exists():
            _link(source / name, target / name)
    write_record(target, model)
    for path in (target / RECORD, target, target.parent):
        with suppress(FileNotFoundError):  # the record is written if there is room for it
            flush(path)


def _link(source: Path, target: Path) -> None:
    """A second name for a file, or a copy where the file system has no such names."""
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
        flush(target)
