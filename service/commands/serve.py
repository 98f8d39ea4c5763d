"""`hyperscene serve`: run the service until SIGTERM or Ctrl-C."""

from __future__ import annotations

import argparse
import os
import socket
import threading
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import ByteSize, ValidationError

from hyperscene.errors import OutputUnwritable, WrongUsage
from hyperscene.service.api.connections import BoundedProtocol
from hyperscene.service.app import create_app, open_resources
from hyperscene.service.cli import DONE
from hyperscene.service.logs import set_up_logs
from hyperscene.service.settings import Settings

LAST_RESORT_S = 1.0  # after stop_s, the process exits without waiting any longer


def add_options(parser: argparse.ArgumentParser) -> None:
    """Every setting is an option and an environment variable."""
    parser.epilog = (
        "Each option is also an environment variable: --keep-results-s is HYPERSCENE_KEEP_RESULTS_S. Options take "
        "precedence."
    )
    for name, setting in Settings.model_fields.items():
        text = (setting.description or "").replace("%", "%%")
        default = (
            "" if text.endswith(")") else _format_default(setting.default)
        )  # some descriptions include the default
        parser.add_argument(
            _flag(name), metavar=name.rsplit("_", 1)[-1].upper(), help=f"{text}{f' ({default})' if default else ''}"
        )


def run(options: argparse.Namespace) -> int:
    """Run the server."""
    os.umask(0o077)  # all files of the service and its child processes are closed to other users
    settings = read_settings({name: getattr(options, name) for name in Settings.model_fields})
    set_up_logs(settings.log_level)
    listener = listen(settings)
    with listener, open_resources(settings) as resources:
        app = create_app(settings, resources)
        host, port = listener.getsockname()[:2]
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            http=BoundedProtocol,
            forwarded_allow_ips=settings.trusted_proxies,
            timeout_graceful_shutdown=max(1, int(settings.stop_s / 2)),
            server_header=False,
        )
        with suppress(KeyboardInterrupt):  # uvicorn raises the signal again after its shutdown
            Server(config, app, f"http://{f'[{host}]' if ':' in host else host}:{port}").run(sockets=[listener])
    return DONE


class Server(uvicorn.Server):
    """uvicorn's server; prints its URL, and stops the workers before it waits for open connections."""

    def __init__(self, config: uvicorn.Config, app: FastAPI, url: str) -> None:
        super().__init__(config)
        self._app = app
        self._url = url

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            print(f"hyperscene listens on {self._url}", flush=True)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        service = getattr(self._app.state, "service", None)
        if service is not None:
            # Exit even if a disk or a library hangs: all state is stored, so nothing is lost.
            last_resort = threading.Timer(service.settings.stop_s + LAST_RESORT_S, os._exit, [DONE])
            last_resort.daemon = True
            last_resort.start()
            self._app.state.supervisor.ask_to_stop()
            service.job_watcher.stop_soon()
        super().handle_exit(sig, frame)


def read_settings(given: dict[str, Any]) -> Settings:
    """Settings from options and environment variables; an invalid one raises WrongUsage."""
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]) if first["loc"] else "cluster"  # the only check of several settings together
        message = first["msg"].removeprefix("Value error, ")
        raise WrongUsage(f"{_flag(name)}: {message}; see hyperscene serve --help") from error


def listen(settings: Settings) -> socket.socket:
    """The listening socket, bound before anything else starts, so that a port in use is reported at once."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # asyncio turns Nagle's algorithm off only for sockets that name their protocol; with it, a response on a connection
    # that is kept waits 40 ms for the client's acknowledgement of its headers.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        raise OutputUnwritable(
            f"cannot listen on {settings.host} port {settings.port} ({error.strerror}): choose another with --port"
        ) from error
    listener.set_inheritable(False)
    return listener


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _format_default(default: Any) -> str:
    if isinstance(default, ByteSize):
        return default.human_readable(decimal=True)
    if default is None or default == ():
        return ""
    if isinstance(default, float):
        return f"{default:g}"
    return str(default) if isinstance(default, str | int | Path) else ""
