"""What `import hyperscene` offers to notebooks and scripts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hyperscene.model.bundle import DEMO_BUNDLE, Bundle, read_bundle
from hyperscene.service.mapping import pipeline, scenes
from hyperscene.service.mapping.band_view import view_scene
from hyperscene.service.mapping.blend import Blend
from hyperscene.service.mapping.classify import RunControl, report_patches
from hyperscene.service.mapping.devices import Device
from hyperscene.service.mapping.engine_health import checking_device
from hyperscene.service.mapping.engines import check_bundle, make_engine
from hyperscene.service.mapping.options import MapOptions
from hyperscene.service.mapping.products.masks import parse_masks
from hyperscene.service.mapping.products.product import ReadOptions
from hyperscene.service.mapping.scenes import Scene
from hyperscene.service.mapping.strip_mapper import StripMapper, plan_scene
from hyperscene.service.mapping.strips import ProbabilityType

if TYPE_CHECKING:
    from hyperscene.training.evaluate import Scored
    from hyperscene.training.train import Trained

Progress = Callable[[int, int], None]  # steps done, of how many


@dataclass(frozen=True)
class MapArrays:
    """A map in memory. Classes count from 1 in the order of `class_names`; 0 is no data."""

    classes: NDArray[np.uint16]  # (rows, cols)
    probabilities: NDArray[np.float32]  # (rows, cols, classes), NaN where there is no data
    confidence: NDArray[np.float32]  # (rows, cols), the largest probability
    class_names: tuple[str, ...]
    crs: Any  # rasterio.crs.CRS, or None
    transform: Any  # affine.Affine, or None


def open_scene(path: str | Path, *, mask: str | None = None, variable: str | None = None) -> Scene:
    """Read a scene's header: size, bands, wavelengths, georeference, warnings.

    `mask` and `variable` are those of `hyperscene classify`.
    """
    return scenes.open_scene(Path(path), options=ReadOptions(parse_masks(mask), variable=variable))


def load_bundle(path: str | Path | None = None) -> Bundle:
    """Load a bundle and verify its reference output; without a path, the demo bundle."""
    bundle = read_bundle(DEMO_BUNDLE if path is None else Path(path))
    check_bundle(bundle, checking_device(bundle))
    return bundle


def map_scene(
    scene: Scene | str | Path,
    bundle: Bundle | str | Path,
    output: str | Path,
    *,
    stride_px: int = 0,
    blend: Blend = "angle",
    probability_type: ProbabilityType = "uint8",
    device: Device = "auto",
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Map a scene into the folder `output` and return its summary; a `stride_px` of 0 is the default.

    Memory does not grow with the scene's height.
    """
    scene, bundle = _scene(scene), _bundle(bundle)
    options = MapOptions(stride_px, blend, probability_type)
    control = None if progress is None else RunControl(report_patches(progress))
    return pipeline.map_scene(scene, bundle, make_engine(bundle, device), Path(output), options, control)


def map_arrays(
    scene: Scene | str | Path,
    bundle: Bundle | str | Path,
    *,
    stride_px: int = 0,
    blend: Blend = "angle",
    device: Device = "auto",
    progress: Progress | None = None,
) -> MapArrays:
    """Map a scene into arrays in memory: 4 bytes for each pixel and class."""
    scene, bundle = _scene(scene), _bundle(bundle)
    manifest, engine = bundle.manifest, make_engine(bundle, device)
    options = MapOptions(stride_px, blend).settled(manifest, scene.cols)
    plan = plan_scene(scene.rows, scene.cols, manifest, options, engine.batch)
    control = None if progress is None else RunControl(report_patches(progress))
    mapper = StripMapper(engine, manifest, plan, options.blend, control=control)
    strips = list(mapper.map_view(view_scene(scene, manifest), plan.strips))
    valid = np.concatenate([strip.valid for strip in strips])
    probabilities = np.concatenate([strip.probabilities for strip in strips])
    probabilities[~valid] = np.nan
    return MapArrays(
        classes=np.concatenate([strip.classes for strip in strips]),
        probabilities=probabilities,
        confidence=np.where(valid, probabilities.max(axis=-1), np.float32(np.nan)),
        class_names=tuple(manifest.class_names),
        crs=scene.crs,
        transform=scene.transform,
    )


def train(  # noqa: PLR0913  # keyword options of a public call
    scene: str | Path,
    labels: str | Path,
    output: str | Path,
    *,
    classes: str | None = None,
    class_field: str | None = None,
    recipe: str = "strong",
    epochs: int | None = None,
    fraction: float | None = None,
    seed: int = 0,
    device: str = "auto",
    precision: str = "auto",
    say: Callable[[str], None] = print,
) -> Trained:
    """Train a bundle from a scene and its labels and write it to `output`; the options are those of `hyperscene train`.

    Without `fraction` it learns from every label, and its accuracy is estimated by cross-validation.
    Needs the extra `train`: `pip install "hyperscene[cpu,train]"`.
    """
    from hyperscene.training import train as training
    from hyperscene.training.data.datasets import LabelledFiles

    options = training.TrainOptions(
        files=LabelledFiles(Path(scene), Path(labels), classes, class_field),
        output=Path(output),
        recipe=recipe,
        epochs=epochs,
        fraction=fraction,
        seed=seed,
        device=device,
        precision=precision,
    )
    return training.train(options, say=say)


def evaluate(
    bundle: Bundle | str | Path,
    scene: str | Path,
    labels: str | Path,
    *,
    classes: str | None = None,
    class_field: str | None = None,
    stride_px: int = 0,
    blend: Blend = "angle",
) -> Scored:
    """Score the map that a user would get on every labelled pixel that the bundle was not trained on."""
    from hyperscene.training.data.datasets import LabelledFiles
    from hyperscene.training.evaluate import score_bundle

    files = LabelledFiles(Path(scene), Path(labels), classes, class_field)
    return score_bundle(_bundle(bundle), files, MapOptions(stride_px, blend))


def _scene(scene: Scene | str | Path) -> Scene:
    return scene if isinstance(scene, Scene) else open_scene(scene)


def _bundle(bundle: Bundle | str | Path) -> Bundle:
    return bundle if isinstance(bundle, Bundle) else load_bundle(bundle)
