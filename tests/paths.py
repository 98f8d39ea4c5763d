"""Folders of the repository, and the PYTHONPATH of processes that simulate faults."""

import os
from pathlib import Path

ROOT = Path(__file__).parent.parent
POISON_PATH = os.pathsep.join(filter(None, [str(ROOT / "tests" / "poison"), os.environ.get("PYTHONPATH")]))
