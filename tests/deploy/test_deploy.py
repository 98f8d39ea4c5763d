"""Each file in deploy/ is checked by the tool that reads it and compared with the service."""

import json
import os
import re
import shutil
import socket
import subprocess
import tomllib
from contextlib import suppress
from itertools import chain

import httpx
import numpy as np
import pytest
import yaml

from hyperscene.model.probing import CACHE_VARIABLE
from hyperscene.service import health_check
from hyperscene.service.commands.serve import LAST_RESORT_S
from hyperscene.service.settings import Settings
from tests.lifetimes import ends_with_parent
from tests.programs import ROOT, find_program
from tests.scenes import write_tif
from tests.server import part, running_server, wait_for

DEPLOY = ROOT / "deploy"
COMPOSE, PROMTOOL, KUBECTL, HADOLINT = map(find_program, ("containers", "prometheus", "kubectl", "hadolint"))
PROMETHEUS = shutil.which("prometheus")

CPU, GPU = ("compose.yaml",), ("compose.yaml", "compose.gpu.yaml")
CLUSTER = ("compose.yaml", "compose.cluster.yaml")
COMBINATIONS = (CPU, GPU, CLUSTER, (*CLUSTER, "compose.cluster.gpu.yaml"))
VARIABLES = {f"HYPERSCENE_{name.upper()}" for name in Settings.model_fields}
SET_BY_IMAGE = {"HYPERSCENE_HOST", "HYPERSCENE_PORT", "HYPERSCENE_DATA"}
BUILT_IN_METRICS = {"ALERTS", "up"}


@pytest.fixture
def compose(tmp_path):
    """Runs `config` of Compose on some files, with variables in an .env file."""

    def run(files, **variables):
        env = tmp_path / "env"
        env.write_text("".join(f"{name}={value}\n" for name, value in variables.items()))
        options = [word for file in files for word in ("-f", str(DEPLOY / file))]
        return subprocess.run(
            [COMPOSE, "--env-file", str(env), *options, "config"], capture_output=True, text=True,
            env={"PATH": os.environ["PATH"]},
        )  # fmt: skip

    return run


@pytest.fixture
def composed(compose):
    """The merged configuration of some Compose files."""

    def run(files, **variables):
        done = compose(files, GRAFANA_PASSWORD="secret", **variables)
        assert done.returncode == 0, done.stderr
        return yaml.safe_load(done.stdout)

    return run


# Compose


@pytest.mark.containers
@pytest.mark.parametrize("files", COMBINATIONS, ids="+".join)
def test_compose_accepts_every_combination_of_files(files, composed):
    found = composed(files)
    assert {"service", "prometheus", "grafana"} <= set(found["services"])
    assert {"scheduler", "worker"} <= set(found["services"]) or "compose.cluster.yaml" not in files


@pytest.mark.containers
@pytest.mark.parametrize("files", COMBINATIONS, ids="+".join)
def test_no_container_can_write_to_its_root_or_gain_privileges(files, composed):
    for name, service in composed(files)["services"].items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["restart"] == "unless-stopped", name
        assert service["logging"]["options"]["max-size"], name
        assert any(mount.startswith("/tmp:") for mount in service["tmpfs"]), name
        assert not service.get("privileged"), name
        assert service["image"].rpartition(":")[2] not in ("", "latest"), name


@pytest.mark.containers
@pytest.mark.parametrize("files", COMBINATIONS, ids="+".join)
def test_ports_are_published_on_this_machine_only(files, composed):
    published = {name: service["ports"] for name, service in composed(files)["services"].items() if "ports" in service}
    assert published == {"service": ["127.0.0.1:8000:8000/tcp"], "grafana": ["127.0.0.1:3000:3000/tcp"]}


def test_the_training_worker_shares_the_data_of_the_service_and_has_a_profile_of_its_own():
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]  # Compose 2 hides other profiles
    trainer = services["trainer"]
    assert (trainer["profiles"], trainer["command"], trainer["build"]["target"]) == (
        ["train"],
        ["train-worker"],
        "train",
    )
    assert trainer["read_only"]
    assert trainer["cap_drop"] == ["ALL"]
    assert set(trainer["volumes"]) <= set(services["service"]["volumes"])
    environment = dict(entry.partition("=")[::2] for entry in trainer["environment"])
    assert environment["HYPERSCENE_DATA"] == "/data"
    assert set(environment) <= VARIABLES | {CACHE_VARIABLE}


@pytest.mark.containers
def test_grafana_is_not_started_without_a_password(compose):
    done = compose(CPU, GRAFANA_PASSWORD="")
    assert done.returncode != 0
    assert "set GRAFANA_PASSWORD" in done.stderr


@pytest.mark.containers
def test_compose_passes_every_setting_to_the_service(composed):
    passed = set(composed(CPU)["services"]["service"]["environment"])
    assert {name for name in passed if name.startswith("HYPERSCENE_")} == VARIABLES - SET_BY_IMAGE


@pytest.mark.containers
def test_a_setting_in_the_environment_reaches_only_the_service(composed):
    service = composed(CPU, HYPERSCENE_THREADS="3", HYPERSCENE_API_KEYS="hush")["services"].pop("service")
    assert service["environment"]["HYPERSCENE_THREADS"] == "3"
    assert service["environment"]["HYPERSCENE_BATCH"] is None  # not set, so that the default is used
    others = composed(CLUSTER, HYPERSCENE_API_KEYS="hush")["services"]
    assert "hush" not in json.dumps([others[name] for name in others if name != "service"])
    assert "secret" not in json.dumps(service)  # Grafana's


@pytest.mark.containers
def test_a_container_has_more_time_to_stop_than_the_service_takes(composed):
    grace = composed(CPU)["services"]["service"]["stop_grace_period"]
    assert float(grace.removesuffix("s")) > Settings.model_fields["stop_s"].default + LAST_RESORT_S


@pytest.mark.containers
def test_data_are_in_volumes_with_fixed_names(composed):
    found = composed(CPU)
    assert "data:/data:rw" in found["services"]["service"]["volumes"]
    assert found["volumes"]["data"]["name"] == "hyperscene-data"
    assert all("name" in volume for volume in found["volumes"].values())


@pytest.mark.containers
def test_gpus_are_reserved_for_the_containers_that_compute(composed):
    def has_gpu(service):
        return "gpu" in json.dumps(service.get("deploy", {}))

    assert {name for name, of in composed(GPU)["services"].items() if has_gpu(of)} == {"service"}
    together = composed(COMBINATIONS[-1])["services"]
    assert {name for name, of in together.items() if has_gpu(of)} == {"worker"}
    assert {together[name]["image"] for name in ("service", "scheduler", "worker")} == {"hyperscene:gpu"}


@pytest.mark.containers
def test_only_the_service_reaches_the_cluster(composed):
    found = composed(CLUSTER)
    assert found["networks"]["cluster"]["internal"]
    connected = {name for name, service in found["services"].items() if "cluster" in service.get("networks", {})}
    assert connected == {"service", "scheduler", "worker"}
    assert found["services"]["service"]["environment"]["HYPERSCENE_CLUSTER"] == "tcp://scheduler:8786"


@pytest.mark.containers
def test_prometheus_is_recreated_when_its_key_is_in_another_file(composed, tmp_path):
    # Compose compares the volumes of a service, paths included, but only the names of its secrets.
    for key in (DEPLOY / "prometheus" / "no_key", tmp_path / "key"):
        prometheus = composed(CPU, METRICS_KEY_FILE=key)["services"]["prometheus"]
        (mount,) = [each for each in prometheus["volumes"] if "/run/secrets/metrics_key" in str(each)]
        assert str(key) in str(mount)
        assert "secrets" not in prometheus


def test_example_environment_describes_every_setting_and_has_its_real_default():
    found = re.findall(r"^# (.*)\n#?(HYPERSCENE_\w+)=(.*)$", (DEPLOY / ".env.example").read_text(), re.MULTILINE)
    stated = {name: (description, default) for description, name, default in found}
    assert set(stated) == VARIABLES
    for name, setting in Settings.model_fields.items():
        description, text = stated[f"HYPERSCENE_{name.upper()}"]
        assert description == setting.description
        if text:
            assert getattr(Settings(**{name: text}), name) == setting.default, name
        else:
            assert setting.default in (None, (), ""), name


def test_example_environment_names_every_other_variable_with_its_real_default():
    used = {}
    for file in DEPLOY.glob("compose*.yaml"):
        for name, default in re.findall(r"\$\{(\w+):[-?]([^}]*)\}", file.read_text()):
            used.setdefault(name, set()).add(default)
    stated = dict(re.findall(r"^#?([A-Z]\w+)=(.*)$", (DEPLOY / ".env.example").read_text(), re.MULTILINE))
    assert set(used) <= set(stated)
    for name in set(stated) - VARIABLES - {"GRAFANA_PASSWORD"}:
        assert stated[name] in used[name], name


def test_no_file_names_a_setting_that_does_not_exist():
    files = [file for file in DEPLOY.rglob("*") if file.is_file() and file.suffix != ".onnx"]
    for file in [*files, ROOT / "docs" / "deployment.md"]:
        named = set(re.findall(r"\bHYPERSCENE_\w+", file.read_text()))
        assert named <= VARIABLES | {CACHE_VARIABLE, health_check.HEARTBEAT_VARIABLE}, file


# The image


def stages():
    """The stages of the Dockerfile: name and instructions, FROM first."""
    text = re.sub(r"\\\n\s*", "", (DEPLOY / "Dockerfile").read_text())
    found = {}
    for line in (line for line in text.splitlines() if line and not line.startswith("#")):
        word, rest = line.split(maxsplit=1)
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            found[name] = [("FROM", base)]
        elif found:
            found[name].append((word, rest))
    return found


def lineage(name):
    """Instructions of a stage, after those of the stages it is based on."""
    instructions = stages()[name]
    base = instructions[0][1]
    return (lineage(base) if base in stages() else []) + instructions


@pytest.mark.hadolint
def test_hadolint_finds_nothing_in_the_dockerfile():
    done = subprocess.run([HADOLINT, "--no-color", str(DEPLOY / "Dockerfile")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("target", ["cpu", "gpu", "train"])
def test_an_image_runs_our_command_as_an_unprivileged_user(target):
    instructions = lineage(target)
    assert [rest for word, rest in instructions if word == "USER"][-1] == "10001:10001"
    [command] = json.loads([rest for word, rest in instructions if word == "ENTRYPOINT"][-1])
    assert command in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert f"COPY --from={target}-environment" in " ".join(chain.from_iterable(stages()[target]))


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("cpu", {"cpu", "cluster", "labels"}),
        ("gpu", {"gpu", "cluster", "labels"}),
        ("train", {"cpu", "train", "study", "cluster"}),
    ],
)
def test_an_image_has_its_extras_and_only_the_training_image_has_torch(target, expected):
    installs = " ".join(rest for word, rest in stages()[f"{target}-environment"] if word == "RUN")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(re.search(r"\.whl\)\[([a-z,]+)\]", installs)[1].split(",")) == expected <= set(extras)
    torch = next(need for need in extras["train"] if need.startswith("torch"))
    assert (torch in installs) == (target == "train")


def test_only_images_of_the_service_and_the_cluster_have_a_health_check():
    for target in ("cpu", "gpu"):
        assert health_check.__name__ in dict(lineage(target))["HEALTHCHECK"]
    assert "HEALTHCHECK" not in dict(lineage("train"))


@pytest.mark.containers
def test_compose_leaves_the_health_check_of_each_role_to_the_image(composed):
    services = composed(CLUSTER)["services"]
    assert not [name for name in ("service", "scheduler", "worker") if "healthcheck" in services[name]]


def sources_of(name):
    """The files of the repository that a stage and those it is made from depend on."""
    found = set()
    for instruction, rest in lineage(name):
        if origin := re.search(r"--from=(\S+)", rest):
            found |= sources_of(origin[1])
        elif instruction == "COPY":
            found |= set(rest.split()[:-1])
    return found


@pytest.mark.parametrize("target", ["cpu", "gpu", "train"])
def test_a_change_of_the_sources_does_not_install_the_requirements_again(target):
    assert sources_of(f"{target}-environment") == {"pyproject.toml", "deploy/constraints.txt"}
    assert {"hyperscene", "model", "service", "training"} <= sources_of(target)


def test_the_build_context_holds_exactly_what_the_image_copies():
    in_context = re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    copied = [
        word
        for instruction, rest in chain.from_iterable(stages().values())
        if instruction == "COPY" and "--from" not in rest
        for word in rest.split()[:-1]
    ]
    assert sorted(set(copied)) == sorted(in_context)
    assert all((ROOT / name).exists() for name in copied)


def test_every_direct_requirement_of_an_image_has_one_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["optional-dependencies"][extra] for extra in ("cpu", "gpu", "train", "study", "cluster")]
    needs = [*project["dependencies"], *chain.from_iterable(groups)]
    pinned = re.findall(r"^([\w.-]+)==[\w.]+$", (DEPLOY / "constraints.txt").read_text(), re.MULTILINE)
    names = {re.match(r"[\w-]+", need)[0].lower().replace("_", "-") for need in needs}
    assert names - {name.lower().replace("_", "-") for name in pinned} == {"torch"}  # the extra pins torch


# Prometheus and Grafana


@pytest.mark.prometheus
def test_promtool_accepts_the_rules_and_each_alert_fires_only_when_it_should():
    rules = DEPLOY / "prometheus"
    for command in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]):
        done = subprocess.run([PROMTOOL, *command], cwd=rules, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    alerts = {rule["alert"] for rule in rules_of_alerts()}
    cases = yaml.safe_load((rules / "alerts_test.yml").read_text())["tests"]
    tried = [test for case in cases for test in case["alert_rule_test"]]
    assert {test["alertname"] for test in tried if test["exp_alerts"]} == alerts


@pytest.mark.prometheus
def test_promtool_accepts_the_configuration(tmp_path):
    # promtool checks that the key file exists; it is in a container, so a copy of the configuration names ours.
    text = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
    assert "/run/secrets/metrics_key" in text
    shutil.copy(DEPLOY / "prometheus" / "alerts.yml", tmp_path)
    key = DEPLOY / "prometheus" / "no_key"
    (tmp_path / "prometheus.yml").write_text(text.replace("/run/secrets/metrics_key", str(key)))
    done = subprocess.run(
        [PROMTOOL, "check", "config", str(tmp_path / "prometheus.yml")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.prometheus
@pytest.mark.parametrize(
    ("keys", "key", "health"),
    [("", "", "up"), ("first,for-prometheus", "for-prometheus", "up"), ("first", "", "down")],
    ids=["no keys", "its own key", "key missing"],
)
def test_prometheus_reads_the_metrics_with_its_key_or_if_there_are_no_keys(tmp_path, bundle_folder, keys, key, health):
    (tmp_path / "key").write_text(key)
    shutil.copy(DEPLOY / "prometheus" / "alerts.yml", tmp_path)
    text = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
    with running_server(
        tmp_path / "data", "--bundles", bundle_folder, "--device", "cpu", HYPERSCENE_API_KEYS=keys
    ) as server:
        for ours, theirs in {
            "service:8000": server.url.removeprefix("http://"),
            "/run/secrets/metrics_key": str(tmp_path / "key"),
            "scrape_interval: 15s": "scrape_interval: 1s",
        }.items():
            assert ours in text
            text = text.replace(ours, theirs)
        (tmp_path / "prometheus.yml").write_text(text)
        assert health_of_target(tmp_path) == health


def health_of_target(folder):
    """Health of the only target, as seen by a Prometheus with the configuration in this folder."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    options = (f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/series",
               f"--web.listen-address={address}")  # fmt: skip
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen([PROMETHEUS, *options], stdout=log, stderr=log, preexec_fn=ends_with_parent())
    try:

        def found():
            with suppress(httpx.HTTPError):
                response = httpx.get(f"http://{address}/api/v1/targets").raise_for_status()  # 503 while it starts
                targets = response.json()["data"]["activeTargets"]
                return next((of["health"] for of in targets if of["health"] != "unknown"), None)

        return wait_for(found)
    finally:
        process.terminate()
        process.wait(30)


def rules_of_alerts():
    return yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"][0]["rules"]


def board():
    return json.loads((DEPLOY / "grafana" / "dashboards" / "hyperscene.json").read_text())


def test_every_panel_queries_the_provisioned_data_source():
    [source] = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yml").read_text())["datasources"]
    panels = board()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        assert panel["datasource"]["uid"] == source["uid"], panel["title"]
        assert panel["targets"], panel["title"]
        assert all(target["expr"] for target in panel["targets"]), panel["title"]


def test_no_two_panels_overlap():
    cells = [
        (row, col)
        for area in (panel["gridPos"] for panel in board()["panels"])
        for row in range(area["y"], area["y"] + area["h"])
        for col in range(area["x"], area["x"] + area["w"])
    ]
    assert len(cells) == len(set(cells))
    assert max(col for _, col in cells) < 24


def test_the_service_has_every_metric_of_the_dashboard_and_the_alerts(server, tmp_path):
    values = np.random.default_rng(3).uniform(0.05, 0.6, (20, 33, 5)).astype("float32")
    scene = write_tif(tmp_path / "field.tif", values, wavelengths_nm=np.linspace(450, 900, 5))
    assert server.client.post("/classify", files={"scene": part(scene)}).status_code == 200
    exposed = set(re.findall(r"^(hyperscene_\w+)", server.client.get("/metrics").text, re.MULTILINE))
    queries = [target["expr"] for panel in board()["panels"] for target in panel["targets"]]
    queries += [rule["expr"] for rule in rules_of_alerts()]
    queries += [variable["query"]["query"] for variable in board()["templating"]["list"]]
    used = {name for text in queries for name in re.findall(r"\b(hyperscene_\w+|ALERTS|up)\b", text)}
    assert used - BUILT_IN_METRICS <= exposed
    # An operator needs these.
    assert {"hyperscene_jobs_pending", "hyperscene_jobs_finished_total", "hyperscene_job_queue_seconds_bucket",
            "hyperscene_stage_seconds_sum", "hyperscene_cells_total", "hyperscene_model_info",
            "hyperscene_disk_free_bytes"} <= used  # fmt: skip


@pytest.mark.prometheus
@pytest.mark.parametrize("panel", board()["panels"], ids=lambda panel: panel["title"])
def test_promtool_accepts_every_query_of_a_panel(panel, tmp_path):
    filled = {"$__rate_interval": "5m", "$instance": ".*"}
    rules = []
    for target in panel["targets"]:
        expression = target["expr"]
        for name, value in filled.items():
            expression = expression.replace(name, value)
        assert "$" not in expression
        rules.append({"record": f"query_{target['refId']}", "expr": expression})
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "panel", "rules": rules}]}))
    done = subprocess.run([PROMTOOL, "check", "rules", str(tmp_path / "rules.yml")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


# Kubernetes


def resources():
    """Every resource in the manifests."""
    files = [file for file in sorted((DEPLOY / "kubernetes").rglob("*.yaml")) if file.name != "kustomization.yaml"]
    return [document for file in files for document in yaml.safe_load_all(file.read_text())]


def pods():
    """Pod specifications by the name of their StatefulSet or Deployment."""
    return {of["metadata"]["name"]: of["spec"]["template"]["spec"] for of in resources() if "template" in of["spec"]}


@pytest.mark.parametrize("version", ["1.30", "1.37"])
@pytest.mark.parametrize("resource", resources(), ids=lambda of: f"{of['kind']}-{of['metadata']['name']}")
def test_manifests_match_the_kubernetes_schemas(resource, version):
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    kubernetes_validate.validate(resource, version, strict=True)


@pytest.mark.kubectl
@pytest.mark.parametrize("folder", ["kubernetes", "kubernetes/cluster"])
def test_kustomize_builds_with_your_image_in_every_pod(folder):
    done = subprocess.run([KUBECTL, "kustomize", str(DEPLOY / folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    built = list(yaml.safe_load_all(done.stdout))
    images = {
        of["spec"]["template"]["spec"]["containers"][0]["image"] for of in built if "template" in of.get("spec", {})
    }
    assert images == {"registry.example/hyperscene:cpu"}


@pytest.mark.parametrize("name", pods())
def test_a_pod_runs_unprivileged_on_a_read_only_root_with_limits(name):
    pod = pods()[name]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["runAsUser"] == 10001
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    [container] = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    assert {"cpu", "memory"} <= set(container["resources"]["limits"])


@pytest.mark.parametrize("name", pods())
def test_no_pod_gets_service_variables_that_look_like_settings(name):
    # Kubernetes sets HYPERSCENE_PORT=tcp://10.0.0.1:8000 for a service called hyperscene, which is not a port.
    assert pods()[name]["enableServiceLinks"] is False


def test_one_server_has_the_data_folder_and_time_to_stop():
    [server] = [of for of in resources() if of["kind"] == "StatefulSet"]
    assert server["spec"]["replicas"] == 1
    assert server["spec"]["volumeClaimTemplates"][0]["metadata"]["name"] == "data"
    pod = server["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > Settings.model_fields["stop_s"].default + LAST_RESORT_S
    probes = {name: pod["containers"][0][name]["httpGet"]["path"] for name in pod["containers"][0] if "Probe" in name}
    assert probes == {"startupProbe": "/livez", "livenessProbe": "/livez", "readinessProbe": "/readyz"}


def test_the_number_of_threads_equals_the_cpu_limit_of_a_pod():
    settings = yaml.safe_load((DEPLOY / "kubernetes" / "kustomization.yaml").read_text())["configMapGenerator"][0]
    limits = {name: pod["containers"][0]["resources"]["limits"]["cpu"] for name, pod in pods().items()}
    assert f"HYPERSCENE_THREADS={limits['hyperscene']}" in settings["literals"]
    arguments = pods()["hyperscene-worker"]["containers"][0]["args"]
    assert arguments[arguments.index("--threads") + 1] == limits["hyperscene-worker"]
