"""`hyperscene serve`: the service, until it is told to stop."""

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

from service.api.connections import BoundedProtocol
from service.app import create_app, lay_foundation
from service.cli import DONE
from service.errors import OutputUnwritable, WrongUsage
from service.logs import set_up_logs
from service.settings import Settings

LAST_RESORT_S = 1.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Every setting is an option and a variable."""
    parser.epilog = "Each option is also a variable, --keep-results-s is HYPERSCENE_KEEP_RESULTS_S; an option wins."
    for name, setting in Settings.model_fields.items():
        words = (setting.description or "").replace("%", "%%")
        default = "" if words.endswith(")") else _shown(setting.default)  # some say it in words
        parser.add_argument(
            _flag(name), metavar=name.rsplit("_", 1)[-1].upper(), help=f"{words}{f' ({default})' if default else ''}"
        )


def run(options: argparse.Namespace) -> int:
    """Serve until SIGTERM or Ctrl-C."""
    settings = read_settings({name: getattr(options, name) for name in Settings.model_fields})
    set_up_logs(settings.log_level)
    listener = listen(settings)
    with listener, lay_foundation(settings) as foundation:
        app = create_app(settings, foundation)
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
        with suppress(KeyboardInterrupt):  # uvicorn raises the signal again when it has ended
            Server(config, app, f"http://{f'[{host}]' if ':' in host else host}:{port}").run(sockets=[listener])
    return DONE


class Server(uvicorn.Server):
    """uvicorn, that says where it listens and tells the workers of a signal before the connections are waited for."""

    def __init__(self, config: uvicorn.Config, app: FastAPI, address: str) -> None:
        super().__init__(config)
        self._app = app
        self._address = address

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            print(f"hyperscene listens on {self._address}", flush=True)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        service = getattr(self._app.state, "service", None)
        if service is not None:
            # Whatever hangs then, a disk or a library, nothing is lost by leaving it behind.
            last_resort = threading.Timer(service.settings.stop_s + LAST_RESORT_S, os._exit, [DONE])
            last_resort.daemon = True
            last_resort.start()
            self._app.state.supervisor.ask_to_stop()
            service.watch.stop_soon()
        super().handle_exit(sig, frame)


def read_settings(given: dict[str, Any]) -> Settings:
    """Settings from options and variables, or what is wrong with them in one line."""
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]) if first["loc"] else "cluster"  # what is wrong with several settings at once
        words = first["msg"].removeprefix("Value error, ")
        raise WrongUsage(f"{_flag(name)}: {words}; see hyperscene serve --help") from error


def listen(settings: Settings) -> socket.socket:
    """The socket, bound before anything is started, so that a taken port is told at once."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
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


def _shown(default: Any) -> str:
    if isinstance(default, ByteSize):
        return default.human_readable(decimal=True)
    if default is None or default == ():
        return ""
    if isinstance(default, float):
        return f"{default:g}"
    return str(default) if isinstance(default, str | int | Path) else ""
