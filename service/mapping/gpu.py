"""ONNX Runtime on a GPU: windows are copied once, shapes stay constant, and running out of memory halves the batch."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperscene.errors import InferenceFailed, NotReady
from hyperscene.model.bundle import Bundle, import_onnxruntime

GPU_BATCH = 256
PROVIDERS = {"cuda": "CUDAExecutionProvider", "tensorrt": "TensorrtExecutionProvider"}
# Messages of CUDA's allocator, cuBLAS and TensorRT when memory runs out; there is no error class for it.
OUT_OF_MEMORY = ("out of memory", "failed to allocate memory", "alloc_failed", "cuda_error_out_of_memory")


def gpu_providers() -> list[str]:
    """The providers that the installed ONNX Runtime was built with."""
    return list(import_onnxruntime().get_available_providers())


@dataclass
class GpuEngine:
    """A session on a GPU, for one caller at a time.

    `bind` copies an array to the device. It and `session` are arguments, so that tests need no GPU.
    """

    session: Any
    bind: Callable[[NDArray[Any]], Any]
    device: str
    batch: int
    callers: int = 2  # while one waits for the device, the other prepares its window
    _device_is_free: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def open(cls, bundle: Bundle, device: str, batch: int = 0) -> GpuEngine:
        """A session on the device; raises NotReady with the reason."""
        onnxruntime = import_onnxruntime()
        _load_libraries(onnxruntime)
        wanted = PROVIDERS[device]
        if wanted not in gpu_providers():
            raise NotReady(
                f"this ONNX Runtime has no {wanted}, only {', '.join(gpu_providers())}: pip install 'hyperscene[gpu]' "
                "instead of [cpu], or use the device auto"
            )
        # CUDA runs what TensorRT cannot; the CPU would be a silent fallback.
        order = [wanted] if device == "cuda" else [wanted, PROVIDERS["cuda"]]
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        try:
            session = onnxruntime.InferenceSession(bundle.content, sess_options=options, providers=order)
        except Exception as error:  # onnxruntime's errors have no other base class
            raise NotReady(f"{wanted} cannot be started: {error}; check the driver, or use another device") from error
        given = session.get_providers()[0]
        if given != wanted:
            raise NotReady(f"{wanted} was requested and ONNX Runtime uses {given}: check the driver and CUDA libraries")
        return cls(session, lambda array: onnxruntime.OrtValue.ortvalue_from_numpy(array, "cuda", 0), device,
                   batch or GPU_BATCH)  # fmt: skip

    @property
    def provider(self) -> str:
        return f"ONNX Runtime {import_onnxruntime().__version__} {self.session.get_providers()[0]}"

    def probabilities(self, cube: NDArray[np.float32], centers: NDArray[np.int64]) -> NDArray[np.float32]:
        """Probabilities of all centres, in calls of one shape that fit into memory."""
        with self._device_is_free:
            window = self.bind(cube)
            while True:
                try:
                    return self._in_batches(window, centers)
                except Exception as error:  # onnxruntime's errors have no other base class
                    if not _is_out_of_memory(error):
                        raise
                    if self.batch == 1:
                        raise InferenceFailed(
                            "the GPU's memory is too small for one patch: free memory, or use another device"
                        ) from error
                    self.batch = -(-min(self.batch, len(centers)) // 2)

    def _in_batches(self, window: Any, centers: NDArray[np.int64]) -> NDArray[np.float32]:
        size = min(self.batch, len(centers))
        found = []
        for start in range(0, len(centers), size):
            part = centers[start : start + size]
            # The last part is padded with its last centre: with one shape nothing is planned or compiled again.
            padded = np.concatenate([part, np.repeat(part[-1:], size - len(part), axis=0)])
            binding = self.session.io_binding()
            binding.bind_ortvalue_input("cube", window)
            binding.bind_cpu_input("centers", padded)
            binding.bind_output("probabilities")
            self.session.run_with_iobinding(binding)
            found.append(binding.copy_outputs_to_cpu()[0][: len(part)])
        return np.concatenate(found)


def _load_libraries(onnxruntime: Any) -> None:
    """Load CUDA and cuDNN from pip's packages, as in the GPU image; otherwise those of the system are used."""
    preload = getattr(onnxruntime, "preload_dlls", None)  # since 1.21
    if preload is not None:
        with contextlib.redirect_stdout(sys.stderr):  # it prints missing libraries to standard output
            preload()


def _is_out_of_memory(error: Exception) -> bool:
    return any(sign in str(error).lower() for sign in OUT_OF_MEMORY)
