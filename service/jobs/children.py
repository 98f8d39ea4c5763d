"""Child processes that open files from outside: each with bounded memory and time, asked over a pipe.

A file that crashes GDAL, or asks for all of the machine's memory, costs such a process and not the service.
"""

from __future__ import annotations

import json
import os
import queue
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from model.bundle import BundleRefused
from service.errors import NotReady, SceneUnreadable, ServiceError, error_of
from service.settings import child_environment


@dataclass(frozen=True)
class Bounds:
    """What a question may take."""

    seconds: float
    memory_bytes: int  # of address space
    # What to say of a file that takes more, or kills the process.
    doing: str = "the file could not be understood"
    reason: str = "it is damaged, or its header is far too large"


class Children:
    """A few processes that run a module of ours, one question each at a time; a new one replaces one that dies."""

    def __init__(self, module: str, most: int, bounds: Bounds) -> None:
        self._children = [_Child(module, bounds) for _ in range(most)]
        # The one that was used last is used first: the others are started only where questions come side by side.
        self._idle: queue.LifoQueue[_Child] = queue.LifoQueue()
        for child in self._children:
            self._idle.put(child)

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """The answer, or what the process refused with."""
        child = self._idle.get()
        try:
            return child.ask(question)
        finally:
            self._idle.put(child)

    def close(self) -> None:
        """End them, whatever they are doing."""
        for child in self._children:
            child.close()


class _Child:
    """One process, asked by one thread at a time."""

    def __init__(self, module: str, bounds: Bounds) -> None:
        self._module = module
        self._bounds = bounds
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._is_closed = False

    def close(self) -> None:
        """End it, whatever it is doing."""
        self._is_closed = True
        if (child := self._child) is not None:
            child.kill()
        with self._lock:
            self._drop()

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """The answer, or what the process refused with."""
        with self._lock:
            answer = self._exchange(json.dumps(question).encode() + b"\n")
        if answer is None:
            if self._is_closed:
                raise shuts_down()
            raise SceneUnreadable(
                f"{self._bounds.doing} within {self._bounds.seconds:.0f} s and "
                f"{self._bounds.memory_bytes >> 30} GB of memory: {self._bounds.reason}"
            )
        if "refused" in answer:
            raise BundleRefused(answer["refused"])
        if "code" in answer:
            raise error_of(answer["code"], answer["detail"])
        return answer

    def _exchange(self, question: bytes) -> dict[str, Any] | None:
        for _ in range(2):  # a child that died since the last question is replaced
            child = self._running()
            try:
                child.stdin.write(question)  # type: ignore[union-attr]
                child.stdin.flush()  # type: ignore[union-attr]
                break
            except OSError:
                self._drop()
        else:
            return None
        line = self._read_line(time.monotonic() + self._bounds.seconds)
        if line is None:
            self._drop()
            if not self._is_closed:
                self._running()  # the next question does not have to wait for it
            return None
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _running(self) -> subprocess.Popen[bytes]:
        if self._is_closed:
            raise shuts_down()
        if self._child is None or self._child.poll() is not None:
            # One thread: a numeric library's pool would take address space for every core.
            environment = child_environment() | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
            self._child = subprocess.Popen(
                [sys.executable, "-m", self._module],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True,
            )  # fmt: skip
            if self._is_closed:  # meanwhile: who closes has seen no process to end
                self._drop()
                raise shuts_down()
        return self._child

    def _read_line(self, deadline: float) -> bytes | None:
        """The child's answer; None where it died or took too long."""
        assert self._child is not None
        assert self._child.stdout is not None
        pipe, read = self._child.stdout.fileno(), bytearray()
        while not read.endswith(b"\n"):
            ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
            part = os.read(pipe, 1 << 16) if ready else b""
            if not part:
                return None
            read += part
        return bytes(read)

    def _drop(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            for pipe in (self._child.stdin, self._child.stdout):
                if pipe is not None:
                    pipe.close()
            self._child = None


def shuts_down() -> NotReady:
    """What to say at the end."""
    return NotReady("the server shuts down: send the scene again when it is back")


def serve(answer: Callable[[dict[str, Any]], dict[str, Any]], bounds: Bounds) -> None:
    """The child's side: answer a question a line until the server goes away."""
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (bounds.memory_bytes, bounds.memory_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers = os.dup(1)
    os.dup2(2, 1)  # what a library prints is no answer
    for line in sys.stdin.buffer:
        text = json.dumps(_answered(answer, json.loads(line))).encode() + b"\n"
        while text:
            text = text[os.write(answers, text) :]


def _answered(answer: Callable[[dict[str, Any]], dict[str, Any]], question: dict[str, Any]) -> dict[str, Any]:
    try:
        return answer(question)
    except ServiceError as error:
        return {"code": error.code, "detail": str(error)}
    except BundleRefused as error:
        return {"refused": str(error)}
    except Exception as error:  # whatever a hostile file leads to: it is no scene
        return {"code": SceneUnreadable.code, "detail": f"the file cannot be understood ({type(error).__name__})"}
