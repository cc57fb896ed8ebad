"""Computations reachable from an entry."""

from collections.abc import Sequence

from hloipu_compiler.ir.graph import Computation


def reached_from(entry: Computation, computations: Sequence[Computation]) -> list[Computation]:
    """Return the computations that an entry calls, callees first."""
    known = {c.name: c for c in computations}
    callees_first: dict[str, None] = {}
    open_ones = [(entry, iter(_called(entry)))]
    started = {entry.name}
    while open_ones:
        computation, names = open_ones[-1]
        name = next(names, None)
        if name is None:
            open_ones.pop()
            if computation is not entry:
                callees_first[computation.name] = None
        elif name not in started:
            started.add(name)
            callee = known[name]
            open_ones.append((callee, iter(_called(callee))))
    return [known[name] for name in callees_first]


def _called(computation: Computation) -> list[str]:
    return [name for op in computation.instructions for name in op.attributes.called]
