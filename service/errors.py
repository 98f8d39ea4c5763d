"""Every refusal, with its stable code and HTTP status; the message says what was found, expected and to do."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import ClassVar


class ServiceError(Exception):
    """Work that was refused or failed for a reason the user can act on."""

    headers: Mapping[str, str] = {}  # that belong into the answer, such as where the job is

    code: ClassVar[str]
    status: ClassVar[int]
    ogc_type: ClassVar[str | None] = None  # the name that OGC API - Processes has for it


class SceneUnreadable(ServiceError):
    """The file cannot be opened as a scene, or is cut short."""

    code = "scene_unreadable"
    status = 422


class PlaceUnreachable(ServiceError):
    """The place that a scene is to be read from does not answer, or stopped to."""

    code = "place_unreachable"
    status = 503


class SceneIncomplete(ServiceError):
    """An ENVI header without its data, or the other way round."""

    code = "scene_incomplete"
    status = 422


class SceneTooLarge(ServiceError):
    """More bytes, pixels or bands than the setting allows."""

    code = "scene_too_large"
    status = 413


class DtypeUnsupported(ServiceError):
    """Complex or unknown samples."""

    code = "dtype_unsupported"
    status = 422


class BandsMissing(ServiceError):
    """Wavelengths are absent, or do not cover what the bundle needs."""

    code = "bands_missing"
    status = 422


class SceneUnusable(ServiceError):
    """The scene can be read, but nothing can be learnt from it as it is."""

    code = "scene_unusable"
    status = 422


class LabelsUnusable(ServiceError):
    """The labels do not fit the scene, or are not enough to learn from."""

    code = "labels_unusable"
    status = 422


class OptionsUnusable(ServiceError):
    """Options that contradict each other or what was found on disk."""

    code = "options_unusable"
    status = 422


class WrongUsage(ServiceError):
    """A command's option with a value that it cannot have."""

    code = "wrong_usage"
    status = 422


class OutputUnwritable(ServiceError):
    """The result cannot be written where it should go."""

    code = "output_unwritable"
    status = 507


class BundleUnfaithful(ServiceError):
    """An exported graph does not answer as the network it was made from."""

    code = "bundle_unfaithful"
    status = 500


class StorageFull(ServiceError):
    """The results need more disk than is free."""

    code = "storage_full"
    status = 507


class NotReady(ServiceError):
    """The device that was asked for cannot run the bundle."""

    code = "not_ready"
    status = 503


class QueueFull(ServiceError):
    """As many jobs wait as the setting allows."""

    code = "queue_full"
    status = 429


class NoSuchJob(ServiceError):
    """No such job, not the caller's, or its results have expired."""

    code = "no_such_job"
    status = 404
    ogc_type = "no-such-job"


class NoSuchProcess(ServiceError):
    """A process that this server does not offer."""

    code = "no_such_process"
    status = 404
    ogc_type = "no-such-process"


class NoSuchScene(ServiceError):
    """No such scene, not the caller's, or it has expired."""

    code = "no_such_scene"
    status = 404


class NoSuchResult(ServiceError):
    """A file that no job has."""

    code = "no_such_result"
    status = 404


class NoSuchModel(ServiceError):
    """A model that this server does not serve."""

    code = "no_such_model"
    status = 404


class SceneInUse(ServiceError):
    """A scene that a job still has to read."""

    code = "scene_in_use"
    status = 409


class ResultNotReady(ServiceError):
    """Results asked for before the job is done."""

    code = "result_not_ready"
    status = 404
    ogc_type = "result-not-ready"


class Unauthorized(ServiceError):
    """No API key, or a wrong one."""

    code = "unauthorized"
    status = 401


class UploadBroken(ServiceError):
    """A body that is not what its headers say, or stops half-way."""

    code = "upload_broken"
    status = 400


class UploadTooSlow(ServiceError):
    """A body that does not arrive in time."""

    code = "upload_too_slow"
    status = 408


class RequestUnusable(ServiceError):
    """A request that the call does not understand."""

    code = "request_unusable"
    status = 422


class InternalError(ServiceError):
    """A bug of ours: the log has the traceback."""

    code = "internal_error"
    status = 500


class InferenceFailed(ServiceError):
    """The engine raised, or its probabilities were not finite."""

    code = "inference_failed"
    status = 500


def unwritten(error: BaseException) -> ServiceError:
    """What to say where a file of the results cannot be written."""
    while error.__cause__ is not None:  # rasterio's own words are "see previous exception"
        error = error.__cause__
    reason = getattr(error, "strerror", None) or error
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "no space left" in str(reason).lower():
        return disk_is_full()
    return OutputUnwritable(f"the results cannot be written ({reason}): free the disk, or choose another folder")


def disk_is_full() -> StorageFull:
    """What to say where the disk filled up while the results were written."""
    return StorageFull("the results cannot be written: the disk is full; free it, or choose another folder")


def error_of(code: str, detail: str) -> ServiceError:
    """A refusal that was given in another process, or earlier."""
    kinds = {kind.code: kind for kind in ServiceError.__subclasses__() if hasattr(kind, "code")}
    return kinds.get(code, InternalError)(detail)


def in_words(seconds: float) -> str:
    """How long something takes or is kept, as a person says it: the two largest units that are not none."""
    left, words = round(seconds), []
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60), ("second", 1)):
        count, left = divmod(left, size)
        if count:
            words.append(f"{count} {unit}{'s' if count > 1 else ''}")
    return " and ".join(words[:2]) or "less than a second"
