"""Options to the device loop around a step."""

from hloipu.options.table import Options
from hloipu_compiler.plan.wrapping import WrappingRequest


def wrapping_request(options: Options) -> WrappingRequest:
    """Return what options ask for: `loop`, `role`, `feed`, `outfeed` and what goes with them."""
    return WrappingRequest(
        options.loop,
        dict(options.role),
        dict(options.feed),
        tuple(options.outfeed),
        options.io_tiles,
        options.replica_keys,
    )
