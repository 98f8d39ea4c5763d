"""Progress: a bar where somebody watches, plain lines where a file does."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest

from service.progress import Progress

WORK = """
from service.progress import Progress
with Progress(4, "training") as progress:
    progress.say("a remark")
    for done in (1, 2, 3, 4):
        progress.advance_to(done, f"loss 0.{done}")
"""


RESUMED = """
from service.progress import Progress
with Progress(5, "cells") as progress:
    progress.begin_at({begun}, "a portrait")
    {then}
"""

# Two of eleven steps, of 0.8 s each, which say four times what they do.
NOTED = """
import time
from service.progress import Progress
with Progress(11, "cells") as progress:
    progress.begin_at(0)
    for done in (0, 1):
        for epoch in range(4):
            time.sleep(0.2)
            progress.advance_to(done, f"epoch {epoch}")
        progress.advance_to(done + 1, "done")
"""


def on_a_terminal(work: str) -> str:
    """What somebody who watches is shown."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    process = subprocess.Popen([sys.executable, "-c", work], stderr=theirs)
    process.wait(timeout=60)
    os.close(theirs)
    shown = os.read(ours, 100_000).decode()
    os.close(ours)
    return shown


def in_a_file(work: str) -> list[str]:
    """The lines that a file is left with."""
    done = subprocess.run([sys.executable, "-c", work], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == ""
    return done.stderr.splitlines()


def test_a_terminal_gets_a_bar_with_note_and_time_left():
    shown = on_a_terminal(WORK)
    assert "a remark" in shown
    assert "training: 100%|" in shown
    assert "4/4 [00:00<00:00" in shown
    assert "loss 0.4" in shown


@pytest.mark.parametrize("begun", [0, 3])
def test_a_bar_begins_without_a_time_left(begun):
    shown = on_a_terminal(RESUMED.format(begun=begun, then="pass"))
    assert f"{begun}/5 [00:00<?" in shown
    assert "a portrait" in shown
    assert not re.search(r"<\d", shown)


def test_notes_within_a_step_do_not_make_it_a_quick_one():
    left = re.findall(r" 2/11 \[00:\d\d<00:(\d\d)", on_a_terminal(NOTED))
    assert left
    assert all(int(seconds) >= 6 for seconds in left)


def test_a_file_gets_plain_lines_and_the_last_one_always():
    assert in_a_file(WORK) == ["a remark", "training 4/4 loss 0.4"]


def test_a_file_is_not_told_that_nothing_was_left_to_do():
    assert in_a_file(RESUMED.format(begun=5, then="pass")) == []


def test_a_step_count_of_nothing_promises_no_time(monkeypatch, capsys):
    monkeypatch.setattr("service.progress.LINE_EVERY_S", 0)
    with Progress(5, "cells") as progress:
        progress.advance_to(0, "first")
        progress.advance_to(1, "second")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "cells 0/5 first"
    assert re.fullmatch(r"cells 1/5 second \d+ s left", lines[1])
