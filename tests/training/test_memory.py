"""Memory that a training step gives back stays with the process."""

import subprocess
import sys

import pytest

from hyperscene.training.fit.compute import keep_freed_memory

# Pages that the system had to hand out for five steps of the default network, after what is put in front.
COUNT = """
import resource
import torch
from hyperscene.model.architecture import ModelConfig, Transformer
torch.set_num_threads(1)
network, spectra = Transformer(ModelConfig(20, 4)), torch.rand(8, 256, 20)
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def step():
    network.zero_grad()
    network.logits(spectra).sum().backward()
for _ in range(6):
    step()
before = faults()
for _ in range(5):
    step()
print(faults() - before)
"""
FIT = """
from tests.training.test_fit import SCENE, SPLIT, recipe, small
from hyperscene.training.fit.network import fit
fit(SCENE, SPLIT, small(), recipe("paper", epochs=1), 0)
"""


def faults_after(first: str = "") -> int:
    command = [sys.executable, "-c", first + COUNT]
    return int(subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout)


@pytest.mark.slow
def test_steps_find_their_memory_where_others_left_it():
    if not keep_freed_memory():
        pytest.skip("the C library here is not glibc")
    assert faults_after(FIT) < faults_after() / 10
