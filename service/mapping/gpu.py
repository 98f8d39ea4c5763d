"""ONNX Runtime on a GPU: each window crosses the bus once, shapes stay constant, and a full memory halves the batch."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.bundle import Bundle, import_onnxruntime
from service.errors import InferenceFailed, NotReady

GPU_BATCH = 256
PROVIDERS = {"cuda": "CUDAExecutionProvider", "tensorrt": "TensorrtExecutionProvider"}
# What CUDA's allocator, cuBLAS and TensorRT write into the message when memory runs out; there is no class for it.
OUT_OF_MEMORY = ("out of memory", "failed to allocate memory", "alloc_failed", "cuda_error_out_of_memory")


def gpu_providers() -> list[str]:
    """The providers that the installed ONNX Runtime was built with."""
    return list(import_onnxruntime().get_available_providers())


@dataclass
class GpuEngine:
    """A session on a GPU, for one caller at a time.

    `bind` moves an array to the device. It and `session` are arguments, so that the logic can be tried without a GPU.
    """

    session: Any
    bind: Callable[[NDArray[Any]], Any]
    device: str
    batch: int
    callers: int = 2  # while one waits for the device, the other prepares its window
    _device_is_free: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def open(cls, bundle: Bundle, device: str, batch: int = 0) -> GpuEngine:
        """A session on the asked-for device, or the reason why there is none."""
        onnxruntime = import_onnxruntime()
        _load_libraries(onnxruntime)
        wanted = PROVIDERS[device]
        if wanted not in gpu_providers():
            raise NotReady(
                f"this ONNX Runtime has no {wanted}, but {', '.join(gpu_providers())}: pip install 'hyperscene[gpu]' "
                "in place of [cpu], or ask for the device auto"
            )
        # TensorRT leaves what it cannot run to CUDA; anything on the processor would be a silent fall back.
        order = [wanted] if device == "cuda" else [wanted, PROVIDERS["cuda"]]
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        try:
            session = onnxruntime.InferenceSession(bundle.content, sess_options=options, providers=order)
        except Exception as error:  # onnxruntime's own classes share no base below this one
            raise NotReady(f"{wanted} cannot be started: {error}; check the driver, or use another device") from error
        given = session.get_providers()[0]
        if given != wanted:
            raise NotReady(f"{wanted} was asked for and ONNX Runtime gave {given}: check the driver and CUDA libraries")
        return cls(session, lambda array: onnxruntime.OrtValue.ortvalue_from_numpy(array, "cuda", 0), device,
                   batch or GPU_BATCH)  # fmt: skip

    @property
    def provider(self) -> str:
        return f"ONNX Runtime {import_onnxruntime().__version__} {self.session.get_providers()[0]}"

    def probabilities(self, cube: NDArray[np.float32], centers: NDArray[np.int64]) -> NDArray[np.float32]:
        """Answers for all centres, in as many calls of one shape as memory asks for."""
        with self._device_is_free:
            window = self.bind(cube)
            while True:
                try:
                    return self._in_batches(window, centers)
                except Exception as error:  # onnxruntime's own classes share no base below this one
                    if not _is_out_of_memory(error):
                        raise
                    if self.batch == 1:
                        raise InferenceFailed(
                            "the GPU's memory does not hold one patch: free it, or use another device"
                        ) from error
                    self.batch = -(-min(self.batch, len(centers)) // 2)

    def _in_batches(self, window: Any, centers: NDArray[np.int64]) -> NDArray[np.float32]:
        size = min(self.batch, len(centers))
        answers = []
        for start in range(0, len(centers), size):
            part = centers[start : start + size]
            # The last part is filled up with its last centre: one shape, so nothing is planned or compiled anew.
            padded = np.concatenate([part, np.repeat(part[-1:], size - len(part), axis=0)])
            binding = self.session.io_binding()
            binding.bind_ortvalue_input("cube", window)
            binding.bind_cpu_input("centers", padded)
            binding.bind_output("probabilities")
            self.session.run_with_iobinding(binding)
            answers.append(binding.copy_outputs_to_cpu()[0][: len(part)])
        return np.concatenate(answers)


def _load_libraries(onnxruntime: Any) -> None:
    """Have CUDA and cuDNN found where pip has put them, as in the GPU image; else the system's are used."""
    preload = getattr(onnxruntime, "preload_dlls", None)  # since 1.21
    if preload is not None:
        with contextlib.redirect_stdout(sys.stderr):  # it prints what it does not find, and standard output is ours
            preload()


def _is_out_of_memory(error: Exception) -> bool:
    return any(sign in str(error).lower() for sign in OUT_OF_MEMORY)
