"""The path of a scene: open, plan, classify the lattice strip by strip, blend, write."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperscene.errors import write_error
from hyperscene.model.bundle import Bundle
from hyperscene.service.mapping.applicability import APPLICABILITY_NAME, with_unknown, write_applicability
from hyperscene.service.mapping.band_view import BandView, Sample, band_warnings, unit_warning, view_scene
from hyperscene.service.mapping.classify import BEFORE_STRIPS, RemoteEngine, RunControl
from hyperscene.service.mapping.engines import Engine
from hyperscene.service.mapping.ground import hectares_of, lay_out
from hyperscene.service.mapping.lattice import Plan, Strip
from hyperscene.service.mapping.mask_map import MASK_NAME, write_mask
from hyperscene.service.mapping.metadata import (
    Tally,
    make_item,
    make_summary,
    pixel_hectares,
    write_json,
    write_preview,
    write_style,
)
from hyperscene.service.mapping.options import MapOptions
from hyperscene.service.mapping.output import check_output, move_results, require_space, temporary_output
from hyperscene.service.mapping.prefetch import StageClock, Stop
from hyperscene.service.mapping.rasters import RASTERS, HeldFiles, MapWriter, optimise, plain_name
from hyperscene.service.mapping.remote import is_remote
from hyperscene.service.mapping.scenes import Scene, require_unchanged
from hyperscene.service.mapping.strip_mapper import StripMapper, plan_scene
from hyperscene.service.mapping.strips import Checkpoint, ProbabilityType, StoredStrip
from hyperscene.service.mapping.swaths import open_ground


def map_scene(
    scene: Scene,
    bundle: Bundle,
    engine: Engine | RemoteEngine,
    output: Path,
    options: MapOptions,
    control: RunControl | None = None,
    item_id: str = "",
) -> dict[str, Any]:
    """Map a scene into the seven files of RESULTS in the folder `output`; returns the summary.

    A run that continues from a checkpoint gives the same bytes as one without.
    """
    began, clock, control = time.perf_counter(), StageClock(), control or RunControl()
    manifest = bundle.manifest
    view = view_scene(scene, manifest)
    options = options.settled(manifest, scene.cols)
    plan = plan_scene(scene.rows, scene.cols, manifest, options, engine.batch)
    shown = with_unknown(manifest) if options.unknown else manifest  # the classes of the map
    warnings = [*scene.warnings, *band_warnings(view.match, manifest)]
    if not is_remote(scene.path):
        check_output(scene.path, output)
    with temporary_output(output) as folder:
        require_space(folder, scene, manifest, options, control.checkpoint)
        tally, stop = Tally(scene, shown), Stop(control.cancelled)
        checkpoint = None
        if control.checkpoint is not None:
            checkpoint = open_checkpoint(control.checkpoint, scene, bundle, engine, options)
        mapper = StripMapper(engine, manifest, plan, options.blend, clock, control, checkpoint)
        with MapWriter(folder, scene, manifest, options.probability_type, shown) as writer:
            for strip in _strips_in_order(mapper, view, plan, options.probability_type, checkpoint, control):
                with clock.stage("write"):
                    writer.write(strip)
                    tally.add(strip)
                stop.raise_if_cancelled()
        control.report_in_flight([plan.cells])
        with clock.stage("read"):
            unusual = unit_warning(_spectra(view, mapper.sample, stop), manifest)
            require_unchanged(scene)
        warnings += [*([unusual] if unusual else []), *tally.warnings()]
        rasters = (*RASTERS, *([MASK_NAME] if scene.masks else []))
        known = {}
        if manifest.applicability is not None:
            with clock.stage("applicability"):
                coverage, moved = write_applicability(
                    folder, view, manifest, manifest.applicability, stop, marks_unknown=options.unknown
                )
                if options.unknown:
                    tally.move(moved)
            rasters, known = (*rasters, APPLICABILITY_NAME), coverage.record(manifest.applicability)
        masked = write_mask(folder, scene) if scene.masks else {}
        with clock.stage("lay out"):
            placed = _lay_out(scene, folder, rasters, tally)
        with clock.stage("optimise"):
            for name in rasters:
                _optimise_until_cancelled(stop, folder, name, engine.callers)
            write_preview(folder / "preview.png", folder / "classes.tif")
        write_style(folder / "classes.qml", shown)
        shown_bundle = replace(bundle, manifest=shown)
        summary = make_summary(placed, shown_bundle, engine, tally, warnings, settings=asdict(options))
        summary["scene"] |= {"rows": scene.rows, "cols": scene.cols}
        summary |= {"applicability": known} if known else {}
        summary |= {"masked_pixels": masked} if masked else {}
        summary |= {"seconds": _rounded(clock.seconds, time.perf_counter() - began)}
        write_json(folder / "summary.json", summary)
        write_json(folder / "item.json", make_item(placed, shown_bundle, item_id or output.name))
        move_results(folder, output)
    return summary


def _lay_out(scene: Scene, folder: Path, rasters: Sequence[str], tally: Tally) -> Scene:
    """Bring a map in sensor geometry to the ground; returns the scene with the map's size and georeference."""
    if scene.ground is None:
        return scene
    with open_ground(scene) as (placed, lookup):
        for name in rasters:
            lay_out(plain_name(folder, name), placed, lookup, scene.cols)
    tally.hectares = hectares_of(plain_name(folder, "classes.tif"), placed, len(tally.pixels), pixel_hectares)
    return placed


def _spectra(view: BandView, sample: Sample, stop: Stop) -> NDArray[np.float32]:
    """The sample taken while the scene was read; rows that came from a checkpoint are read now."""
    if not sample.is_complete:
        with view.open(stop=stop) as pixels:
            sample.complete(pixels)
    return sample.spectra


def open_checkpoint(
    folder: Path, scene: Scene, bundle: Bundle, engine: Engine | RemoteEngine, options: MapOptions
) -> Checkpoint:
    """Strips and predictions of an earlier run with the same inputs; those of any other run are deleted."""
    masks = [layer.kind for layer in scene.masks]
    inputs = (
        scene.rows,
        scene.cols,
        scene.version,
        asdict(options),
        bundle.sha256,
        engine.provider,
        engine.batch,
        masks,
    )
    name = hashlib.sha256(json.dumps(inputs).encode()).hexdigest()[:16]
    try:
        for other in folder.glob("*"):
            if other.name != name:
                shutil.rmtree(other, ignore_errors=True)  # a worker that lost the job may still write there
        (folder / name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(error) from error
    return Checkpoint(folder / name)


def _strips_in_order(
    mapper: StripMapper,
    view: BandView,
    plan: Plan,
    probability_type: ProbabilityType,
    checkpoint: Checkpoint | None,
    control: RunControl,
) -> Iterator[StoredStrip]:
    """Every strip: from the checkpoint if it is there, otherwise mapped."""
    start, patches, strips = 0, 0, plan.strips
    while start < len(strips):
        control.report_in_flight([BEFORE_STRIPS - strips[start].index])
        if checkpoint and (saved := checkpoint.load(strips[start].index)):
            yield saved
            patches += saved.patches
            start += 1
            continue
        end = start + 1
        while end < len(strips) and not (checkpoint and checkpoint.holds(strips[end].index)):
            end += 1
        missing = strips[start:end]
        for strip, mapped in zip(missing, mapper.map_view(view, missing, patches), strict=True):
            stored = mapped.stored(probability_type)
            Stop(control.cancelled).raise_if_cancelled()
            if checkpoint:
                _save_strip(checkpoint, strips, strip.index, stored)
            yield stored
            patches += stored.patches
        start = end


def _save_strip(checkpoint: Checkpoint, strips: Sequence[Strip], index: int, stored: StoredStrip) -> None:
    """Save a strip, and delete predictions that no later strip needs."""
    is_last = index + 1 == len(strips)
    try:
        checkpoint.save(index, stored)
        checkpoint.drop_predictions(strips[index].batch_rows.stop if is_last else strips[index + 1].batch_rows.start)
    except OSError as error:
        raise write_error(error) from error


def _optimise_until_cancelled(stop: Stop, folder: Path, name: str, threads: int) -> None:
    """Make a COG in a thread, which loses its input when the run is cancelled: the folder is removed anyway."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            optimise(folder, name, threads)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="hyperscene-optimise", daemon=True)
    with closing(HeldFiles(folder)) as files:
        files.hold()
        thread.start()
        while thread.is_alive():
            thread.join(0.1)
            if stop.is_cancelled():
                files.empty()
            else:
                files.hold()
    stop.raise_if_cancelled()
    if failed:
        raise failed[0]


def _rounded(stages: dict[str, float], total: float) -> dict[str, float]:
    return {name: round(seconds, 3) for name, seconds in ({**stages, "total": total}).items()}
