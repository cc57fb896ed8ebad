"""Why a step cannot be cut into micro-batches and an update."""

from hloipu_runtime.errors import UnsupportedError


class StagingError(UnsupportedError):
    """A step whose update or stages cannot be told apart, or that they would change."""
