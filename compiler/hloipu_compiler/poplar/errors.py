"""Why a module in Graphcore's encoding cannot be read as a step."""

from hloipu_runtime.errors import UnsupportedError


class PoplarError(UnsupportedError):
    """Calls, accumulators or loops of Graphcore's encoding that do not fit together."""
