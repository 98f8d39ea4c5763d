"""Checked samples of finished maps: points, answers of each interpreter, and the reports that follow from them.

All is in the folder of the job's results, one file per interpreter, and goes with it.
"""

from __future__ import annotations

import json
import re
import threading
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from hyperscene.errors import NoSuchResult, RequestUnusable, SampleUnusable, write_error
from hyperscene.json_text import json_text
from hyperscene.service.assessment.accuracy import AccuracyReport, agreement, assess
from hyperscene.service.assessment.accuracy_page import accuracy_page
from hyperscene.service.assessment.comparison import compare_maps
from hyperscene.service.assessment.comparison_page import comparison_page
from hyperscene.service.assessment.drawing import SampleOptions, draw_sample
from hyperscene.service.assessment.finished_map import FinishedMap, open_map
from hyperscene.service.assessment.map_report import make_report, report_page
from hyperscene.service.assessment.samples import CANNOT_TELL, Answers, Design, design_of, make_answers, read_design
from hyperscene.service.jobs.disk import flush
from hyperscene.service.jobs.models import Models, ServedModel
from hyperscene.service.jobs.records import JobRecord
from hyperscene.service.settings import Settings

FOLDER, SAMPLE = "assessment", "sample.design.json"
INTERPRETER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
MAX_INTERPRETERS = 20
MAX_POINTS = 5_000  # of a sample that is checked on the page


class Assessments:
    """Samples and answers on disk; one change at a time."""

    def __init__(self, settings: Settings, models: Models) -> None:
        self._settings = settings
        self._models = models
        self._lock = threading.Lock()

    def draw(self, job: JobRecord, options: SampleOptions) -> dict[str, Any]:
        """Draw a sample; refused once there are answers to another one."""
        finished = self._map(job)
        with self._lock:
            if any(self._answered(job, name) for name in self._interpreters(job)):
                raise RequestUnusable(
                    "the map's sample already has answers: go on with it, or map the scene again for another sample"
                )
            options.check()
            design = design_of(draw_sample(finished, options), finished)
            if len(design.points) > MAX_POINTS:
                raise RequestUnusable(
                    f"the sample would have {len(design.points)} points, and {MAX_POINTS} can be checked here: choose "
                    "a smaller total, or use hyperscene assess sample"
                )
            self._write(job, SAMPLE, design.record())
        return self.sample(job)

    def sample(self, job: JobRecord) -> dict[str, Any]:
        """The points, without their classes, and how far each interpreter is."""
        finished, design = self._map(job), self._design(job)
        places = [finished.lon_lat(row, col) for row, col in design.points[:, :2].tolist()]
        return {
            "points": [
                {"number": number, "row": row, "col": col,
                 "lon": None if place is None else round(place[0], 8),
                 "lat": None if place is None else round(place[1], 8)}
                for number, ((row, col), place) in enumerate(
                    zip(design.points[:, :2].tolist(), places, strict=True), start=1)
            ],
            "classes": [
                {"name": name, "color": color}
                for name, color in zip(finished.class_names, finished.class_colors, strict=True)
            ],
            "cannot_tell": CANNOT_TELL,
            "options": design.options,
            "interpreters": [
                {"name": name, "answered": len(self._answered(job, name))} for name in self._interpreters(job)
            ],
        }  # fmt: skip

    def answers(self, job: JobRecord, interpreter: str) -> dict[str, Any]:
        """An interpreter's answers by point."""
        self._design(job)
        return {"interpreter": interpreter, "answers": self._answered(job, self._name(interpreter))}

    def answer(self, job: JobRecord, interpreter: str, number: int, label: str | None) -> dict[str, Any]:
        """Store an answer durably, or remove it with None; returns the progress."""
        finished, design = self._map(job), self._design(job)
        name = self._name(interpreter)
        if not 1 <= number <= len(design.points):
            raise RequestUnusable(f"the sample has the points 1 to {len(design.points)}, and no {number}")
        if label is not None and label not in (*finished.class_names, CANNOT_TELL):
            raise RequestUnusable(
                f"the map has no class {label[:100]!r}; answers are {', '.join(finished.class_names)}, {CANNOT_TELL}"
            )
        with self._lock:
            if name not in (known := self._interpreters(job)) and len(known) >= MAX_INTERPRETERS:
                raise RequestUnusable(f"the sample has {MAX_INTERPRETERS} interpreters already, which is the limit")
            held = self._answered(job, name)
            held.pop(str(number), None)
            if label is not None:
                held[str(number)] = label
            self._write(job, f"answers-{name}.json", held)
        return {"interpreter": name, "answered": len(held), "points": len(design.points)}

    def accuracy(self, job: JobRecord, interpreter: str | None = None) -> AccuracyReport:
        """The report of an interpreter, or of the one with the most answers; with the agreement of the next one."""
        finished, design = self._map(job), self._design(job)
        ranked = sorted(self._interpreters(job), key=lambda name: -len(self._answered(job, name)))
        chosen = self._name(interpreter) if interpreter else next(iter(ranked), None)
        if chosen is None:
            raise SampleUnusable("the sample has no answers: check its points first")
        first = self._read_answers(job, finished, design, chosen)
        report = assess(finished, first, design)
        for other in ranked:
            if other != chosen and set(self._answered(job, other)) & set(self._answered(job, chosen)):
                second = self._read_answers(job, finished, design, other)
                if (set(second.by_pixel()) & set(first.by_pixel())) and second.classes.any():
                    return replace(report, agreement=agreement(first, second, len(finished.class_names)))
        return report

    def accuracy_report(self, job: JobRecord, interpreter: str | None = None) -> tuple[dict[str, Any], str]:
        """The accuracy report as a document and as a page."""
        found = self.accuracy(job, interpreter)
        return found.record(), accuracy_page(found)

    def report(self, job: JobRecord) -> tuple[dict[str, Any], str]:
        """The report of the map, as a document and as a page; with accuracy as soon as there are answers."""
        finished = self._map(job)
        accuracy = None
        if (self._folder(job) / SAMPLE).is_file() and any(self._answered(job, n) for n in self._interpreters(job)):
            try:
                accuracy = self.accuracy(job).record()
            except SampleUnusable:  # "cannot tell" only, or a single answer
                accuracy = None
        document = make_report(finished, accuracy, self._bundle(job, finished))
        return document, report_page(document, finished)

    def compare(self, first: JobRecord, second: JobRecord) -> tuple[dict[str, Any], str]:
        """Two maps, as a document and as a page."""
        document = compare_maps(self._map(first), self._map(second)).record()
        for which, job in (("first", first), ("second", second)):
            document[which]["name"] = f"{job.scene_name} ({job.model})"
        return document, comparison_page(document)

    def _bundle(self, job: JobRecord, finished: FinishedMap) -> ServedModel | None:
        """The bundle that made the map, if it is still served."""
        served = self._models.of_job(job)
        return served if served is not None and served.sha256 == finished.summary["bundle"]["sha256"] else None

    def _map(self, job: JobRecord) -> FinishedMap:
        return open_map(self._settings.results_folder(job.id))

    def _folder(self, job: JobRecord) -> Path:
        return self._settings.results_folder(job.id) / FOLDER

    def _design(self, job: JobRecord) -> Design:
        path = self._folder(job) / SAMPLE
        if not path.is_file():
            raise NoSuchResult(f"the map of job {job.id} has no sample: draw one with POST /jobs/{job.id}/sample")
        return read_design(path)

    def _interpreters(self, job: JobRecord) -> list[str]:
        found = self._folder(job).glob("answers-*.json")
        return sorted(path.name.removeprefix("answers-").removesuffix(".json") for path in found)

    def _answered(self, job: JobRecord, name: str) -> dict[str, str]:
        try:
            found: dict[str, str] = json.loads((self._folder(job) / f"answers-{name}.json").read_bytes())
        except FileNotFoundError:
            return {}
        return found

    def _name(self, interpreter: str) -> str:
        if not INTERPRETER.fullmatch(interpreter):
            raise RequestUnusable(
                f"an interpreter's name has 1 to 40 letters, digits, - and _, and {interpreter[:100]!r} has not"
            )
        return interpreter

    def _read_answers(self, job: JobRecord, finished: FinishedMap, design: Design, name: str) -> Answers:
        held = self._answered(job, name)
        texts = [held.get(str(number), "") for number in range(1, len(design.points) + 1)]
        return make_answers(name, finished, np.asarray(design.points[:, :2]), texts)

    def _write(self, job: JobRecord, name: str, document: Any) -> None:
        """Write a file that is whole after a power cut: the old content or the new one."""
        folder = self._folder(job)
        unfinished = folder / f".{name}.{threading.get_ident()}"
        try:
            folder.mkdir(exist_ok=True)
            unfinished.write_text(json_text(document), encoding="utf-8")
            flush(unfinished)
            unfinished.replace(folder / name)
            flush(folder)
        except OSError as error:
            raise write_error(error) from error


def sample_options(values: dict[str, Any]) -> SampleOptions:
    """Options of a request, with defaults for those that are absent."""
    return SampleOptions(**{**asdict(SampleOptions()), **values})
