"""`hyperscene adopt`: rebuild a damaged or lost store from the records beside scenes and results."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from hyperscene.errors import OptionsUnusable
from hyperscene.service.app import locked_data_folder
from hyperscene.service.cli import DONE
from hyperscene.service.jobs.adoption import open_store, rebuild_store
from hyperscene.service.jobs.database import StoreDamaged
from hyperscene.service.logs import set_up_logs
from hyperscene.service.settings import Settings


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `hyperscene adopt`."""
    parser.add_argument("--data", type=Path, metavar="DIR", help="the data folder of a server that is not running")


def run(options: argparse.Namespace) -> int:
    """Rebuild the store, unless it is sound."""
    os.umask(0o077)
    settings = Settings() if options.data is None else Settings(data=options.data)
    if not settings.data.is_dir():
        raise OptionsUnusable(f"there is no data folder {settings.data}: name that of the server with --data")
    set_up_logs("error")
    with locked_data_folder(settings):
        try:
            open_store(settings)
            print("the store is sound: serve adopts folders that it does not know when it starts")
        except StoreDamaged:
            store = rebuild_store(settings)
            scenes, jobs = (len(store.ids(table)) for table in ("scenes", "jobs"))
            print(f"a new store with {scenes} scenes and {jobs} jobs; the old one is in {settings.data / 'quarantine'}")
    return DONE
