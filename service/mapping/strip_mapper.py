"""Strips of the map from pixels: read, classify and blend, each stage in its own thread."""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from threadpoolctl import threadpool_limits

from hyperscene.model.bundle import Manifest
from hyperscene.service.mapping.band_view import BandView, PixelSource, Sample
from hyperscene.service.mapping.blend import Blend, Blender, Directions
from hyperscene.service.mapping.classify import (
    LocalClassifier,
    RemoteEngine,
    Run,
    RunControl,
    StripInput,
    StripPredictions,
    read_strip_inputs,
)
from hyperscene.service.mapping.engines import Engine
from hyperscene.service.mapping.lattice import Lattice, Plan, Strip, plan_mapping
from hyperscene.service.mapping.options import MapOptions
from hyperscene.service.mapping.prefetch import StageClock, Stop, prefetch
from hyperscene.service.mapping.strips import Checkpoint, MappedStrip


def plan_scene(rows: int, cols: int, manifest: Manifest, options: MapOptions, batch: int) -> Plan:
    """The plan of a scene of this size; no option is 0 any more."""
    lattice = Lattice(rows, cols, options.stride_px, manifest.patch_px)
    return plan_mapping(lattice, is_voting=options.blend != "none", batch=batch, strip_px=options.strip_px)


class StripMapper:
    """Maps consecutive strips of one scene; the result does not depend on which strips are mapped together."""

    def __init__(
        self,
        engine: Engine | RemoteEngine,
        manifest: Manifest,
        plan: Plan,
        blend: Blend,
        clock: StageClock | None = None,
        control: RunControl | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        self._engine = engine
        self._plan = plan
        # Every pixel of a `token` patch has its own prediction, so the angle to the centre pixel means nothing.
        self._blend: Blend = "linear" if manifest.head == "token" and blend == "angle" else blend
        control = control or RunControl()
        self._clock, self._stop = clock or StageClock(), Stop(control.cancelled)
        self._run = Run(manifest, plan, self._clock, self._stop, control.report, control.report_in_flight, checkpoint)
        self._absurd_in_row: dict[int, int] = {}
        self.sample = Sample(plan.lattice.rows)

    def map_view(
        self, view: BandView, strips: Sequence[Strip], patches_before: int = 0
    ) -> Generator[MappedStrip, None, None]:
        """Strips of a scene on disk, read by a separate thread; the strips above have `patches_before`."""

        def inputs() -> Generator[StripInput, None, None]:
            with view.open(self.sample, self._stop) as pixels:
                self._absurd_in_row = pixels.absurd_in_row
                yield from self._read(pixels, strips)

        return self._map(inputs(), strips, patches_before)

    def map_source(self, source: PixelSource, strips: Sequence[Strip]) -> Generator[MappedStrip, None, None]:
        """Strips of any source."""
        return self._map(self._read(source, strips), strips)

    def _map(
        self, inputs: Generator[StripInput, None, None], strips: Sequence[Strip], patches_before: int = 0
    ) -> Generator[MappedStrip, None, None]:
        engine, run = self._engine, replace(self._run, first_row=strips[0].top, patches_before=patches_before)
        classifier = engine.classifier(run) if isinstance(engine, RemoteEngine) else LocalClassifier(engine, run)
        predictions = prefetch(classifier.classify(prefetch(inputs, self._stop)), self._stop)
        with one_blas_thread():
            mapped = prefetch(self._blend_strips(predictions, strips[0].top), self._stop)
            try:
                for strip in mapped:
                    self._stop.raise_if_cancelled()
                    yield strip
                self._stop.raise_if_cancelled()  # before or between strips: the stages end without an error
            finally:
                mapped.close()

    def _read(self, source: PixelSource, strips: Sequence[Strip]) -> Generator[StripInput, None, None]:
        inputs = read_strip_inputs(source, self._plan, strips)
        while True:
            with self._clock.stage("read"):
                strip_input = next(inputs, None)
            if strip_input is None or self._stop.is_set():
                return
            yield strip_input

    def _blend_strips(
        self, classified: Generator[StripPredictions, None, None], top: int
    ) -> Generator[MappedStrip, None, None]:
        blender = Blender(self._plan, self._blend, self._run.manifest.classes, top, self._stop)
        patches: dict[int, int] = {}  # by the batch row's first pixel row
        try:
            for item in classified:
                with self._clock.stage("blend"):
                    strip, pixels = item.input.strip, item.input.pixels
                    has_votes = any(predictions.row.has_patch.any() for predictions in item.predictions)
                    spectra = Directions.of(pixels, self._stop) if self._blend == "angle" and has_votes else None
                    for predictions in item.predictions:
                        self._stop.raise_if_cancelled()
                        blender.add(predictions, spectra)
                        patches[predictions.row.index * self._plan.batch_row_px] = int(predictions.row.has_patch.sum())
                    rows = range(strip.top, strip.bottom)
                    mapped = MappedStrip(
                        strip.top,
                        blender.take(strip.bottom),
                        pixels.valid[strip.top - pixels.top : strip.bottom - pixels.top],
                        # A batch row counts in the strip it starts in: the sum does not depend on where a run started.
                        patches=sum(count for row, count in patches.items() if row in rows),
                        absurd_pixels=sum(self._absurd_in_row.pop(row, 0) for row in rows),
                    )
                    patches = {row: count for row, count in patches.items() if row >= strip.bottom}
                yield mapped
        finally:
            classified.close()


_blas_lock = threading.Lock()
_blas_users = 0
_blas_limits: threadpool_limits | None = None


@contextmanager
def one_blas_thread() -> Generator[None, None, None]:
    """Run numpy's matrix products on one thread while any map is made.

    More threads would take the network's cores, and may round differently. The limit applies to the whole process:
    the first map sets it, the last one removes it.
    """
    global _blas_users, _blas_limits
    with _blas_lock:
        if _blas_users == 0:
            _blas_limits = threadpool_limits(1, user_api="blas")
        _blas_users += 1
    try:
        yield
    finally:
        with _blas_lock:
            _blas_users -= 1
            if _blas_users == 0 and _blas_limits is not None:
                _blas_limits.restore_original_limits()
