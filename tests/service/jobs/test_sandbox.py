"""Sandbox processes: what one refuses with, and when it is replaced."""

import logging
import os
import signal
from pathlib import Path

import pytest

from hyperscene.errors import NotReady, SceneUnreadable
from hyperscene.service.jobs.sandbox import KEPT_BYTES, Sandbox, SandboxLimits, serve

HELD = []


def handle(request):
    """What the process does with a request of these tests."""
    match request["do"]:
        case "hold":
            HELD.append(b"x" * request["bytes"])
        case "nest":
            nested = []
            for _ in range(100_000):
                nested = [nested]
            return {"nested": nested}
        case "infinity":
            return {"pixel_size": [float("inf")]}
        case "fail":
            raise KeyError("samples")
        case "end":
            os.kill(os.getpid(), request["signal"])
    return {"pid": os.getpid()}


@pytest.fixture
def sandbox(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    sandbox = Sandbox(__name__, 1, SandboxLimits(seconds=30, memory_bytes=2 << 30))
    yield sandbox
    sandbox.close()


def test_a_process_that_holds_much_memory_is_replaced_after_its_response(sandbox):
    first, second = sandbox.run({"do": "hold", "bytes": 1000}), sandbox.run({"do": "hold", "bytes": KEPT_BYTES})
    assert first == second
    assert sandbox.run({"do": "nothing"}) != second


def test_a_process_has_no_more_memory_than_its_limit(sandbox):
    with pytest.raises(SceneUnreadable, match="there is not enough memory"):
        sandbox.run({"do": "hold", "bytes": 2 << 30})


def test_metadata_that_are_nested_too_deeply_are_refused_in_words(sandbox):
    with pytest.raises(SceneUnreadable, match="the file cannot be understood: it is nested too deeply"):
        sandbox.run({"do": "nest"})


def test_a_file_whose_process_is_killed_from_outside_is_not_called_damaged(sandbox):
    with pytest.raises(NotReady, match=r"was killed 3 times, .+: try again"):
        sandbox.run({"do": "end", "signal": signal.SIGKILL})
    assert sandbox.run({"do": "nothing"})["pid"]


def test_a_file_whose_process_crashes_is_refused(sandbox):
    with pytest.raises(SceneUnreadable, match="it is damaged"):
        sandbox.run({"do": "end", "signal": signal.SIGSEGV})


@pytest.mark.parametrize(("what", "cause"), [("fail", "KeyError: 'samples'"), ("infinity", "ValueError: Out of range")])
def test_the_class_of_an_unexpected_error_is_for_the_log_only(sandbox, caplog, what, cause):
    with caplog.at_level(logging.WARNING), pytest.raises(SceneUnreadable) as refusal:
        sandbox.run({"do": what})
    assert "Error" not in str(refusal.value)
    assert cause in caplog.text


if __name__ == "__main__":
    serve(handle)
