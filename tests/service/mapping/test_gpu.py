"""The GPU engine, tested with a session that counts calls and fails on purpose."""

from types import SimpleNamespace

import numpy as np
import pytest

from hyperscene.errors import InferenceFailed
from hyperscene.model.bundle import load_bundle
from hyperscene.service.mapping import gpu
from hyperscene.service.mapping.gpu import GpuEngine


class CountingSession:
    """A session whose memory holds `room` patches; it records the shapes of its calls."""

    def __init__(self, room: int, message: str = "CUDA failure 2: out of memory") -> None:
        self.room, self.message = room, message
        self.shapes, self.windows = [], []

    def io_binding(self):
        return Binding()

    def run_with_iobinding(self, binding) -> None:
        centers = binding.inputs["centers"]
        self.shapes.append(centers.shape)
        self.windows.append(binding.inputs["cube"])
        if len(centers) > self.room:
            raise RuntimeError(self.message)
        binding.outputs = [centers.astype(np.float32)]

    def get_providers(self):
        return ["CUDAExecutionProvider"]


class Binding:
    def __init__(self) -> None:
        self.inputs = {}

    def bind_ortvalue_input(self, name, value) -> None:
        self.inputs[name] = value

    def bind_cpu_input(self, name, value) -> None:
        self.inputs[name] = value

    def bind_output(self, name) -> None:
        assert name == "probabilities"

    def copy_outputs_to_cpu(self):
        return self.outputs


def ask(session, count, batch=64):
    transfers = []
    engine = GpuEngine(
        session, lambda array: transfers.append(array) or f"on the device {len(transfers)}", "cuda", batch
    )
    centers = np.arange(2 * count).reshape(count, 2)
    probabilities = engine.probabilities(np.zeros((20, 20, 3), np.float32), centers)
    np.testing.assert_array_equal(probabilities, centers)
    return engine, transfers


def test_libraries_installed_by_pip_are_loaded_before_a_session_is_opened(monkeypatch, bundle, capsys):
    calls = []
    runtime = SimpleNamespace(
        preload_dlls=lambda: calls.append("libraries") or print("no libcudnn"),
        get_available_providers=lambda: ["CUDAExecutionProvider"],
        SessionOptions=SimpleNamespace,
        InferenceSession=lambda *_, **__: calls.append("session") or CountingSession(1),
    )
    monkeypatch.setattr(gpu, "import_onnxruntime", lambda: runtime)
    GpuEngine.open(load_bundle(bundle), "cuda")
    assert calls == ["libraries", "session"]
    assert capsys.readouterr().out == ""  # where documents are printed


def test_a_window_is_copied_once_for_all_its_batches():
    session = CountingSession(1000)
    _, transfers = ask(session, 300)
    assert len(transfers) == 1
    assert len(session.windows) == 5
    assert set(session.windows) == {"on the device 1"}


def test_all_calls_have_one_shape():
    session = CountingSession(1000)
    ask(session, 300)
    assert set(session.shapes) == {(64, 2)}


def test_out_of_memory_halves_the_batch():
    session = CountingSession(20)
    engine, transfers = ask(session, 150)
    assert [shape[0] for shape in session.shapes[:3]] == [64, 32, 16]
    assert set(session.shapes[2:]) == {(16, 2)}
    assert engine.batch == 16
    assert len(transfers) == 1


@pytest.mark.parametrize(
    "message",
    [
        "Failed to allocate memory for requested buffer of size 268435456",
        "CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED",
        "[E] 2: CUDA_ERROR_OUT_OF_MEMORY",
    ],
)
def test_every_message_about_memory_is_recognised(message):
    engine, _ = ask(CountingSession(10, message), 40)
    assert engine.batch == 10


def test_a_memory_too_small_for_one_patch_is_reported():
    with pytest.raises(InferenceFailed, match="too small for one patch"):
        ask(CountingSession(0), 10)


def test_other_errors_do_not_halve_the_batch():
    with pytest.raises(RuntimeError, match="illegal address"):
        ask(CountingSession(0, "CUDA failure 700: an illegal address was met"), 10)
