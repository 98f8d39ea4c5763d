"""hyperscene maps whole hyperspectral scenes.

    import hyperscene as hs

    scene = hs.open_scene("scene.tif")
    bundle = hs.train("scene.tif", "labels.gpkg", "mine.onnx").bundle
    summary = hs.map_scene(scene, bundle, "map")

Nothing heavy is imported before it is needed: torch by `train` only, an engine by the first map.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hyperscene.model.processor import cap_instruction_set

if TYPE_CHECKING:
    from hyperscene.errors import ServiceError
    from hyperscene.model.bundle import Bundle, BundleRefused
    from hyperscene.python_api import MapArrays, evaluate, load_bundle, map_arrays, map_scene, open_scene, train
    from hyperscene.service.mapping.scenes import Scene

__all__ = [
    "Bundle", "BundleRefused", "MapArrays", "Scene", "ServiceError",
    "evaluate", "load_bundle", "map_arrays", "map_scene", "open_scene", "train",
]  # fmt: skip

HOMES = {
    "ServiceError": "hyperscene.errors",
    "Bundle": "hyperscene.model.bundle",
    "BundleRefused": "hyperscene.model.bundle",
    "Scene": "hyperscene.service.mapping.scenes",
}

cap_instruction_set()  # before torch or OpenVINO can be loaded


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(HOMES.get(name, "hyperscene.python_api")), name)


def __dir__() -> list[str]:
    return __all__
