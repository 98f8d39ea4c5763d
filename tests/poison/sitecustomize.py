"""With this folder on PYTHONPATH a worker is killed whenever the network is asked about a pixel that holds POISON."""

import os
import signal
import sys

POISON = 77.0

if "service.jobs.worker" in sys.orig_argv:
    from service.mapping.engines import CpuEngine

    ask = CpuEngine.probabilities

    def die_of_poison(self, cube, centers):
        if (cube == POISON).any():
            os.kill(os.getpid(), signal.SIGKILL)
        return ask(self, cube, centers)

    CpuEngine.probabilities = die_of_poison
