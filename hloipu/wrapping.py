"""From options to how a step is wrapped for the device."""

from hloipu.options.table import Options
from hloipu.pipelining import pipeline_request
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.plan.roles import required_wrapping, wrapping_of
from hloipu_compiler.plan.wrapping import WrappingRequest, looped


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


def wrapping_lines(module: Module, options: Options) -> list[str]:
    """Return what was made of a step's parameters and results, for people; none for no wrapping.

    Raises UsageError E3150 to E3152 as `wrapping_of` does.
    """
    request = wrapping_request(options)
    if pipeline_request(options).asks:
        return required_wrapping(module, looped(request), feeds_rest=True).lines()
    found = wrapping_of(module, request)
    return [] if found is None else found.lines()
