"""Number of replicas and partitions that a program is compiled for."""

from hloipu_compiler.ir.annotations import needs_others
from hloipu_compiler.ir.graph import Module
from hloipu_runtime.errors import UsageError


def meets_others(module: Module) -> bool:
    """Whether a module has collectives or manually sharded regions of its own."""
    return any(needs_others(op) for c in module.computations for op in c.instructions)


def participants_for(module: Module, replicas: int | None) -> tuple[int, int]:
    """Return replicas and partitions: those that a module is written for, or replicas asked for.

    Raises UsageError E0510 where a module whose collectives name others is to run as more or fewer.
    """
    own_replicas = partitions = 1
    if meets_others(module):
        from hloipu_compiler.interpret.participants import participants_of

        own_replicas, partitions = participants_of(module)
    if replicas is None or replicas == own_replicas:
        return own_replicas, partitions
    if (own_replicas, partitions) == (1, 1):
        return replicas, 1
    raise UsageError(
        "E0510",
        f"{replicas} replicas are asked for; {module.name!r} is written for {own_replicas} of "
        f"{partitions} partitions",
        hint="leave --replicas out, or print the module for one device",
    )
