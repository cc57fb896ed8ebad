"""Call graph of a module: callees-first order, call sites, cycles."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from hloipu_compiler.ir.graph import Computation, Module


class CallSite(NamedTuple):
    """One instruction that refers to a computation."""

    caller: Computation
    position: int


def call_sites(module: Module) -> Mapping[str, tuple[CallSite, ...]]:
    """Return, for every computation, the instructions that refer to it, in text order."""
    sites: dict[str, list[CallSite]] = {c.name: [] for c in module.computations}
    for computation in module.computations:
        for position, instruction in enumerate(computation.instructions):
            for name in instruction.attributes.called:
                if name in sites:
                    sites[name].append(CallSite(computation, position))
    return {name: tuple(callers) for name, callers in sites.items()}


def call_counts(module: Module) -> Counter[str]:
    """Return how many ops refer to each computation."""
    return Counter(
        name for c in module.computations for op in c.instructions for name in op.attributes.called
    )


def callees(module: Module) -> Mapping[str, tuple[str, ...]]:
    """Return, for every computation, the names it refers to, each once, in text order."""
    return {computation.name: computation.called for computation in module.computations}


def callees_first(module: Module, *, only_reachable: bool = False) -> tuple[Computation, ...]:
    """Return the computations so that each stands after those that it calls.

    With `only_reachable`, just those that the entry needs. A module with a call cycle has no such
    order: members of a cycle then come in the order in which the walk leaves them
    (`call_cycle` tells).
    """
    below = callees(module)
    known = module.computation
    roots = [module.entry.name] if only_reachable else list(below)
    done: dict[str, None] = {}
    entered: set[str] = set()
    for root in roots:
        stack: list[tuple[str, int]] = [(root, 0)]
        while stack:
            name, next_child = stack.pop()
            if next_child == 0:
                if name in entered:
                    continue
                entered.add(name)
            children = below[name]
            while next_child < len(children) and (
                children[next_child] in entered or children[next_child] not in known
            ):
                next_child += 1
            if next_child < len(children):
                stack.append((name, next_child + 1))
                stack.append((children[next_child], 0))
            else:
                done[name] = None
    return tuple(known[name] for name in done)


def without_unreached(module: Module) -> Module:
    """Return the module with the computations that its entry needs, each after its callees."""
    computations = callees_first(module, only_reachable=True)
    return replace(module, computations=computations, entry_position=len(computations) - 1)


def with_reached(module: Module, computations: Iterable[Computation], entry: str) -> Module:
    """Return the module of those of some computations that the one named `entry` needs."""
    whole = tuple(computations)
    position = next(n for n, c in enumerate(whole) if c.name == entry)
    return without_unreached(replace(module, computations=whole, entry_position=position))


def call_cycle(below: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return the names along one call cycle, or nothing when no computation calls itself.

    `below`: what each computation calls, as `callees` gives it. networkx would find a cycle too,
    but every compile looks for one, and its import takes longer than most compiles' verifying.
    """
    state: dict[str, int] = {}
    for root in below:
        if root in state:
            continue
        path: list[str] = []
        stack: list[tuple[str, int]] = [(root, 0)]
        while stack:
            name, next_child = stack.pop()
            if next_child == 0:
                state[name] = 1
                path.append(name)
            children = below[name]
            if next_child < len(children):
                stack.append((name, next_child + 1))
                child = children[next_child]
                if state.get(child) == 1:
                    return (*path[path.index(child) :], child)
                if child not in state and child in below:
                    stack.append((child, 0))
            else:
                state[name] = 2
                path.pop()
    return ()
