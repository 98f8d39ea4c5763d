"""How long a job will take: the patches that its scene may have, at the measured speed of the engines."""

from __future__ import annotations

from dataclasses import dataclass

from hyperscene.errors import SceneTooLarge, format_duration
from hyperscene.model.bundle import read_bundle
from hyperscene.service.jobs.models import ServedModel
from hyperscene.service.jobs.records import SceneRecord
from hyperscene.service.jobs.store import Store
from hyperscene.service.jobs.supervisor import Slot
from hyperscene.service.mapping.engine_health import known_report
from hyperscene.service.mapping.engines import cores
from hyperscene.service.mapping.options import MapOptions, allowed_strides


def count_patches(scene: SceneRecord, stride_px: int) -> int:
    """Patches of a map, at most: cells in absent blocks of the file have none."""
    counted: dict[str, int] | None = scene.document.get("cells_with_data")
    if counted is not None:
        return counted[str(stride_px)]
    rows, cols = int(scene.document["rows"]), int(scene.document["cols"])
    return -(-rows // stride_px) * -(-cols // stride_px)


@dataclass(frozen=True)
class Estimates:
    """Estimates and limits the seconds of jobs."""

    store: Store
    slots: list[Slot]
    max_s: float  # of a job

    def seconds(self, scene: SceneRecord, model: ServedModel, options: MapOptions) -> float | None:
        """A job's estimated seconds, or None if the engine's speed is unknown; refuses a job that takes too long."""
        rate = self._patches_per_s(model)
        if rate is None:
            return None
        patches = count_patches(scene, options.stride_px)
        estimated_s = patches / rate
        if estimated_s > self.max_s:
            raise SceneTooLarge(
                f"mapping {scene.name} at stride_px {options.stride_px} would take about "
                f"{format_duration(estimated_s)} ({patches} patches, {rate:.0f} per second); this server accepts jobs "
                f"of up to {format_duration(self.max_s)}: {self._remedy(scene, model, options, rate)}"
            )
        return round(estimated_s, 1)

    def _remedy(self, scene: SceneRecord, model: ServedModel, options: MapOptions, rate: float) -> str:
        for stride_px in allowed_strides(model.manifest):
            seconds = count_patches(scene, stride_px) / rate
            if stride_px > options.stride_px and seconds <= self.max_s:
                blend = " and the blend angle" if options.blend == "none" else ""
                return f"use stride_px {stride_px}{blend}, which takes about {format_duration(seconds)}, or crop it"
        return "crop it"

    def _patches_per_s(self, model: ServedModel) -> float | None:
        """The speed of the slowest worker that may get the job; if it is unknown, that of the model's last jobs."""
        bundle = read_bundle(model.path)
        threads = {slot.name: slot.threads for slot in self.slots}
        rates = []
        for worker in self.store.workers():
            report = known_report(worker.device, bundle) if worker.state == "ready" else None
            if report is not None and report.patches_per_s:
                rates.append(report.patches_per_s * min(1.0, (threads.get(worker.name) or cores()) / cores()))
        return min(rates, default=None) or self.store.measured_patches_per_s(model.name)
