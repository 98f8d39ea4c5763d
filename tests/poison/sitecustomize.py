"""Faults on demand, for processes with this folder on PYTHONPATH.

A process kills itself when it classifies, draws or reads a pixel of value POISON. Pixels of value SLOW take time, and
those of value HESITATION the first time only, until the file named by HESITATED exists. Cluster workers are affected if
CLUSTER_POISON is set: with `memory`, `engine` or `task` they fail at slow pixels, with `without NAME` they refuse the
bundle NAME. With CRASH_AFTER_CLAIM=FILE a worker kills itself right after it claimed a job, as often as the number in
that file says; with CRASH_AT_OPENING whenever it opens a scene.
With NO_TORCH, torch is not installed.
"""

import os
import signal
import sys
import time
from pathlib import Path

POISON, SLOW, HESITATION, SLOW_S, SLOW_PIXEL_S, SLOW_CALL_S = 77.0, 78.0, 79.0, 6.0, 1.0, 0.05

if "hyperscene.service.jobs.worker" in sys.orig_argv or "CLUSTER_POISON" in os.environ:
    from hyperscene.service.mapping.engines import CpuEngine

    probabilities = CpuEngine.probabilities

    def crash_on_poison(self, cube, centers):
        if (cube == POISON).any():
            os.kill(os.getpid(), signal.SIGKILL)
        if (cube == HESITATION).any() and not Path(os.environ["HESITATED"]).exists():
            Path(os.environ["HESITATED"]).touch()
            time.sleep(SLOW_S)
        if (cube == SLOW).any() and "CLUSTER_POISON" in os.environ:
            if os.environ["CLUSTER_POISON"] == "memory":
                raise MemoryError
            if os.environ["CLUSTER_POISON"] == "engine":
                raise RuntimeError("the GPU has fallen off the bus")
            time.sleep(SLOW_CALL_S)
        return probabilities(self, cube, centers)

    CpuEngine.probabilities = crash_on_poison

if "NO_TORCH" in os.environ:

    class NoTorch:
        """An import hook under which torch is not installed."""

        @staticmethod
        def find_spec(name, path=None, target=None):
            if name.partition(".")[0] == "torch":
                raise ModuleNotFoundError("No module named 'torch'", name="torch")

    sys.meta_path.insert(0, NoTorch())

if "CRASH_AFTER_CLAIM" in os.environ:
    from hyperscene.service.jobs.store import Store

    claim = Store.claim

    def crash_after_claim(self, *arguments):
        job, file = claim(self, *arguments), Path(os.environ["CRASH_AFTER_CLAIM"])
        left = int(file.read_text())
        if job is not None and left:
            file.write_text(str(left - 1))
            os.kill(os.getpid(), signal.SIGKILL)
        return job

    Store.claim = crash_after_claim

if "CRASH_AT_OPENING" in os.environ and "hyperscene.service.jobs.worker" in sys.orig_argv:
    from hyperscene.service.mapping import scenes as opened

    opened.open_scene = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)

if os.environ.get("CLUSTER_POISON") == "task":
    from hyperscene.service.cluster import worker_pool

    def fail(request):
        raise RuntimeError("can't start new thread")

    worker_pool.predict_strip = fail

if os.environ.get("CLUSTER_POISON", "").startswith("without "):
    from hyperscene.errors import NotReady
    from hyperscene.service.cluster import tasks

    choose = tasks.choose_engine

    def refuse_one(bundle, *options):
        if bundle.path.stem == os.environ["CLUSTER_POISON"].removeprefix("without "):
            raise NotReady("this engine does not reproduce the bundle's reference output")
        return choose(bundle, *options)

    tasks.choose_engine = refuse_one

if "hyperscene.service.jobs.previews" in sys.orig_argv:
    from hyperscene.service.mapping import pictures

    stretch = pictures.stretched

    def crash_on_poisoned_picture(cube, valid, low, high):
        if (cube == POISON).any():
            os.kill(os.getpid(), signal.SIGSEGV)
        if (cube == SLOW).any():
            time.sleep(SLOW_S)
        return stretch(cube, valid, low, high)

    pictures.stretched = crash_on_poisoned_picture

if "hyperscene.service.jobs.pixels" in sys.orig_argv:
    from hyperscene.service.mapping import scenes

    read = scenes.SceneReader.spectrum

    def crash_on_poisoned_spectrum(self, row, col):
        values = read(self, row, col)
        if (values == POISON).any():
            os.kill(os.getpid(), signal.SIGSEGV)
        if (values == SLOW).any():
            time.sleep(SLOW_PIXEL_S)
        return values

    scenes.SceneReader.spectrum = crash_on_poisoned_spectrum
