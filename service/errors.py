"""Every refusal, with its stable code and HTTP status; the message says what was found, expected and to do."""

from __future__ import annotations

from typing import ClassVar


class ServiceError(Exception):
    """Work that was refused or failed for a reason the user can act on."""

    code: ClassVar[str]
    status: ClassVar[int]


class SceneUnreadable(ServiceError):
    """The file cannot be opened as a scene, or is cut short."""

    code = "scene_unreadable"
    status = 422


class SceneIncomplete(ServiceError):
    """An ENVI header without its data, or the other way round."""

    code = "scene_incomplete"
    status = 422


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


class InferenceFailed(ServiceError):
    """The engine raised, or its probabilities were not finite."""

    code = "inference_failed"
    status = 500
