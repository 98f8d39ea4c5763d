"""Child processes that open uploaded or remote files, with limited memory and time.

A file that crashes GDAL, or exhausts the memory limit, ends such a process and not the service. Requests and responses
are lines of JSON on pipes.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hyperscene.child_process import module_command
from hyperscene.errors import NotReady, SceneUnreadable, ServiceError, error_from_code, error_text
from hyperscene.model.bundle import BundleRefused
from hyperscene.service.settings import child_environment

log = logging.getLogger("hyperscene.sandbox")

# A process that holds more memory than this after a request is replaced: allocators rarely give it back.
KEPT_BYTES = 512 << 20
ATTEMPTS = 3  # of a request whose process ends
EXIT_S = 1.0  # that a process needs to exit after it closed its pipe
POLL_S = 0.5


@dataclass(frozen=True)
class SandboxLimits:
    """Limits of one request, and the parts of the message when a file exceeds them or crashes the process."""

    seconds: float
    memory_bytes: int  # of address space
    doing: str = "the file could not be understood"
    reason: str = "it is damaged, or its header is far too large"


class Sandbox:
    """Processes that run one of our modules, each for one request at a time; one that ends is replaced."""

    def __init__(self, module: str, processes: int, limits: SandboxLimits) -> None:
        self._processes = [_SandboxProcess(module, limits) for _ in range(processes)]
        # The process used last is used first: others start only when requests come at the same time.
        self._idle: queue.LifoQueue[_SandboxProcess] = queue.LifoQueue()
        for process in self._processes:
            self._idle.put(process)

    def run(self, request: dict[str, Any], is_over: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        """The response of a process; raises the error that it refused with. It is killed when the work is over."""
        process = self._idle.get()
        try:
            return process.run(request, is_over)
        finally:
            self._idle.put(process)

    def close(self) -> None:
        """Kill all processes."""
        for process in self._processes:
            process.close()


class _SandboxProcess:
    """One process, used by one thread at a time."""

    def __init__(self, module: str, limits: SandboxLimits) -> None:
        self._module = module
        self._limits = limits
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._is_closed = False
        self._was_killed = False  # in an attempt of the current request, by SIGKILL: no fault of its file

    def close(self) -> None:
        """Kill the process."""
        self._is_closed = True
        if (child := self._child) is not None:
            child.kill()
        with self._lock:
            self._drop()

    def run(self, request: dict[str, Any], is_over: Callable[[], bool]) -> dict[str, Any]:
        """The response; raises the error that the process refused with."""
        with self._lock:
            response = self._exchange(json.dumps(request).encode() + b"\n", is_over)
        if response is None:
            if self._is_closed:
                raise shutting_down()
            if self._was_killed:
                raise NotReady(
                    f"the process that reads the file was killed {ATTEMPTS} times, by the operator or for lack of "
                    "memory: try again in some seconds"
                )
            raise SceneUnreadable(
                f"{self._limits.doing} within {self._limits.seconds:.0f} s and "
                f"{self._limits.memory_bytes >> 30} GB of memory: {self._limits.reason}"
            )
        if "cause" in response:
            log.warning("a file was refused after an unexpected error: %s", response["cause"])
        if "refused" in response:
            raise BundleRefused(response["refused"])
        if "code" in response:
            raise error_from_code(response["code"], response["detail"])
        return response

    def _exchange(self, request: bytes, is_over: Callable[[], bool]) -> dict[str, Any] | None:
        deadline = time.monotonic() + self._limits.seconds
        self._was_killed = False
        for _ in range(ATTEMPTS):
            child = self._running()
            try:
                child.stdin.write(request)  # type: ignore[union-attr]
                child.stdin.flush()  # type: ignore[union-attr]
                line = self._read_line(deadline, is_over)
            except OSError:  # it ended since the last request
                line = None
            if line is not None:
                held_bytes, response = json.loads(line)
                if held_bytes > KEPT_BYTES:
                    self._drop()
                    self._start_early()
                return dict(response)
            self._was_killed |= self._has_ended_by_kill()
            self._drop()
            if self._is_closed or is_over() or time.monotonic() >= deadline:
                break
        self._start_early()
        return None

    def _start_early(self) -> None:
        """Start the next process now, before the next request."""
        if not self._is_closed:
            self._running()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._is_closed:
            raise shutting_down()
        if self._child is None or self._child.poll() is not None:
            # One thread: a numeric library's pool takes address space for every core.
            environment = child_environment() | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
            self._child = subprocess.Popen(
                module_command(self._module, str(self._limits.memory_bytes)),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True,
            )  # fmt: skip
            if self._is_closed:  # meanwhile, by a thread that saw no process
                self._drop()
                raise shutting_down()
        return self._child

    def _read_line(self, deadline: float, is_over: Callable[[], bool]) -> bytes | None:
        """The response; None if the process ended or took too long, or the work is over."""
        assert self._child is not None
        assert self._child.stdout is not None
        pipe, read = self._child.stdout.fileno(), bytearray()
        while not read.endswith(b"\n"):
            left_s = max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([pipe], [], [], min(POLL_S, left_s))
            if not ready and left_s > 0 and not is_over():
                continue
            part = os.read(pipe, 1 << 16) if ready else b""
            if not part:
                return None
            read += part
        return bytes(read)

    def _has_ended_by_kill(self) -> bool:
        """Whether someone killed the process; a crash is another signal, and time that is over leaves it running."""
        assert self._child is not None
        try:
            return self._child.wait(EXIT_S) == -signal.SIGKILL
        except subprocess.TimeoutExpired:
            return False

    def _drop(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            for pipe in (self._child.stdin, self._child.stdout):
                if pipe is not None:
                    pipe.close()
            self._child = None


def shutting_down() -> NotReady:
    """Error returned to requests during shutdown."""
    return NotReady("the server is shutting down: send the scene again when it is back")


def serve(handle: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """The process's side: handle one request per line until the server closes the pipe."""
    if sys.platform != "win32":
        import resource

        memory_bytes = int(sys.argv[1])
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    responses = os.dup(1)
    os.dup2(2, 1)  # a library that prints must not write into the pipe
    for line in sys.stdin.buffer:
        text = _answer(handle, json.loads(line))
        while text:
            text = text[os.write(responses, text) :]


def _answer(handle: Callable[[dict[str, Any]], dict[str, Any]], request: dict[str, Any]) -> bytes:
    """The process's resident bytes and the response, as a line of JSON."""
    try:
        # Numbers that JSON cannot hold go no further than this: no document in the store has one.
        text = json.dumps(handle(request), allow_nan=False)
    except ServiceError as error:
        text = json.dumps({"code": error.code, "detail": str(error)})
    except BundleRefused as error:
        text = json.dumps({"refused": str(error)})
    except Exception as error:  # any error that a hostile file causes: it is not a scene
        text = json.dumps(_unexpected(error))
    return f"[{_resident_bytes()}, {text}]\n".encode()


def _unexpected(error: Exception) -> dict[str, Any]:
    cause = f"{type(error).__name__}: {str(error)[:500]}"
    if isinstance(error, MemoryError | RecursionError):
        detail = f"the file cannot be understood: {error_text(error)}; write it again with less metadata"
    else:
        detail = (
            "the file cannot be understood: its header or metadata is damaged, or contains something that hyperscene "
            "does not expect; write it again with other software, or report it with the file's header"
        )
    return {"code": SceneUnreadable.code, "detail": detail, "cause": cause}


def _resident_bytes() -> int:
    """Memory that this process holds; 0 where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
