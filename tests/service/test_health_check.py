"""Each role of a container has a health check of its own, which says what is wrong."""

import signal
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from hyperscene.service.health_check import HEARTBEAT_VARIABLE, Unhealthy, check, main
from tests.cluster import RunningCluster, free_port
from tests.server import RunningServer, wait_for


def is_healthy(command, environment):
    try:
        check(command, environment)
    except (Unhealthy, OSError):
        return False
    return True


def as_first_process(*words):
    """A command with the words that Docker's `init` and Python's entry point add."""
    return ["/sbin/docker-init", "--", *words, ""]


def test_a_service_that_is_ready_is_healthy(server):
    port = server.url.rpartition(":")[2]
    check(as_first_process("hyperscene", "serve"), {"HYPERSCENE_HOST": "0.0.0.0", "HYPERSCENE_PORT": port})
    check(as_first_process("hyperscene", "serve", f"--port={port}"), {"HYPERSCENE_PORT": "1"})


def test_a_service_that_is_not_ready_gives_its_reason(tmp_path):
    port = free_port()
    server = RunningServer(tmp_path / "data", "--cluster", f"tcp://127.0.0.1:{port}")
    try:
        with pytest.raises(Unhealthy, match=f"no worker is running|the scheduler tcp://127.0.0.1:{port}"):
            check(["hyperscene", "serve"], {"HYPERSCENE_PORT": server.url.rpartition(":")[2]})
    finally:
        server.stop()


def test_a_service_that_does_not_listen_is_unhealthy():
    with pytest.raises(OSError, match="refused"):
        check(["hyperscene", "serve", "--port", str(free_port())], {})


@pytest.mark.slow
def test_a_worker_is_healthy_while_it_is_in_the_cluster(server, tmp_path, monkeypatch):
    heartbeat = tmp_path / "heartbeat"
    environment = {HEARTBEAT_VARIABLE: str(heartbeat), "HYPERSCENE_PORT": server.url.rpartition(":")[2]}
    command = as_first_process("hyperscene", "worker", "--scheduler", "tcp://scheduler:8786")
    with pytest.raises(Unhealthy, match="has not joined"):  # although a service responds on this machine
        check(command, environment)
    monkeypatch.setattr("hyperscene.service.health_check.SILENT_S", 2.0)
    cluster = RunningCluster(tmp_path / "cluster")
    try:
        cluster.add_worker(**{HEARTBEAT_VARIABLE: str(heartbeat)})
        cluster.wait_for_workers()
        wait_for(lambda: is_healthy(command, environment))
        cluster.kill_scheduler()
        wait_for(lambda: not is_healthy(command, environment))
        with pytest.raises(Unhealthy, match="has not been connected"):
            check(command, environment)
    finally:
        cluster.stop()


@pytest.mark.slow
def test_a_scheduler_is_healthy_while_it_responds(tmp_path, monkeypatch):
    monkeypatch.setattr("hyperscene.service.health_check.TIMEOUT_S", 1.0)
    cluster = RunningCluster(tmp_path)
    command = as_first_process("dask", "scheduler", "--host", "0.0.0.0", "--port", str(cluster.port))
    try:
        wait_for(lambda: is_healthy(command, {}))
        check(command, {})
        # The scheduler logs no check; the one line is of RunningCluster, which waited for the port.
        assert (tmp_path / "scheduler.log").read_text().count("before handshake") <= 1
        cluster.scheduler.send_signal(signal.SIGSTOP)  # the kernel still accepts connections
        wait_for(lambda: not is_healthy(command, {}))
        cluster.scheduler.send_signal(signal.SIGCONT)
        wait_for(lambda: is_healthy(command, {}))
    finally:
        cluster.stop()
    assert not is_healthy(command, {})


def test_a_program_that_closes_connections_is_no_scheduler():
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor() as pool:
        closing = pool.submit(lambda: listener.accept()[0].close())
        with pytest.raises(Unhealthy, match="without a greeting"):
            check(["dask", "scheduler", "--port", str(listener.getsockname()[1])], {})
        closing.result()


def test_a_command_that_ends_by_itself_is_not_checked():
    check(["hyperscene", "classify", "scene.tif"], {})


def test_the_check_reads_the_command_of_the_first_process(monkeypatch, tmp_path, capsys):
    command = tmp_path / "cmdline"
    command.write_text("\0".join(as_first_process("hyperscene", "worker")))
    monkeypatch.setattr("hyperscene.service.health_check.FIRST_PROCESS", command)
    monkeypatch.setenv(HEARTBEAT_VARIABLE, str(tmp_path / "heartbeat"))
    assert main() == 1
    assert capsys.readouterr().out == "the worker has not joined the scheduler yet\n"
    (tmp_path / "heartbeat").touch()
    assert main() == 0
