"""All engines predict the same probabilities in any number of threads; missing engines are refused with a reason."""

import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from hyperscene.errors import NotReady, OptionsUnusable
from hyperscene.model.bundle import DEMO_BUNDLE, load_bundle
from hyperscene.service.mapping.engines import make_engine
from hyperscene.service.mapping.fused_engine import kernel_for
from hyperscene.service.mapping.openvino_engine import GELU_END, GELU_P, GELU_Q, OpenVinoEngine
from tests.bundles import write_patch_bundle

needs_kernel = pytest.mark.skipif(
    kernel_for("float32") is None, reason="the fused kernel was not built: it needs a C compiler"
)


@pytest.fixture(scope="module")
def demo():
    return load_bundle(DEMO_BUNDLE)


def question(demo, rows=19, cols=31, count=16, seed=0):
    generator = np.random.default_rng(seed)
    spread = np.array(demo.manifest.band_std) * generator.standard_normal((rows, cols, demo.manifest.bands))
    cube = (np.array(demo.manifest.band_mean) + spread).astype(np.float32)
    return cube, generator.integers(0, (rows, cols), (count, 2))


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", "openvino"])
def test_each_device_predicts_the_probabilities_of_the_bundle(demo, device):
    engine = make_engine(demo, device, threads=2)
    assert engine.device == device
    for seed, count in ((0, 16), (1, 5), (2, 16)):
        cube, centers = question(demo, count=count, seed=seed)
        expected = demo.probabilities(cube, centers)
        np.testing.assert_allclose(engine.probabilities(cube, centers), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("device", ["cpu", "openvino", pytest.param("fused", marks=needs_kernel)])
def test_many_threads_get_the_same_bytes_as_one(demo, device):
    engine = make_engine(demo, device, threads=3)
    requests = [question(demo, seed=seed) for seed in range(3)]
    alone = [engine.probabilities(*inputs) for inputs in requests]
    with ThreadPoolExecutor(3) as pool:
        for found in pool.map(lambda _: [engine.probabilities(*inputs) for inputs in requests], range(3)):
            for probabilities, expected in zip(found, alone, strict=True):
                np.testing.assert_array_equal(probabilities, expected)


def test_squares_are_rewritten_so_that_openvino_runs_attention_as_one_kernel(demo):
    engine = make_engine(demo, "openvino", threads=1)
    assert isinstance(engine, OpenVinoEngine)
    compiled = engine._compile((19, 19, demo.manifest.bands, 16))
    kinds = [node.get_rt_info()["layerType"].astype(str) for node in compiled.get_runtime_model().get_ordered_ops()]
    # Four blocks: a softmax outside the fused kernel would be listed separately.
    assert kinds.count("Softmax") <= 1


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", "openvino"])
def test_threads_are_not_pinned_to_cores(device):
    """Pinned threads of two processes share a core: two workers would be as fast as one."""
    code = """
import os, sys, threading, time
from hyperscene.model.bundle import DEMO_BUNDLE, load_bundle
from hyperscene.service.mapping.engines import make_engine
from tests.service.mapping.test_engines import question
bundle = load_bundle(DEMO_BUNDLE)
engine, everywhere = make_engine(bundle, sys.argv[1], 1), os.sched_getaffinity(0)
cube, centers = question(bundle)
seen, caller = set(), threading.get_native_id()
def look():
    while True:
        seen.add(frozenset(os.sched_getaffinity(caller)))
        time.sleep(0.001)
threading.Thread(target=look, daemon=True).start()
for _ in range(30):
    engine.probabilities(cube, centers)
print(seen == {frozenset(everywhere)})
"""
    done = subprocess.run([sys.executable, "-c", code, device], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


@pytest.fixture
def other(tmp_path):
    """A network that the fused kernel does not run."""
    return load_bundle(write_patch_bundle(tmp_path / "other.onnx"))


def test_auto_uses_openvino_without_a_gpu_where_the_fused_kernel_does_not_suit(other):
    assert make_engine(other).device == "openvino"


@pytest.mark.slow
def test_auto_falls_back_to_onnx_runtime(other, monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert make_engine(other).device == "cpu"
    with pytest.raises(NotReady, match="OpenVINO is not installed"):
        make_engine(other, "openvino")


@pytest.mark.parametrize("device", ["cuda", "tensorrt"])
def test_a_missing_gpu_is_an_error_and_never_replaced(demo, device):
    with pytest.raises(NotReady, match=r"has no .*ExecutionProvider.*hyperscene\[gpu\]"):
        make_engine(demo, device)


@pytest.mark.slow
def test_an_engine_that_fails_the_self_check_is_not_ready(other, monkeypatch):
    monkeypatch.setattr(OpenVinoEngine, "probabilities", lambda self, cube, centers: np.full((len(centers), 3), 1 / 3))
    with pytest.raises(NotReady, match="does not reproduce the bundle's reference output"):
        make_engine(other, "openvino")
    assert make_engine(other).device == "cpu"


def test_invalid_options_are_refused(demo):
    for options in ({"threads": -1}, {"batch": -2}, {"device": "tpu"}):
        with pytest.raises(OptionsUnusable):
            make_engine(demo, **options)


def test_engines_write_nothing_to_the_home_folder(tmp_path):
    code = (
        "from hyperscene.model.bundle import *; from hyperscene.service.mapping.engines import make_engine\n"
        "make_engine(load_bundle(DEMO_BUNDLE), 'openvino')"
    )
    home = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=home, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert not list(tmp_path.iterdir())


def test_the_quotient_of_polynomials_equals_the_normal_distribution():
    x = np.linspace(-GELU_END, GELU_END, 20_001)
    share = 0.5 + x * np.polyval(GELU_P[::-1], x * x) / np.polyval(GELU_Q[::-1], x * x)
    expected = np.array([0.5 * (1 + math.erf(value / math.sqrt(2))) for value in x])
    np.testing.assert_allclose(share, expected, rtol=0, atol=2e-8)
    assert expected[0] < 2e-8  # so that it may be constant beyond
