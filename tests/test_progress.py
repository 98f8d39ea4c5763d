"""Progress: a bar where somebody watches, plain lines where a file does."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios

WORK = """
from service.progress import Progress
with Progress(4, "training") as progress:
    progress.say("a remark")
    for done in (1, 2, 3, 4):
        progress.advance_to(done, f"loss 0.{done}")
"""


def test_a_terminal_gets_a_bar_with_note_and_time_left():
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    process = subprocess.Popen([sys.executable, "-c", WORK], stderr=theirs)
    process.wait(timeout=60)
    os.close(theirs)
    shown = os.read(ours, 100_000).decode()
    os.close(ours)
    assert "a remark" in shown
    assert "training: 100%|" in shown
    assert "4/4 [00:00<00:00" in shown
    assert "loss 0.4" in shown


def test_a_file_gets_plain_lines_and_the_last_one_always():
    done = subprocess.run([sys.executable, "-c", WORK], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == ""
    assert done.stderr.splitlines() == ["a remark", "training 4/4 loss 0.4"]
