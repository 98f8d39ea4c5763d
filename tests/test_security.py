"""Static checks: insecure constructs in our code, and known vulnerabilities of installed packages."""

import json
import subprocess
import sys

import pytest

from tests.programs import ROOT

SERVICE_S = 10  # that each request to pip-audit's service may take


def run_tool(*arguments):
    return subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_bandit_finds_nothing():
    found = run_tool("bandit", "-q", "-c", "pyproject.toml", "-r", "model", "service", "training", "hyperscene")
    assert found.returncode == 0, found.stdout


@pytest.mark.slow
def test_no_installed_package_has_a_known_vulnerability():
    found = run_tool("pip_audit", "--format", "json", "--progress-spinner", "off", "--timeout", str(SERVICE_S))
    if not found.stdout.startswith("{"):
        pytest.skip(f"nothing was audited: pip-audit's service cannot be reached ({found.stderr.strip()[-200:]})")
    packages = json.loads(found.stdout)["dependencies"]
    audited = [package for package in packages if "vulns" in package]
    if not audited:
        pytest.skip(f"nothing was audited: pip-audit's service knows none of the {len(packages)} packages")
    assert [package for package in audited if package["vulns"]] == []
