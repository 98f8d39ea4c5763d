"""The `sh` and `python` blocks of README and docs run as written, one after the other in one folder."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.paths import ROOT

pytestmark = pytest.mark.slow

README = ROOT / "README.md"
# The README comes first: later pages use the scene and the bundle that its commands make.
PAGES = (README, *(ROOT / "docs" / f"{name}.md" for name in ("mapping", "training", "service", "python")))
MOST_LINES = 200


@dataclass(frozen=True)
class Block:
    """A block of a page that a reader can run."""

    page: Path
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.stem}: {self.text.splitlines()[0]}"

    @property
    def command(self) -> list[str]:
        return ["bash", "-euo", "pipefail", "-c", self.text] if self.language == "sh" else ["python", "-c", self.text]


def blocks_of(page: Path) -> list[Block]:
    """Blocks to run; `console` and `text` blocks are only shown."""
    found = re.findall(r"^```(sh|python)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [Block(page, language, text) for language, text in found]


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
DEMO_OUTPUT = re.search(r"^```text\n(.*?)^```$", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)[1]


def without_numbers(output: str) -> list[str]:
    """The lines of an output; figures and the engine depend on the machine."""
    lines = [re.sub(r"[\d.]+", "#", " ".join(line.split())) for line in output.splitlines()]
    return [re.sub(" on .*", "", line) for line in lines]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A reader's folder: the files of the repository that the blocks name, and the environment."""
    requirements = (ROOT / "pyproject.toml").read_bytes()
    if not any(stamp.read_bytes() == requirements for stamp in Path(sys.prefix).glob("installed-*cpu*")):
        # The README's scripts would install from this folder, which is removed after the tests.
        pytest.fail("this environment is older than pyproject.toml: run scripts/test, or scripts/set-up before pytest")
    folder = tmp_path_factory.mktemp("reader")
    for name in ("model", "scripts", "pyproject.toml"):
        (folder / name).symlink_to(ROOT / name)
    (folder / ".venv").symlink_to(sys.prefix)
    return folder


@pytest.mark.timeout(660)  # longer than the subprocess timeout below
@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_block_works_as_written(block, folder):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        block.command, cwd=folder, env=os.environ | {"PATH": path}, capture_output=True, text=True, timeout=600,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    if block == BLOCKS[0]:
        assert set(without_numbers(DEMO_OUTPUT)) <= set(without_numbers(done.stdout))


def test_every_page_with_blocks_to_run_is_tested():
    with_blocks = {page for page in (ROOT / "docs").glob("*.md") if blocks_of(page)}
    assert with_blocks <= set(PAGES)


def test_the_readme_is_one_page_that_begins_with_the_demo_and_its_output():
    lines = README.read_text(encoding="utf-8").splitlines()
    assert len(lines) < MOST_LINES
    assert blocks_of(README)[0].text == "scripts/demo\n"
    assert "scripts/demo" in lines[:30]
    assert any("% of 55551 pixels" in line for line in lines[:30])


def test_the_readme_shows_the_service_the_training_and_python():
    texts = [block.text for block in blocks_of(README)]
    for words in (("hyperscene serve", "curl"), ("hyperscene train", "hyperscene classify"), ("import hyperscene",)):
        assert any(all(word in text for word in words) for text in texts), words
