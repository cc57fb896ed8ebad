"""Rule of parallel branches: each works on IPUs of its own."""

from collections.abc import Collection, Iterator

from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import Parallel, Sync
from hloipu_runtime.program.uses import steps_within, used


def branch_faults(program: Program, step: Parallel) -> Iterator[str]:
    """Yield IPUs that several branches work on, and meetings with IPUs that a branch is not on."""
    used_ipus: set[int] = set()
    for number, branch in enumerate(step.branches):
        own_ipus = {program.variables[v].ipu for v in used(branch, program)}
        if own_ipus & used_ipus:
            shared = named_ipus(sorted(own_ipus & used_ipus))
            yield f"branch {number} and others before it share {shared}"
        used_ipus |= own_ipus
        inside = steps_within(branch, program)
        meeting = max((inner.ipus for inner in inside if isinstance(inner, Sync)), default=0)
        if meeting > max(1, len(own_ipus)):
            names = named_ipus(sorted(own_ipus))
            yield f"branch {number} has {meeting} IPUs meet, and is on {names}"


def named_ipus(ipus: Collection[int]) -> str:
    """Return IPUs in words."""
    return f"IPU{'s' if len(ipus) > 1 else ''} {', '.join(map(str, ipus))}"
