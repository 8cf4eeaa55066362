"""Packages of the agent's software, and the rollouts that bring them to hosts."""

from controlplane_api.errors.base import RequestError


class PackageInvalid(RequestError):
    """What shall be stored is no version of the agent as `make packages` writes it, or its bytes have another sum."""

    status = 422
    fix = "Send the folder that make packages has written, unchanged, with SHA256SUMS and its signature."


class UploadOutOfOrder(RequestError):
    """Bytes of a package came before those that stand in front of them."""

    status = 409
    fix = "Announce the version again: the answer says how many bytes of each file are here."


class ReleaseUnknown(RequestError):
    """The tenant has no such version of the agent."""

    status = 404
    fix = "The list of packages has all versions."


class ReleasesTooMany(RequestError):
    """The tenant has as many versions of the agent, or as many bytes of them, as it may."""

    status = 409
    fix = "Remove a version that no agent needs."


class ReleaseInUse(RequestError):
    """A rollout that is not over needs the version, or may need it as the way back."""

    status = 409
    fix = "Wait for the rollout's end, or cancel it."


class RolloutRuns(RequestError):
    """The tenant has a rollout that is not over."""

    status = 409
    fix = "Wait for its end, or cancel it."


class RolloutUnknown(RequestError):
    """The tenant has no rollout, or none that is under way."""

    status = 404
    fix = "Show the last one, or start one."
