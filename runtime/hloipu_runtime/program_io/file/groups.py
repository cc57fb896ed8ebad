"""All vertex groups of a program, functions included, each once."""

from collections.abc import Iterator

from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import ComputeSet, Step, VertexGroup, inner_steps


def groups_of(program: Program) -> Iterator[tuple[str, VertexGroup]]:
    """Yield every vertex group with the path of its step."""
    waiting: list[tuple[str, Step]] = [("body", program.body)]
    waiting += [(f"function {name[:80]!r}", body) for name, body in program.functions.items()]
    while waiting:
        place, step = waiting.pop()
        if isinstance(step, ComputeSet):
            yield from ((f"{place} {group.name[:80]}", group) for group in step.groups)
        waiting += [(f"{place}/{n}", inner) for n, inner in enumerate(inner_steps(step))]
