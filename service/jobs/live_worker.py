"""The process of a live session: holds a scene's features and the model of one label set, and draws what is on screen.

A request is a line of JSON; the response is a line of JSON, followed by as many bytes as its field `bytes` says.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperscene.errors import LabelsUnusable, ServiceError
from hyperscene.service.jobs.label_sets import LabelSet, read_label_file
from hyperscene.service.jobs.live_features import LiveFeatures
from hyperscene.service.jobs.live_model import LiveModel, choose_view
from hyperscene.service.mapping.png import png_by_table, png_of_colors
from hyperscene.service.mapping.rasters import rgb
from hyperscene.service.mapping.strips import BYTE_NODATA, BYTE_STEPS
from hyperscene.service.mapping.tiles import ramp_table

TURN_S = 0.08  # of the estimate, before a request for a picture may come in between


class LiveWorker:
    """Answers the requests of one session."""

    def __init__(self, features: Path, labels: Path) -> None:
        self._features = LiveFeatures.open(features)
        self._path = labels
        self._labels: tuple[tuple[int, int] | None, LabelSet] = (
            None,
            LabelSet(self._features.rows, self._features.cols),
        )
        self._model = LiveModel(self._features)

    def answer(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """The response to a request, and its picture."""
        view_of: dict[str, Any] = request.get("view", {})
        if request["do"] == "picture":
            view = choose_view(self._features, tuple(view_of["window"]), view_of["most_pixels"])
            return {"window": view.in_scene}, png_of_colors(self._model.picture(view))
        labels = self._read_labels()
        self._model.fit(labels)
        if not self._model.is_fitted:
            raise LabelsUnusable("a live map needs labels of at least two classes: mark some pixels of each")
        if request["do"] == "classify":
            view = choose_view(self._features, tuple(view_of["window"]), view_of["most_pixels"])
            values, confidence = self._model.classify(view)
            png = _picture(values, confidence, view_of["layer"], labels)
            return {"window": view.in_scene, "etag": labels.etag}, png
        if request["do"] == "suggest":
            return {"etag": labels.etag, "places": self._model.suggest(request["count"])}, b""
        return self._estimate(labels), b""

    def _read_labels(self) -> LabelSet:
        """The labels on disk, parsed once for each version of the file."""
        shape = (self._features.rows, self._features.cols)
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return LabelSet(*shape)
        version = found.st_mtime_ns, found.st_ino
        if self._labels[0] != version:
            self._labels = version, read_label_file(self._path, shape)
        return self._labels[1]

    def _estimate(self, labels: LabelSet) -> dict[str, Any]:
        ends = time.monotonic() + TURN_S
        found = self._model.estimate(lambda: time.monotonic() > ends)
        if found is None:
            return {"etag": labels.etag, "is_done": False}
        names = {each.value: each.name for each in labels.classes}
        listed = [names[value] for value in self._model.classes]
        estimate = found["estimate"]
        mistakes = [
            {
                "row": each["row"],
                "col": each["col"],
                "label": listed[each["labelled"]],
                "predicted": listed[each["predicted"]],
                "probability": round(float(each["probability"]), 3),
            }
            for each in found["mistakes"]
        ]
        shown = None if estimate is None else estimate.record(listed)
        return {"etag": labels.etag, "is_done": True, "classes": listed, "estimate": shown, "mistakes": mistakes}


def _picture(values: NDArray[np.uint8], confidence: NDArray[np.uint8], layer: str, labels: LabelSet) -> bytes:
    """Colours of the classes, the ramp of the confidence, or both as numbers: class in red, confidence in green."""
    if layer == "values":
        return png_of_colors(np.dstack([values, confidence, np.zeros_like(values)]))
    if layer == "confidence":
        steps = np.rint(confidence.astype(np.float32) / 255 * BYTE_STEPS).astype(np.uint8)
        return png_by_table(np.where(values > 0, steps, BYTE_NODATA).astype(np.uint8), ramp_table())
    table = np.zeros((256, 4), np.uint8)
    for each in labels.classes:
        table[each.value] = (*rgb(each.color), 255)
    return png_by_table(values, table)


def main() -> None:
    """Serve one session until the server closes the pipe."""
    memory_bytes, features, labels = int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))  # the mapped features do not count
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    responses = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a library that prints must not write into the pipe
    worker = LiveWorker(features, labels)
    for line in sys.stdin.buffer:
        content = b""
        try:
            response, content = worker.answer(json.loads(line))
        except ServiceError as error:
            response = {"code": error.code, "detail": str(error)}
        response["bytes"] = len(content)
        responses.write(json.dumps(response).encode() + b"\n" + content)
        responses.flush()


if __name__ == "__main__":
    main()
