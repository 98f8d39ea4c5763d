"""The documentation is a site whose links and anchors all lead somewhere."""

import re
import subprocess
import sys
import tomllib

import pytest
import yaml

from tests.paths import ROOT

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
