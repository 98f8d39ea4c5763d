"""The basics: the cache, progress in a terminal and in a file, durations in messages."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest

from hyperscene.errors import format_duration
from hyperscene.lru import LruCache
from hyperscene.progress import ProgressBar


def test_the_least_recently_used_value_is_dropped():
    cache = LruCache(2)
    for key in "ab":
        cache.get_or_make(key, str)
    cache.get("a")
    cache.get_or_make("c", str)
    assert [cache.get(key) is not None for key in "abc"] == [True, False, True]


def test_a_kept_value_is_not_made_again():
    cache = LruCache(2)
    made = [cache.get_or_make("a", object) for _ in range(2)]
    assert made[0] is made[1]


def test_room_is_made_before_a_value_is():
    cache = LruCache(1)
    cache.get_or_make("a", str)
    assert cache.get_or_make("b", lambda: str(cache.get("a"))) == "None"


WORK = """
from hyperscene.progress import ProgressBar
with ProgressBar(4, "training") as progress:
    progress.print_line("a remark")
    for done in (1, 2, 3, 4):
        progress.advance_to(done, f"loss 0.{done}")
"""


RESUMED = """
from hyperscene.progress import ProgressBar
with ProgressBar(5, "cells") as progress:
    progress.begin_at({done_before}, "inspecting")
    {then}
"""

# As patches are counted: pixels without data lower the total, and after the last patch too.
SHRINKING = """
from hyperscene.progress import ProgressBar
with ProgressBar(0, "patches") as progress:
    for done, total in ((0, 9), (2, 9), (2, 6), (4, 6), (4, 4)):
        progress.advance_of(done, total)
"""

# Two of eleven steps, of 0.8 s each, with four notes each.
NOTED = """
import time
from hyperscene.progress import ProgressBar
with ProgressBar(11, "cells") as progress:
    progress.begin_at(0)
    for done in (0, 1):
        for epoch in range(4):
            time.sleep(0.2)
            progress.advance_to(done, f"epoch {epoch}")
        progress.advance_to(done + 1, "done")
"""


def on_a_terminal(work: str) -> str:
    """The output in a terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    process = subprocess.Popen([sys.executable, "-c", work], stderr=theirs)
    process.wait(timeout=60)
    os.close(theirs)
    shown = os.read(ours, 100_000).decode()
    os.close(ours)
    return shown


def in_a_file(work: str) -> list[str]:
    """The output in a file."""
    done = subprocess.run([sys.executable, "-c", work], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == ""
    return done.stderr.splitlines()


def test_a_terminal_gets_a_bar_with_note_and_time_left():
    shown = on_a_terminal(WORK)
    assert "a remark" in shown
    assert "training: 100%|" in shown
    assert "4/4 [00:00<00:00" in shown
    assert "loss 0.4" in shown


@pytest.mark.parametrize("done_before", [0, 3])
def test_a_bar_begins_without_a_time_left(done_before):
    shown = on_a_terminal(RESUMED.format(done_before=done_before, then="pass"))
    assert f"{done_before}/5 [00:00<?" in shown
    assert "inspecting" in shown
    assert not re.search(r"<\d", shown)


def test_notes_within_a_step_do_not_shorten_the_time_left():
    left = re.findall(r" 2/11 \[00:\d\d<00:(\d\d)", on_a_terminal(NOTED))
    assert left
    assert all(int(seconds) >= 6 for seconds in left)


def test_a_file_gets_plain_lines_and_the_last_one_always():
    assert in_a_file(WORK) == ["a remark", "training 4/4 loss 0.4"]


def test_a_total_that_falls_after_the_last_step_ends_at_100_percent():
    assert in_a_file(SHRINKING) == ["patches 4/4"]
    assert "patches: 100%|" in on_a_terminal(SHRINKING)


def test_a_file_gets_no_line_if_nothing_was_left_to_do():
    assert in_a_file(RESUMED.format(done_before=5, then="pass")) == []


def test_without_a_finished_step_there_is_no_time_left(monkeypatch, capsys):
    monkeypatch.setattr("hyperscene.progress.LINE_EVERY_S", 0)
    with ProgressBar(5, "cells") as progress:
        progress.advance_to(0, "first")
        progress.advance_to(1, "second")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "cells 0/5 first"
    assert re.fullmatch(r"cells 1/5 second \d+ s left", lines[1])


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (604800, "7 days"),
        (86400, "1 day"),
        (90000, "1 day and 1 hour"),
        (5400, "1 hour and 30 minutes"),
        (61.2, "1 minute and 1 second"),
        (90061, "1 day and 1 hour"),
        (2, "2 seconds"),
        (0.2, "less than a second"),
    ],
)
def test_durations_are_written_in_words(seconds, words):
    assert format_duration(seconds) == words
