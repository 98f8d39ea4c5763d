"""The documentation: a site whose links all lead somewhere, and `sh` and `python` blocks that run as written."""

import os
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.programs import ROOT

PAGES_OF_THE_REPOSITORY = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")


def build(config, site):
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(config), "--site-dir", str(site)],
        capture_output=True, text=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs") / "site"
    done = build(ROOT / "mkdocs.yml", folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_site_is_built_without_a_warning(site):
    pages = list((ROOT / "docs").glob("*.md"))
    assert {page.stem for page in pages} <= {page.stem for page in site.glob("*.html")}


def test_the_site_loads_nothing_from_another_host(site):
    for page in site.rglob("*.html"):
        loaded = re.findall(r"<(?:script|img|link)\b[^>]*?(?:src|href)=\"(https?:[^\"]*)", page.read_text())
        assert loaded == [], page


@pytest.mark.parametrize("link", ["missing.md", "other.md#missing", "#missing", "/absolute.md", "other"])
def test_a_link_that_leads_nowhere_fails_the_build(link, tmp_path):
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    for name in ("nav", "exclude_docs", "extra_css"):
        settings.pop(name)
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump(settings))
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "other.md").write_text("# Other\n")
    (docs / "index.md").write_text("# Index\n\n[sound](other.md#other)\n")
    assert build(tmp_path / "mkdocs.yml", tmp_path / "site").returncode == 0
    (docs / "index.md").write_text(f"# Index\n\n[broken]({link})\n")
    done = build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert done.returncode != 0
    assert link.rpartition("#")[2] in done.stderr


@pytest.mark.parametrize("name", PAGES_OF_THE_REPOSITORY)
def test_links_of_a_page_outside_the_site_lead_to_files_and_headings(name):
    for target, anchor in re.findall(r"\]\((?!http)([^)#]*)(?:#([^)]+))?\)", (ROOT / name).read_text()):
        path = ROOT / (target or name)
        assert path.exists(), target
        if anchor:
            assert anchor in headings(path), f"{target}#{anchor}"


def headings(path):
    """Anchors that GitHub makes of a page's headings."""
    titles = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", [*(ROOT / "docs").glob("*.md"), ROOT / "CONTRIBUTING.md"], ids=lambda page: page.stem)
def test_modules_and_files_that_a_page_names_exist(page):
    folders = ("hyperscene", "model", "service", "training", "tests", "deploy", "scripts")
    names = {path.name for folder in folders for path in (ROOT / folder).rglob("*.*")}
    for path in re.findall(r"`((?:[\w.-]+/)*[\w.-]+\.(?:py|yaml|conf))\b", page.read_text()):
        assert (ROOT / path).exists() if "/" in path else path in names, path


def test_the_glossary_gives_each_word_one_meaning():
    words = re.findall(r"^\| ([^|]+) \|", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    words = [word for entry in words for word in entry.split(", ") if word != "word"]
    assert len(words) == len(set(words))


def test_the_architecture_page_draws_the_layers_that_are_checked():
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    layers = [{name.removeprefix("hyperscene.") for name in layer.split(" : ")} for layer in contract["layers"]]
    drawing = re.search(r"```text\n(.*?)```", (ROOT / "docs" / "architecture.md").read_text(), re.DOTALL)[1]
    lines = [line for line in drawing.splitlines() if line.strip() != "|"]
    assert [set(line.split("   ")[0].split()) for line in lines] == layers


README = ROOT / "README.md"
# The README comes first: later pages use the scene and the bundle that its commands make.
PAGE_NAMES = ("mapping", "labelling", "training", "service", "python", "assessment")
PAGES = (README, *(ROOT / "docs" / f"{name}.md" for name in PAGE_NAMES))
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


@pytest.mark.slow
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
