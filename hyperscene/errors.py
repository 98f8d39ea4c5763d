"""All errors with a stable code and HTTP status; a message says what was found, what was expected and what to do."""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from typing import ClassVar


class ServiceError(Exception):
    """Work was refused or failed for a reason that the user can act on."""

    headers: Mapping[str, str] = {}  # added to the response

    code: ClassVar[str]
    status: ClassVar[int]
    ogc_type: ClassVar[str | None] = None  # the exception type of OGC API - Processes


class SceneUnreadable(ServiceError):
    """The file cannot be opened as a scene, or is cut short."""

    code = "scene_unreadable"
    status = 422


class SourceUnreachable(ServiceError):
    """The host of a scene that is read in place does not respond."""

    code = "source_unreachable"
    status = 503


class SceneIncomplete(ServiceError):
    """An ENVI header lacks its data, or data lack their header."""

    code = "scene_incomplete"
    status = 422


class SceneTooLarge(ServiceError):
    """The scene has more bytes, pixels or bands than the settings allow."""

    code = "scene_too_large"
    status = 413


class DtypeUnsupported(ServiceError):
    """The samples are complex or of an unknown type."""

    code = "dtype_unsupported"
    status = 422


class BandsMissing(ServiceError):
    """Wavelengths are missing, or do not cover what the bundle needs."""

    code = "bands_missing"
    status = 422


class SceneUnusable(ServiceError):
    """The scene can be read, but cannot be used for training."""

    code = "scene_unusable"
    status = 422


class LabelsUnusable(ServiceError):
    """The labels do not fit the scene, or are too few for training."""

    code = "labels_unusable"
    status = 422


class LabelsChanged(ServiceError):
    """A change was made to an older version of the labels."""

    code = "labels_changed"
    status = 412


class PreconditionMissing(ServiceError):
    """A change does not say which version it was made to."""

    code = "precondition_missing"
    status = 428


class LiveUnavailable(ServiceError):
    """The server has no live map of labels, or not of this scene."""

    code = "live_unavailable"
    status = 503


class LiveNotReady(ServiceError):
    """The features of a scene's live map were not computed yet."""

    code = "live_not_ready"
    status = 409


class LiveSuperseded(ServiceError):
    """A newer request for the same view has overtaken this one."""

    code = "live_superseded"
    status = 409


class OptionsUnusable(ServiceError):
    """Options contradict each other or the files on disk."""

    code = "options_unusable"
    status = 422


class MapUnusable(ServiceError):
    """A folder or file is not a finished map, or two maps do not fit each other."""

    code = "map_unusable"
    status = 422


class SampleUnusable(ServiceError):
    """A checked sample does not fit the map, or its answers cannot be used."""

    code = "sample_unusable"
    status = 422


class WrongUsage(ServiceError):
    """A command-line option has an invalid value."""

    code = "wrong_usage"
    status = 422


class OutputUnwritable(ServiceError):
    """The result cannot be written to its folder."""

    code = "output_unwritable"
    status = 507


class BundleUnfaithful(ServiceError):
    """An exported graph does not reproduce the output of its network."""

    code = "bundle_unfaithful"
    status = 500


class TrainingFailed(ServiceError):
    """torch raised an error, or cannot train on this machine."""

    code = "training_failed"
    status = 500


class StorageFull(ServiceError):
    """The results need more disk space than is free."""

    code = "storage_full"
    status = 507


class NotReady(ServiceError):
    """The requested device cannot run the bundle."""

    code = "not_ready"
    status = 503


class QueueFull(ServiceError):
    """As many jobs are waiting as the settings allow."""

    code = "queue_full"
    status = 429


class OwnQueueFull(QueueFull):
    """As many jobs or uploads of one API key as its share allows."""


class NoSuchJob(ServiceError):
    """The job does not exist, belongs to another owner, or its results have expired."""

    code = "no_such_job"
    status = 404
    ogc_type = "no-such-job"


class NoSuchProcess(ServiceError):
    """The server does not offer this process."""

    code = "no_such_process"
    status = 404
    ogc_type = "no-such-process"


class NoSuchScene(ServiceError):
    """The scene does not exist, belongs to another owner, or has expired."""

    code = "no_such_scene"
    status = 404


class NoSuchResult(ServiceError):
    """The job has no such result file."""

    code = "no_such_result"
    status = 404


class NoSuchModel(ServiceError):
    """The server has no such model."""

    code = "no_such_model"
    status = 404


class ModelUnusable(ServiceError):
    """The uploaded file is no bundle, or fails its check."""

    code = "model_unusable"
    status = 422


class ModelProtected(ServiceError):
    """The model belongs to the operator, or its name does."""

    code = "model_protected"
    status = 409


class TrainingUnavailable(ServiceError):
    """The server has no worker that trains."""

    code = "training_unavailable"
    status = 503


class SceneInUse(ServiceError):
    """A job still needs the scene."""

    code = "scene_in_use"
    status = 409


class ResultNotReady(ServiceError):
    """The results were requested before the job was done."""

    code = "result_not_ready"
    status = 404
    ogc_type = "result-not-ready"


class Unauthorized(ServiceError):
    """The API key is missing or wrong."""

    code = "unauthorized"
    status = 401


class UploadBroken(ServiceError):
    """The request body does not match its headers, or is incomplete."""

    code = "upload_broken"
    status = 400


class UploadTooSlow(ServiceError):
    """The request body did not arrive in time."""

    code = "upload_too_slow"
    status = 408


class UploadRateTooLow(ServiceError):
    """The request body arrived more slowly than the settings allow."""

    code = "upload_rate_too_low"
    status = 408
    headers: Mapping[str, str] = {"Retry-After": "60"}


class RequestUnusable(ServiceError):
    """The request is not valid for this call."""

    code = "request_unusable"
    status = 422


class InternalError(ServiceError):
    """A bug; the log has the traceback."""

    code = "internal_error"
    status = 500


class InferenceFailed(ServiceError):
    """The engine raised an error, or returned NaN or infinity."""

    code = "inference_failed"
    status = 500


def write_error(error: BaseException) -> ServiceError:
    """The refusal for a result file that cannot be written."""
    while error.__cause__ is not None:  # rasterio's own message is "see previous exception"
        error = error.__cause__
    reason = getattr(error, "strerror", None) or error
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "no space left" in str(reason).lower():
        return disk_full_error()
    return OutputUnwritable(f"the results cannot be written ({reason}): free the disk, or choose another folder")


def disk_full_error() -> StorageFull:
    """The refusal for a disk that filled up while results were written."""
    return StorageFull("the results cannot be written: the disk is full; free it, or choose another folder")


def error_text(error: BaseException) -> str:
    """An exception's message for a person; the words of its class if it has none."""
    if isinstance(error, MemoryError):
        return "there is not enough memory"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, KeyError):  # its message is only the key
        return f"{class_words(error)} {error}"
    return str(error).strip() or class_words(error)


def class_words(error: BaseException) -> str:
    """The name of an exception's class in words, such as "read timeout"."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(error).__name__).lower()


def error_from_code(code: str, detail: str) -> ServiceError:
    """A refusal that was raised earlier or in another process."""
    kinds = {kind.code: kind for kind in ServiceError.__subclasses__() if hasattr(kind, "code")}
    return kinds.get(code, InternalError)(detail)


def format_duration(seconds: float) -> str:
    """A duration in its two largest units, such as "1 hour and 5 minutes"."""
    left, parts = round(seconds), []
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60), ("second", 1)):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count} {unit}{'s' if count > 1 else ''}")
    return " and ".join(parts[:2]) or "less than a second"
