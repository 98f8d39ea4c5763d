"""The README's `sh` blocks run as written, in an empty folder, one after the other."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```sh\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What a reader has after the install block: the repository's files at hand, and its commands on the path."""
    asked_for = (ROOT / "pyproject.toml").read_bytes()
    if not any(stamp.read_bytes() == asked_for for stamp in Path(sys.prefix).glob("installed-*")):
        # The README's scripts would install the reader's folder, which is gone after the tests.
        pytest.fail("this environment is older than pyproject.toml: run scripts/test, or scripts/set-up before pytest")
    folder = tmp_path_factory.mktemp("reader")
    for name in ("model", "scripts", "pyproject.toml"):
        (folder / name).symlink_to(ROOT / name)
    (folder / ".venv").symlink_to(sys.prefix)
    return folder


@pytest.mark.parametrize("block", BLOCKS, ids=[block.splitlines()[0] for block in BLOCKS])
def test_the_commands_of_the_readme_work_as_written(block, folder):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block],
        cwd=folder, env=os.environ | {"PATH": path}, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_the_readme_has_commands_to_run():
    assert len(BLOCKS) >= 3


def test_the_first_command_of_the_readme_is_the_demo_with_its_answer_underneath():
    first_screen = README.splitlines()[:30]
    assert BLOCKS[0] == "scripts/demo\n"
    assert "scripts/demo" in first_screen
    assert any("% of 55551 pixels" in line for line in first_screen)


def test_serving_and_mapping_follow_the_demo():
    assert "hyperscene serve" in BLOCKS[1]
    assert "curl" in BLOCKS[1]


def test_links_of_the_readme_lead_to_files():
    for link in re.findall(r"\]\((?!http|#)([^)]+)\)", README):
        assert (ROOT / link).exists(), link
