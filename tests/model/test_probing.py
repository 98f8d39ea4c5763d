"""Probes run code that may crash in a child process, and say how the child ended."""

import os
import subprocess
import sys

from hyperscene.model.probing import run_probe

LARGE = b"x" * 1_000_000  # more than a pipe holds


def run_python(source, given=LARGE, timeout_s=60):
    return run_probe([sys.executable, "-c", source], timeout_s, given)


def test_a_child_reads_what_it_is_given():
    run = run_python("import sys; print('{\"bytes\": %d}' % len(sys.stdin.buffer.read()))")
    assert run.failure is None
    assert run.lines == [{"bytes": len(LARGE)}]


def test_a_child_may_end_before_it_has_read_everything():
    assert run_python("print('{}')").failure is None
    assert run_python("import sys; sys.exit(3)").failure == "failed with exit code 3"


def test_a_child_that_hangs_with_unread_input_is_killed():
    run = run_python("import time; print('{}', flush=True); time.sleep(600)", timeout_s=2)
    assert run.has_hung
    assert run.lines == [{}]


def test_no_folder_for_temporary_files_is_needed(tmp_path):
    source = (
        "import sys, tempfile; tempfile._candidate_tempdir_list = lambda: ['/proc/none'];"
        "from hyperscene.model.probing import run_probe;"
        "print(run_probe([sys.executable, '-c', 'print({})'], 60, b'given').failure)"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True, env=os.environ)
    assert done.stdout.strip() == "None", done.stderr
