"""Small projects whose tests hang, crash and leave processes, run as scripts/test runs ours."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

from tests.lifetimes import ends_with_parent
from tests.programs import ROOT
from tests.server import wait_for

QUIET = ("-p", "no:cacheprovider", "-p", "xdist", "--dist", "loadfile")
CRASH = "import os, signal\ndef test_{}(): os.kill(os.getpid(), signal.SIGILL)\n"
SOUND = "def test_one(): pass\ndef test_two(): pass\n"
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's own")


@pytest.fixture
def project(tmp_path):
    """Writes test files and starts pytest on them through bounded_run."""

    def start(files, *options, limit_s=60):
        (tmp_path / "pytest.ini").write_text("[pytest]\n")
        for name, text in files.items():
            (tmp_path / f"test_{name}.py").write_text(text)
        command = [sys.executable, "-m", "tests.bounded_run", "--limit-minutes", str(limit_s / 60), "--"]
        # Without the plugins of this environment, pytest starts in a fraction of a second.
        environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        return subprocess.Popen(
            [*command, *QUIET, *options], cwd=tmp_path, env=environment, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=ends_with_parent(),
        )  # fmt: skip

    return start


def is_gone(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def written_pid(path):
    """The process id in a file; None until it is there."""
    text = path.read_text() if path.exists() else ""
    return int(text) if text.endswith("\n") else None


@pytest.mark.slow
def test_every_other_test_is_run_after_workers_were_killed(project):
    files = {"a": SOUND, "b": SOUND + CRASH.format("last"), "c": SOUND, "d": CRASH.format("first") + SOUND}
    run = project(files, "--numprocesses", "2")
    shown, told = run.communicate(timeout=60)
    assert run.returncode == 1, shown + told
    assert "2 failed, 8 passed" in shown
    for test in ("test_b.py::test_last", "test_d.py::test_first"):
        assert f"crashed while running '{test}'" in shown
        assert f"{test} (process " in told


@pytest.mark.slow
def test_a_run_is_stopped_at_its_limit_and_names_the_test(project):
    run = project({"a": "import time\ndef test_bad(): assert 0\ndef test_stuck(): time.sleep(600)\n"}, limit_s=6)
    shown, told = run.communicate(timeout=60)
    assert run.returncode == 1
    assert "the run exceeded its limit of 0.1 minutes" in told
    assert "test_a.py::test_stuck (process " in told
    assert "1 failed" in shown  # the summary, as after Ctrl-C


@pytest.mark.slow
@needs_linux
def test_a_process_that_a_test_left_is_named_and_killed(project, tmp_path):
    left = """
import subprocess
def test_leaves():
    started = subprocess.Popen(["sleep", "611"], start_new_session=True)
    open("pid", "w").write(f"{started.pid}\\n")
"""
    run = project({"a": left})
    shown, told = run.communicate(timeout=60)
    assert run.returncode == 0, shown + told
    pid = written_pid(tmp_path / "pid")
    assert f"{pid} sleep 611" in told
    assert is_gone(pid)


def test_a_crash_of_pytest_itself_names_the_test(project):
    run = project({"a": CRASH.format("alone")})
    _, told = run.communicate(timeout=60)
    assert run.returncode == 128 + signal.SIGILL
    assert "test_a.py::test_alone (process " in told


@pytest.mark.slow
def test_ctrl_c_shows_the_summary_and_ends_every_process(project, tmp_path):
    # A second later: pytest has the results of the tests before it.
    stuck = (
        "import os, time\ndef test_stuck():\n    time.sleep(1)\n"
        "    open('pid', 'w').write(f'{os.getpid()}\\n')\n    time.sleep(600)\n"
    )
    run = project({"a": SOUND + stuck}, "--numprocesses", "1")
    worker = wait_for(lambda: written_pid(tmp_path / "pid"))
    os.killpg(run.pid, signal.SIGINT)  # as a terminal does
    shown, _ = run.communicate(timeout=60)
    assert run.returncode == 2
    assert "KeyboardInterrupt" in shown
    assert "2 passed" in shown
    assert is_gone(worker)


# Starts a server as the fixtures do, and waits to be killed.
STARTER = """
import sys, time
from pathlib import Path
from tests.server import RunningServer
server = RunningServer(Path(sys.argv[1]), "--device", "cpu").wait_until_ready()
print(server.process.pid, *server.workers(), flush=True)
time.sleep(600)
"""


@pytest.mark.slow
@needs_linux
def test_a_server_and_its_workers_end_with_the_process_that_started_it(tmp_path):
    command = [sys.executable, "-c", STARTER, str(tmp_path / "data")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as starter:
        pids = list(map(int, starter.stdout.readline().split()))
        starter.kill()
    assert len(pids) >= 2
    wait_for(lambda: all(map(is_gone, pids)), within_s=15)


@needs_linux
def test_a_process_whose_parent_died_before_it_began_does_not_begin(monkeypatch):
    monkeypatch.setattr(os, "getpid", lambda: 1)
    prepare = ends_with_parent()
    assert subprocess.run(["true"], preexec_fn=prepare, check=False).returncode == 1
