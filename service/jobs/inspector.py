"""The first look at a file from outside: in a process of its own, with bounded memory and time.

A file that crashes GDAL, or asks for all of the machine's memory, costs this process and not the service.
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
from dataclasses import asdict
from pathlib import Path
from typing import Any

from model.bundle import BundleRefused, Manifest, load_bundle
from service.errors import NotReady, SceneUnreadable, ServiceError, error_of
from service.mapping.describe import describe_header
from service.mapping.scenes import Limits, open_scene
from service.settings import child_environment

MEMORY_BYTES = 4 << 30  # of address space; a scene's header takes some hundred megabytes at most
LOOK_S = 60.0
MOST_CHILDREN = 4


class Inspector:
    """A few child processes that look at files, one each at a time; a new one takes the place of one that dies."""

    def __init__(self) -> None:
        self._children = [_Child() for _ in range(MOST_CHILDREN)]
        # The one that was used last is used first: the others are started only where files come in side by side.
        self._idle: queue.LifoQueue[_Child] = queue.LifoQueue()
        for child in self._children:
            self._idle.put(child)

    def look_at_scene(self, path: Path, limits: Limits) -> dict[str, Any]:
        """What is understood of a scene, or its refusal."""
        return self._ask({"scene": str(path), "limits": asdict(limits)})

    def look_at_bundle(self, path: Path) -> tuple[Manifest, str]:
        """A sound bundle's manifest and sha256, or its refusal."""
        answer = self._ask({"bundle": str(path)})
        return Manifest.model_validate(answer["manifest"]), str(answer["sha256"])

    def close(self) -> None:
        """End the children, whatever they are looking at."""
        for child in self._children:
            child.close()

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        child = self._idle.get()
        try:
            return child.ask(question)
        finally:
            self._idle.put(child)


class _Child:
    """One process, asked by one thread at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._is_closed = False

    def close(self) -> None:
        """End it, whatever it is looking at."""
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
            raise SceneUnreadable(
                f"the file could not be understood within {LOOK_S:.0f} s and {MEMORY_BYTES >> 30} GB of memory: "
                "it is damaged, or its header is far too large"
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
        line = self._read_line(time.monotonic() + LOOK_S)
        if line is None:
            self._drop()
            self._running()  # the next question does not have to wait for it
            return None
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _running(self) -> subprocess.Popen[bytes]:
        if self._is_closed:
            raise NotReady("the server shuts down: send the scene again when it is back")
        if self._child is None or self._child.poll() is not None:
            # One thread: a numeric library's pool would take address space for every core.
            environment = child_environment() | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
            self._child = subprocess.Popen(
                [sys.executable, "-m", "service.jobs.inspector"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True,
            )  # fmt: skip
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


def _look(question: dict[str, Any]) -> dict[str, Any]:
    try:
        if "bundle" in question:
            bundle = load_bundle(Path(question["bundle"]))
            return {"manifest": bundle.manifest.model_dump(mode="json"), "sha256": bundle.sha256}
        return describe_header(open_scene(Path(question["scene"]), Limits(**question["limits"]), counts_packed=False))
    except ServiceError as error:
        return {"code": error.code, "detail": str(error)}
    except BundleRefused as error:
        return {"refused": str(error)}
    except Exception as error:  # whatever a hostile file leads to: it is no scene
        return {"code": SceneUnreadable.code, "detail": f"the file cannot be understood ({type(error).__name__})"}


def main() -> None:
    """Answer a question a line until the server goes away."""
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers = os.dup(1)
    os.dup2(2, 1)  # what a library prints is no answer
    for line in sys.stdin.buffer:
        text = json.dumps(_look(json.loads(line))).encode() + b"\n"
        while text:
            text = text[os.write(answers, text) :]


if __name__ == "__main__":
    main()
