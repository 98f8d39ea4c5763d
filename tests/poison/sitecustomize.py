"""With this folder on PYTHONPATH a worker is killed whenever the network is asked about a pixel that holds POISON, and
so is whoever makes a picture of it or reads its spectrum; SLOW takes its time, and HESITATION
the first time, before the file HESITATED is there. Workers of a cluster are meant where CLUSTER_POISON is set; where it
is `memory`, `engine` or `task`, they fail at everything slow, and where it begins with `without`, they refuse the
bundle whose name follows."""

import os
import signal
import sys
import time
from pathlib import Path

POISON, SLOW, HESITATION, SLOW_S, SLOW_PIXEL_S, SLOW_CALL_S = 77.0, 78.0, 79.0, 6.0, 1.0, 0.05

if "service.jobs.worker" in sys.orig_argv or "CLUSTER_POISON" in os.environ:
    from service.mapping.engines import CpuEngine

    ask = CpuEngine.probabilities

    def die_of_poison(self, cube, centers):
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
        return ask(self, cube, centers)

    CpuEngine.probabilities = die_of_poison

if os.environ.get("CLUSTER_POISON") == "task":
    from service.cluster import roster

    def fail_at_all(question):
        raise RuntimeError("can't start new thread")

    roster.answer_question = fail_at_all

if os.environ.get("CLUSTER_POISON", "").startswith("without "):
    from service.cluster import tasks
    from service.errors import NotReady

    make = tasks.make_engine

    def refuse_some(bundle, *options):
        if bundle.path.stem == os.environ["CLUSTER_POISON"].removeprefix("without "):
            raise NotReady("this engine does not give the bundle's own answers")
        return make(bundle, *options)

    tasks.make_engine = refuse_some

if "service.jobs.views" in sys.orig_argv:
    from service.mapping import pictures

    stretch = pictures.stretched

    def die_of_a_look(cube, valid, low, high):
        if (cube == POISON).any():
            os.kill(os.getpid(), signal.SIGKILL)
        if (cube == SLOW).any():
            time.sleep(SLOW_S)
        return stretch(cube, valid, low, high)

    pictures.stretched = die_of_a_look

if "service.jobs.pixels" in sys.orig_argv:
    from service.mapping import scenes

    read = scenes.ScenePixels.spectrum

    def die_of_a_spectrum(self, row, col):
        values = read(self, row, col)
        if (values == POISON).any():
            os.kill(os.getpid(), signal.SIGKILL)
        if (values == SLOW).any():
            time.sleep(SLOW_PIXEL_S)
        return values

    scenes.ScenePixels.spectrum = die_of_a_spectrum
