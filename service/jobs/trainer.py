"""The process of one training: the only process of the service that imports torch. It may be killed at any moment.

The request is the first line of standard input, whose end ends the process; messages are lines of JSON on standard
output.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from hyperscene.errors import OptionsUnusable, ServiceError, TrainingFailed
from hyperscene.json_text import json_text
from hyperscene.model.bundle import BundleRefused
from hyperscene.model.spectra import BandMismatch
from hyperscene.service.jobs.model_admission import LABELS_MAP, NETWORK_MAP, REPORT
from hyperscene.service.mapping.prefetch import StageClock

NICENESS = 10  # after the workers that map
PR_SET_PDEATHSIG = 1
# The share of a training that is done at the beginning of each stage.
SHARES = {"reading": 0.0, "label propagation": 0.05, "network": 0.3, "export": 0.9, "scoring": 0.95, "maps": 0.97}
TRACEBACK = "error.log"
PRECISION = "precision"  # a file with the precision that the first attempt chose


class Messages(StageClock):
    """Sends progress to the worker; a clock that says which stage begins."""

    def __init__(self) -> None:
        super().__init__()
        self._pipe = os.dup(1)
        os.dup2(2, 1)  # a library that prints must not write into the pipe
        self._epochs_s: list[float] = []

    def send(self, **message: Any) -> None:
        """Send a message."""
        text = f"{json_text(message)}\n".encode()
        while text:
            text = text[os.write(self._pipe, text) :]

    @contextmanager
    def stage(self, name: str, share: float = 1.0) -> Iterator[None]:
        """Say that a stage begins, and count its time."""
        if name in SHARES:
            self.send(stage=name, share=SHARES[name])
        with super().stage(name, share):
            yield

    def epoch(self, done: int, epochs: int, seconds: float) -> None:
        """An epoch is done, and its checkpoint is on disk."""
        self._epochs_s.append(seconds)
        share = SHARES["network"] + (SHARES["export"] - SHARES["network"]) * done / max(1, epochs)
        left_s = sum(self._epochs_s) / len(self._epochs_s) * (epochs - done)
        self.send(share=share, epoch=done, epochs=epochs, left_s=round(left_s, 1))

    def finish(self) -> None:
        """The training is over."""
        self.send(done={name: round(spent_s, 3) for name, spent_s in self.seconds.items()})


def run(request: dict[str, Any], messages: Messages) -> None:
    """Train as requested; bundle, report and pictures are left in the folder."""
    from hyperscene.training.data.datasets import LabelledFiles
    from hyperscene.training.data.sent_labels import pin_drivers
    from hyperscene.training.fit.compute import choose_compute
    from hyperscene.training.fit.failures import explained
    from hyperscene.training.report import draw_maps, training_report
    from hyperscene.training.train import TrainOptions, train

    pin_drivers()
    folder = Path(request["folder"])
    wavelengths = request["wavelengths"]
    files = LabelledFiles(
        Path(request["scene"]),
        Path(request["labels"]),
        class_field=request["class_field"],
        wavelengths=None if wavelengths is None else Path(wavelengths),
        mask=request["mask"],
    )
    with explained("training", folder / TRACEBACK):
        # A resumed training goes on in the precision of the first attempt, even if a new probe preferred another.
        kept = folder / PRECISION
        if not kept.exists():
            _write(kept, choose_compute("auto", request["precision"]).precision)
        options = TrainOptions(files, folder / "bundle.onnx", precision=kept.read_text(), **request["options"])
        if options.checkpoint.exists():
            options = replace(options, resume=True)
        trained = train(
            options,
            lambda report: messages.epoch(report.epoch, report.epochs, report.seconds),
            lambda text: messages.send(note=text),
            messages,
        )
        with messages.stage("maps"):
            maps = draw_maps(trained, folder / NETWORK_MAP, folder / LABELS_MAP)
        report = request["report"] | training_report(trained, messages.seconds) | {"maps": maps}
        _write(folder / REPORT, json_text(report))


def _write(path: Path, text: str) -> None:
    """Write a file that is there whole or not at all."""
    unfinished = path.with_name(path.name + ".part")
    unfinished.write_text(text)
    unfinished.replace(path)


def end_with_parent() -> None:
    """End this process with the worker, even if that is killed."""
    if sys.platform.startswith("linux"):
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    def wait_for_end() -> None:
        while os.read(0, 4096):
            pass
        os._exit(0)

    threading.Thread(target=wait_for_end, name="hyperscene-parent", daemon=True).start()


def main() -> None:
    """Train for the worker that started this process."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            return
        line += byte
    end_with_parent()
    os.nice(NICENESS)
    messages = Messages()
    try:
        request = json.loads(line)
        run(request, messages)
        messages.finish()
    except (BundleRefused, BandMismatch) as error:
        messages.send(code=TrainingFailed.code, detail=str(error))
    except ServiceError as error:
        messages.send(code=error.code, detail=_in_log(_for_http(error), Path(request["folder"]) / TRACEBACK))


def _in_log(text: str, traceback: Path) -> str:
    """The message with the server's log as the place of the traceback, which goes there."""
    with suppress(OSError):
        print(traceback.read_text(), file=sys.stderr, flush=True)
    return text.replace(f"the traceback is in {traceback}", "the server's log has the traceback")


def _for_http(error: ServiceError) -> str:
    """The message in the words of the API: options are fields of the request."""
    text = str(error)
    if isinstance(error, OptionsUnusable):
        return text.replace("--class-field", "class_field").replace("--", "")
    return text.replace("--class-field", "class_field").replace("--classes", "the label file's own names")


if __name__ == "__main__":
    main()
