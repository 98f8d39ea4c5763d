"""The models that are served: bundles by name, each validated and checked at start."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hyperscene.errors import NoSuchModel, OptionsUnusable
from hyperscene.model.bundle import DEMO_BUNDLE, BundleRefused, Manifest

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True)
class ServedModel:
    """A bundle that passed its check."""

    name: str  # the file name without its suffix, used in requests
    path: Path
    manifest: Manifest
    sha256: str


@dataclass(frozen=True)
class Models:
    """All served models, and the default."""

    by_name: dict[str, ServedModel]
    default: ServedModel

    def find(self, name: str | None) -> ServedModel:
        """The requested model, or the default."""
        if not name:
            return self.default
        if name not in self.by_name:
            raise NoSuchModel(f"there is no model {name[:100]!r}; this server has {', '.join(self.by_name)}")
        return self.by_name[name]


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
