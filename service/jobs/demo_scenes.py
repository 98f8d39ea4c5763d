"""The demo scene of each owner: synthetic, made when it is asked for."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from shutil import rmtree

from hyperscene.errors import StorageFull
from hyperscene.service.jobs.admission import Admission
from hyperscene.service.jobs.received_files import ReceivedFile
from hyperscene.service.jobs.records import SceneRecord
from hyperscene.service.jobs.store import Store
from hyperscene.training.data.synthetic import DEMO_SCENE, write_scene

NAME = "demo.tif"
DEMO_BYTES = 16_000_000  # more than its file
_making = threading.Lock()  # one at a time, so that no owner gets two


def demo_scene(admission: Admission, store: Store, owner: str) -> tuple[SceneRecord, bool]:
    """The owner's demo scene, which is made if there is none; and whether it is new."""
    with _making:
        found = store.demo_scene(owner, time.time())
        return (found, False) if found is not None else (_make(admission, owner), True)


def _make(admission: Admission, owner: str) -> SceneRecord:
    with admission.upload_slot(owner, is_job=False):
        admission.require_capacity(DEMO_BYTES, owner, is_job=False)
        folder = admission.new_folder()
        try:
            path = folder / NAME
            write_scene(DEMO_SCENE, path, None)
            with path.open("rb") as file:
                sent = ReceivedFile(path, NAME, file.read(4), path.stat().st_size)
            scene = admission.receive_scene(folder, [sent], owner, is_temporary=False)
        except OSError as error:
            raise StorageFull(f"the demo scene could not be written ({error.strerror}): try again later") from error
        finally:
            rmtree(folder, ignore_errors=True)  # unless the scene was taken from there
    return admission.store_scene(replace(scene, document=scene.document | {"is_demo": True}))
