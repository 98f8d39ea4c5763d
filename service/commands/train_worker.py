"""`hyperscene train-worker`: trains models for a service on this machine until it is stopped."""

from __future__ import annotations

import argparse
import logging
import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

from hyperscene.errors import OptionsUnusable
from hyperscene.service.cli import DONE
from hyperscene.service.commands.serve import read_settings
from hyperscene.service.jobs.schema import MIGRATIONS
from hyperscene.service.jobs.train_worker import run_beside_server
from hyperscene.service.logs import set_up_logs

log = logging.getLogger("hyperscene.worker")

WAIT_S = 1.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """The data folder; other settings are the service's environment variables."""
    parser.add_argument("--data", metavar="DIR", help="the service's data folder, on a disk of this machine")
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), help="(info)")
    parser.epilog = "HYPERSCENE_ variables of the service, such as HYPERSCENE_MIN_FREE_BYTES, apply here too."


def run(options: argparse.Namespace) -> int:
    """Wait for the service's store, then train."""
    os.umask(0o077)  # all files are closed to other users, as the service's are
    settings = read_settings({"data": options.data, "log_level": options.log_level})
    set_up_logs(settings.log_level)
    wait_for_store(settings.database)
    run_beside_server(settings)
    return DONE


def wait_for_store(database: Path) -> None:
    """Return when the service has made or upgraded its store; a store of a newer version is refused."""
    is_said = False
    while (found := _version(database)) < len(MIGRATIONS):
        if not is_said:
            log.info("waiting for the service to open %s", database)
            is_said = True
        time.sleep(WAIT_S)
    if found > len(MIGRATIONS):
        raise OptionsUnusable(f"{database} was written by a newer hyperscene: use the service's version here")


def _version(database: Path) -> int:
    """The version of a store; 0 if there is none."""
    if not database.is_file():
        return 0
    try:
        with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True, timeout=5)) as connection:
            return int(connection.execute("PRAGMA user_version").fetchone()[0])
    except sqlite3.Error:
        return 0
