"""The path of a scene: open, plan, classify the lattice strip by strip, blend, write."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from model.bundle import Bundle, Manifest
from service.errors import OptionsUnusable, OutputUnwritable, StorageFull, unwritten
from service.mapping.ahead import Cancelled, StageClock, Stop, ahead
from service.mapping.blend import BLENDS, Blend, Blender, Directions
from service.mapping.classify import AnsweredBlock, Asking, Block, Crew, LocalClassifier, Report, Run, read_blocks
from service.mapping.engines import Engine
from service.mapping.lattice import Lattice, Plan, Strip, plan_mapping
from service.mapping.rasters import RASTERS, MapWriter, optimise
from service.mapping.records import Tally, make_item, make_summary, write_json, write_preview, write_style
from service.mapping.remote import is_remote
from service.mapping.scenes import Scene, require_unchanged
from service.mapping.strips import PROBABILITY_TYPES, Checkpoint, MappedStrip, ProbabilityType, StoredStrip
from service.mapping.view import PixelSource, Sample, SceneView, unit_warning, view_scene

STRIDES = (1, 2, 4, 8, 16)
# A strip's pixels as float32. Some eight strips are in the pipeline at once, as pixels, directions or copies.
STRIP_BYTES = 64 << 20
TALLEST_STRIP_PX = 128
RESULTS = (*RASTERS, "classes.qml", "preview.png", "summary.json", "item.json")


@dataclass(frozen=True)
class MapOptions:
    """What decides the result, and how it is stored; 0 lets the value be chosen."""

    stride_px: int = 0
    blend: Blend = "angle"
    probability_type: ProbabilityType = "uint8"
    strip_px: int = 0

    def settled(self, manifest: Manifest, cols: int, tallest_px: int = TALLEST_STRIP_PX) -> MapOptions:
        """The same options with everything chosen, or a refusal."""
        # A patch reaches half its side from its centre, which may lie anywhere in its cell; a `token` patch is pinned.
        widest = manifest.patch_px if manifest.head == "token" else manifest.patch_px // 2
        strides = [stride for stride in STRIDES if stride <= widest]
        stride_px = self.stride_px or min(8 if manifest.head == "token" else 4, strides[-1])
        if stride_px not in strides:
            raise OptionsUnusable(
                f"stride must be one of {', '.join(map(str, strides))} for patches of {manifest.patch_px} pixels "
                f"and the head {manifest.head}, not {stride_px}"
            )
        if self.blend not in BLENDS:
            raise OptionsUnusable(f"blend must be one of {', '.join(BLENDS)}, not {self.blend}")
        if self.probability_type not in PROBABILITY_TYPES:
            raise OptionsUnusable(
                f"the probability type must be one of {', '.join(PROBABILITY_TYPES)}, not {self.probability_type}"
            )
        if self.blend == "none" and stride_px != 1:
            raise OptionsUnusable(
                "blend none gives each pixel its own patch and needs stride 1; with a larger stride use linear or angle"
            )
        if self.strip_px < 0:
            raise OptionsUnusable(f"a strip's height must be 1 pixel or more, not {self.strip_px}")
        # A `token` patch has a vote for each of its pixels, so many for every cell of the lattice.
        votes = (manifest.patch_px // stride_px) ** 2 if manifest.head == "token" and self.blend != "none" else 1
        strip_px = self.strip_px or _strip_px(cols * 4 * (manifest.bands + votes * manifest.classes), tallest_px)
        return MapOptions(stride_px, self.blend, self.probability_type, strip_px)


def map_scene(
    scene: Scene,
    bundle: Bundle,
    engine: Engine | Crew,
    output: Path,
    options: MapOptions,
    report: Report | None = None,
    cancelled: threading.Event | None = None,
    checkpoint: Path | None = None,
    item_id: str = "",
    asking: Asking | None = None,
) -> dict[str, Any]:
    """Map a scene into the seven files of RESULTS under `output`; answers the summary.

    With a folder for `checkpoint`, finished strips are kept there, and a later run goes on from them to the same bytes.
    """
    began, clock, cancelled = time.perf_counter(), StageClock(), cancelled or threading.Event()
    manifest = bundle.manifest
    view = view_scene(scene, manifest)
    options = options.settled(manifest, scene.cols)
    plan = plan_scene(scene.rows, scene.cols, manifest, options, engine.batch)
    warnings = [*scene.warnings, *_band_warnings(view, manifest)]
    if not is_remote(scene.path):
        require_own_place(scene.path, output)
    with workplace(output) as folder:
        _require_space(folder, scene, manifest, options, checkpoint)
        tally = Tally(scene, manifest)
        kept = None if checkpoint is None else open_checkpoint(checkpoint, scene, bundle, engine, options)
        mapper = StripMapper(engine, manifest, plan, options.blend, clock, report, cancelled, kept, asking)
        with MapWriter(folder, scene, manifest, options.probability_type) as writer:
            for strip in _strips_in_order(mapper, view, plan.strips, options.probability_type, kept):
                with clock.stage("write"):
                    writer.write(strip)
                    tally.add(strip)
        with clock.stage("read"):
            unusual = unit_warning(_spectra(view, mapper.sample), manifest)
            require_unchanged(scene)
        warnings += [*([unusual] if unusual else []), *tally.warnings()]
        with clock.stage("optimise"):
            for name in RASTERS:
                _until_cancelled(cancelled, optimise, folder, name, engine.callers)
            write_preview(folder / "preview.png", folder / "classes.tif")
        write_style(folder / "classes.qml", manifest)
        summary = make_summary(scene, bundle, engine, tally, warnings, settings=asdict(options))
        summary |= {"seconds": _rounded(clock.seconds, time.perf_counter() - began)}
        write_json(folder / "summary.json", summary)
        write_json(folder / "item.json", make_item(scene, bundle, item_id or output.name))
        move_results(folder, output)
    return summary


def _spectra(view: SceneView, sample: Sample) -> NDArray[np.float32]:
    """What was sampled while the scene was read; rows that came from a checkpoint are read for it."""
    if not sample.is_complete:
        with view.open() as pixels:
            sample.complete(pixels)
    return sample.spectra


def open_checkpoint(
    folder: Path, scene: Scene, bundle: Bundle, engine: Engine | Crew, options: MapOptions
) -> Checkpoint:
    """The strips of an earlier run that would come out the same today; those of any other run are dropped."""
    decisive = (scene.rows, scene.cols, scene.version, asdict(options), bundle.sha256, engine.provider, engine.batch)
    name = hashlib.sha256(json.dumps(decisive).encode()).hexdigest()[:16]
    try:
        for other in folder.glob("*"):
            if other.name != name:
                shutil.rmtree(other, ignore_errors=True)  # a worker that lost the job may still write there
        (folder / name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritten(error) from error
    return Checkpoint(folder / name)


def _strips_in_order(
    mapper: StripMapper,
    view: SceneView,
    strips: Sequence[Strip],
    probability_type: ProbabilityType,
    checkpoint: Checkpoint | None,
) -> Iterator[StoredStrip]:
    """Every strip, from the checkpoint where it holds it, mapped otherwise."""
    place = 0
    while place < len(strips):
        if checkpoint and (kept := checkpoint.load(strips[place].index)):
            yield kept
            place += 1
            continue
        end = place + 1
        while end < len(strips) and not (checkpoint and checkpoint.holds(strips[end].index)):
            end += 1
        for strip, mapped in zip(strips[place:end], mapper.map_view(view, strips[place:end]), strict=True):
            stored = mapped.stored(probability_type)
            if checkpoint:
                try:
                    checkpoint.save(strip.index, stored)
                    is_last = strip.index + 1 == len(strips)
                    checkpoint.drop_answers(strip.groups.stop if is_last else strips[strip.index + 1].groups.start)
                except OSError as error:
                    raise unwritten(error) from error
            yield stored
        place = end


def move_results(folder: Path, output: Path) -> None:
    """Put whole results in place of what may lie there."""
    try:
        for name in RESULTS:
            (folder / name).replace(output / name)
    except OSError as error:
        raise unwritten(error) from error


def plan_scene(rows: int, cols: int, manifest: Manifest, options: MapOptions, batch: int) -> Plan:
    """The plan of a scene's size under settled options."""
    lattice = Lattice(rows, cols, options.stride_px, manifest.patch_px)
    return plan_mapping(lattice, is_voting=options.blend != "none", batch=batch, strip_px=options.strip_px)


class StripMapper:
    """Maps strips of one scene: all of them in order, or any of them anywhere, with the same result."""

    def __init__(
        self,
        engine: Engine | Crew,
        manifest: Manifest,
        plan: Plan,
        blend: Blend,
        clock: StageClock | None = None,
        report: Report | None = None,
        cancelled: threading.Event | None = None,
        checkpoint: Checkpoint | None = None,
        asking: Asking | None = None,
    ) -> None:
        self._engine = engine
        self._manifest = manifest
        self._plan = plan
        # Each of a `token` patch's pixels has a vote of its own: no pixel borrows the centre's, so angles say nothing.
        self._blend: Blend = "linear" if manifest.head == "token" and blend == "angle" else blend
        self._clock = clock or StageClock()
        self._report: Report = report or (lambda done, total: None)
        self._stop = Stop(cancelled)
        self._checkpoint = checkpoint
        self._asking: Asking = asking or (lambda _: None)
        self._absurd_in_row: dict[int, int] = {}
        self.sample = Sample(plan.lattice.rows)

    def map_view(self, view: SceneView, strips: Sequence[Strip]) -> Generator[MappedStrip, None, None]:
        """Consecutive strips of a scene on disk; the file is opened and read by a thread of its own."""

        def blocks() -> Generator[Block, None, None]:
            with view.open(self.sample) as pixels:
                self._absurd_in_row = pixels.absurd_in_row
                yield from self._read(pixels, strips)

        return self._map(blocks(), strips)

    def map_source(self, source: PixelSource, strips: Sequence[Strip]) -> Generator[MappedStrip, None, None]:
        """Consecutive strips of any source."""
        return self._map(self._read(source, strips), strips)

    def _map(self, blocks: Generator[Block, None, None], strips: Sequence[Strip]) -> Generator[MappedStrip, None, None]:
        run = Run(self._manifest, self._plan, self._clock, self._report, self._stop, self._checkpoint, self._asking)
        engine = self._engine
        classifier = engine.classifier(run) if isinstance(engine, Crew) else LocalClassifier(engine, run)
        answered = ahead(classifier.classify(ahead(blocks, self._stop)), self._stop)
        with one_blas_thread():
            mapped = ahead(self._blend_blocks(answered, strips[0].top), self._stop)
            try:
                for strip in mapped:
                    if self._stop.is_cancelled():
                        raise Cancelled
                    yield strip
                if self._stop.is_cancelled():  # before the first strip, or between two: the stages ended in silence
                    raise Cancelled
            finally:
                mapped.close()

    def _read(self, source: PixelSource, strips: Sequence[Strip]) -> Generator[Block, None, None]:
        blocks = read_blocks(source, self._plan, strips)
        while True:
            with self._clock.stage("read"):
                block = next(blocks, None)
            if block is None or self._stop.is_set():
                return
            yield block

    def _blend_blocks(
        self, answered: Generator[AnsweredBlock, None, None], top: int
    ) -> Generator[MappedStrip, None, None]:
        blender = Blender(self._plan, self._blend, self._manifest.classes, top)
        patches: dict[int, int] = {}  # by group
        try:
            for item in answered:
                with self._clock.stage("blend"):
                    strip, pixels = item.block.strip, item.block.pixels
                    spectra = Directions.of(pixels) if self._blend == "angle" else None
                    for answers in item.answers:
                        if self._stop.is_cancelled():
                            raise Cancelled
                        blender.add(answers, spectra)
                        patches[answers.group] = int(answers.is_asked.sum())
                    rows = range(strip.top, strip.bottom)
                    valid = pixels.valid[strip.top - pixels.top : strip.bottom - pixels.top]
                    mapped = MappedStrip(
                        strip.top,
                        blender.take(strip.bottom),
                        valid,
                        # A group counts for the strip it begins in: the same sum wherever a run began.
                        patches=sum(count for group, count in patches.items() if group * self._plan.group_px in rows),
                        absurd_pixels=sum(self._absurd_in_row.pop(row, 0) for row in rows),
                    )
                    patches = {g: count for g, count in patches.items() if g * self._plan.group_px >= strip.bottom}
                yield mapped
        finally:
            answered.close()


_blas_lock = threading.Lock()
_blas_users = 0
_blas_limits: threadpool_limits | None = None


@contextmanager
def one_blas_thread() -> Generator[None, None, None]:
    """One thread for numpy's products while any map is made: more would take the network's cores, and may round
    differently. The limit is the process's, so the first map sets it and the last one lifts it."""
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


def _strip_px(row_bytes: int, tallest_px: int) -> int:
    """Rows of a strip that keep to STRIP_BYTES: 16 and more, but so few that small scenes have strips to overlap."""
    return int(np.clip(STRIP_BYTES // row_bytes // 16 * 16, 16, tallest_px))


def _band_warnings(view: SceneView, manifest: Manifest) -> list[str]:
    if view.match.kind == "by count" and manifest.wavelengths_nm is None:
        return ["bands were matched by their order, since the bundle has no wavelengths"]
    return []


def require_own_place(scene: Path, output: Path) -> None:
    """No result may land on the scene itself, or on a folder; and GDAL writes no name that is not UTF-8."""
    if not str(output).isprintable():
        raise OutputUnwritable(f"{str(output)!r} holds letters that cannot be printed: choose another folder")
    for target in (output / name for name in RESULTS):
        try:
            if target.is_dir():
                raise OutputUnwritable(f"{target} is a folder: remove it, or choose another output folder")
            if target.exists() and target.samefile(scene):
                raise OutputUnwritable(f"{target} is the scene itself and would be overwritten: choose another folder")
        except OSError as error:
            raise _unusable(output, error) from error


def _unusable(output: Path, error: OSError) -> OutputUnwritable:
    return OutputUnwritable(f"{output} cannot be written ({error.strerror}): choose another folder")


@contextmanager
def workplace(output: Path) -> Generator[Path, None, None]:
    """A folder inside `output` that is gone afterwards, whatever happens; results are moved out of it when whole."""
    try:
        was_there = output.exists()
        output.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=output))
    except OSError as error:
        raise _unusable(output, error) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if not was_there:
            with suppress(OSError):  # not empty, or gone
                output.rmdir()


def _require_space(
    folder: Path, scene: Scene, manifest: Manifest, options: MapOptions, checkpoint: Path | None
) -> None:
    """Plain rasters, their compressed copies and the kept strips lie side by side at the end."""
    item_bytes = 1 if options.probability_type == "uint8" else 4
    needed = (2 if checkpoint is None else 3) * scene.rows * scene.cols * (2 + item_bytes * (manifest.classes + 1))
    if checkpoint is not None:
        needed -= sum(file.stat().st_size for file in checkpoint.rglob("*.npz"))
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise StorageFull(
            f"the results may need {needed >> 20} MB and {free >> 20} MB are free: free the disk, choose another "
            "folder, or crop the scene"
        )


def _until_cancelled(cancelled: threading.Event, work: Callable[..., None], *arguments: Any) -> None:
    """Run work that cannot be stopped; when cancelled, leave it behind: its folder is removed under it."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work(*arguments)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="hyperscene-optimise", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.1)
        if cancelled.is_set():
            raise Cancelled
    if failed:
        raise failed[0]


def _rounded(stages: dict[str, float], total: float) -> dict[str, float]:
    return {name: round(seconds, 3) for name, seconds in ({**stages, "total": total}).items()}
