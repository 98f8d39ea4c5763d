"""The image and the Compose files in Docker; .ci/containers starts it and runs these tests."""

import json
import os
import re
import subprocess

import httpx
import pytest
import yaml

from hyperscene.training.data.synthetic import SyntheticScene, write_scene
from tests.cluster import free_port
from tests.faults import COMPARED
from tests.programs import ROOT, find_program
from tests.server import part, wait_for

pytestmark = [pytest.mark.docker, pytest.mark.containers, pytest.mark.slow, pytest.mark.timeout(840)]

NAME = "hyperscene-test"  # of project, image and volumes, so that others in the same Docker are left alone
PYTHON_TAG = os.environ.get("PYTHON_TAG")  # of a base image that .ci/base-image made
HEALTHY_S = 180
WITH_CLUSTER = ("compose.yaml", "compose.cluster.yaml")
# Kills every process of the container but its first, which then ends too. For Docker this is a crash: it restarts it.
CRASH = "import os, signal; os.kill(-1, signal.SIGKILL)"


def docker(*arguments, within_s=60, **options):
    """Run docker; returns its output."""
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=within_s, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


class Project:
    """The services of some Compose files under names of their own."""

    def __init__(self, folder):
        self.port = free_port()
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=60)
        self._env, self._override = folder / "env", folder / "override.yaml"
        self._env.write_text(
            f"GRAFANA_PASSWORD=unused\nIMAGE_TAG={NAME}\nPUBLISH_PORT={self.port}\nDATA_VOLUME={NAME}-data\n"
            "HYPERSCENE_STRIP_PX=16\nHYPERSCENE_THREADS=2\nWORKER_THREADS=1\n"
        )
        build = {"args": {"PYTHON_TAG": PYTHON_TAG}, "network": "host"} if PYTHON_TAG else {}
        volumes = {name: {"name": f"{NAME}-{name}"} for name in ("prometheus", "grafana")}
        self._override.write_text(yaml.safe_dump({"services": {"service": {"build": build}}, "volumes": volumes}))

    def compose(self, *arguments, files=("compose.yaml",), within_s=60):
        """Run docker-compose; returns its output."""
        paths = [*(ROOT / "deploy" / file for file in files), self._override]
        options = [word for path in paths for word in ("-f", str(path))]
        done = subprocess.run(
            [find_program("containers"), "-p", NAME, "--env-file", str(self._env), *options, *arguments],
            capture_output=True, text=True, timeout=within_s, stdin=subprocess.DEVNULL,
            env=os.environ | {"DOCKER_BUILDKIT": "1", "COMPOSE_DOCKER_CLI_BUILD": "1"},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def containers(self, service):
        """The state of each container of a service."""
        ids = docker("ps", "--all", "--quiet", *labels(), "--filter", f"label=com.docker.compose.service={service}")
        return json.loads(docker("inspect", *ids.split())) if ids else []

    def wait_until_healthy(self, *services):
        """Return when every container of these services is healthy."""

        def unhealthy():
            found = [each for service in services for each in self.containers(service)]
            health = {each["Name"]: each["State"].get("Health", {"Status": "none"}) for each in found}
            return {name: of for name, of in health.items() if of["Status"] != "healthy"}

        try:
            wait_for(lambda: not unhealthy(), HEALTHY_S)
        except AssertionError:
            raise AssertionError(json.dumps(unhealthy(), indent=1)) from None

    def job(self, job_id):
        """The job's document; None while the service does not respond."""
        try:
            return self.client.get(f"/jobs/{job_id}").raise_for_status().json()
        except httpx.HTTPError:
            return None

    def _if_finished(self, job_id):
        job = self.job(job_id)
        return job if job and job["status"] in ("successful", "failed") else None

    def submit(self, scene):
        """Send a scene; returns the job's id."""
        response = self.client.post("/classify", files={"scene": part(scene)}, headers={"Prefer": "respond-async"})
        assert response.status_code == 201, response.text
        return response.json()["jobID"]

    def results(self, job_id, within_s=300):
        """The files of a job, once it is successful."""
        job = wait_for(lambda: self._if_finished(job_id), within_s)
        assert job["status"] == "successful", job
        return {name: self.client.get(f"/jobs/{job_id}/results/{name}").raise_for_status().content for name in COMPARED}


def labels():
    return "--filter", f"label=com.docker.compose.project={NAME}"


@pytest.fixture(scope="module")
def docker_that_builds():
    """Skip where Docker does not run, or cannot build the image."""
    if subprocess.run(["docker", "info"], capture_output=True, timeout=60).returncode:
        pytest.skip("Docker does not respond: start it")
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()
    base = f"python:{PYTHON_TAG or re.search(r'^ARG PYTHON_TAG=(.*)$', dockerfile, re.MULTILINE)[1]}"
    if subprocess.run(["docker", "image", "inspect", base], capture_output=True, timeout=60).returncode:
        pytest.skip(
            f"there is no image {base}: pull it, or make one with .ci/base-image and name its tag in PYTHON_TAG"
        )
    trial = subprocess.run(
        ["docker", "build", "--quiet", "--tag", f"hyperscene:{NAME}", "-"], input="FROM scratch\nLABEL trial=1\n",
        capture_output=True, text=True, timeout=60, env=os.environ | {"DOCKER_BUILDKIT": "1"},
    )  # fmt: skip
    if trial.returncode:
        pytest.skip(f"docker cannot build with BuildKit: {trial.stderr.strip()}")


@pytest.fixture(scope="module")
def project(docker_that_builds, tmp_path_factory):
    """The service of compose.yaml, built and healthy; removed at the end."""
    running = Project(tmp_path_factory.mktemp("compose"))
    running.compose("down", "--volumes", files=WITH_CLUSTER)  # what a killed run left
    try:
        running.compose("up", "--detach", "--build", "service", within_s=600)
        running.wait_until_healthy("service")
        yield running
    finally:
        running.client.close()
        running.compose("down", "--volumes", "--timeout", "2", files=WITH_CLUSTER, within_s=120)
        docker("image", "rm", f"hyperscene:{NAME}")


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """A scene that takes some seconds."""
    path = tmp_path_factory.mktemp("scene") / "scene.tif"
    write_scene(SyntheticScene(rows=320, cols=160, seed=5), path, None)
    return path


@pytest.fixture(scope="module")
def undisturbed(project, scene):
    """The results of a job that nothing disturbed."""
    return project.results(project.submit(scene))


def test_a_container_has_no_rights_that_it_does_not_need(project):
    (container,) = project.containers("service")
    assert container["HostConfig"]["ReadonlyRootfs"]
    status = docker("exec", container["Id"], "cat", "/proc/self/status")
    assert re.search(r"^Uid:\s+10001\s", status, re.MULTILINE)
    assert re.search(r"^CapEff:\s+0+$", status, re.MULTILINE)
    assert re.search(r"^NoNewPrivs:\s+1$", status, re.MULTILINE)


def test_the_image_has_the_whole_package(project):
    (container,) = project.containers("service")
    code = "import hyperscene; print(hyperscene.map_scene.__module__, hyperscene.__file__)"
    printed = docker("exec", container["Id"], "python", "-c", code).split()
    assert printed == [
        "hyperscene.python_api", "/opt/hyperscene/lib/python3.11/site-packages/hyperscene/__init__.py",
    ]  # fmt: skip


def test_a_container_that_is_killed_while_it_maps_writes_the_same_bytes(project, scene, undisturbed):
    job_id = project.submit(scene)
    job = wait_for(lambda: (job := project.job(job_id)) and job.get("progress", 0) >= 20 and job)
    assert job["status"] == "running", job
    (container,) = project.containers("service")
    subprocess.run(["docker", "exec", container["Id"], "python", "-c", CRASH], capture_output=True, timeout=60)
    wait_for(lambda: project.containers("service")[0]["RestartCount"] == container["RestartCount"] + 1)
    assert project.results(job_id) == undisturbed


def test_every_role_of_a_cluster_is_healthy_and_the_map_has_the_same_bytes(project, scene, undisturbed):
    roles = ("service", "scheduler", "worker")
    project.compose("up", "--detach", "--no-build", "--scale", "worker=2", *roles, files=WITH_CLUSTER, within_s=120)
    project.wait_until_healthy(*roles)
    assert project.results(project.submit(scene)) == undisturbed
    docker("stop", "--time", "1", *(each["Id"] for each in project.containers("scheduler")))

    def health():
        return {each["State"]["Health"]["Status"] for each in project.containers("worker")}

    wait_for(lambda: health() == {"unhealthy"}, HEALTHY_S)
    (log, *_) = [each["State"]["Health"]["Log"][-1]["Output"] for each in project.containers("worker")]
    assert "has not been connected to the scheduler" in log
