"""Evaluation of calls, loops, branches and asynchronous pairs."""

import numpy as np

from hloipu_compiler.interpret.planning.plan import Action, Array
from hloipu_compiler.interpret.planning.site import Site, leaf_count, lowers
from hloipu_compiler.ir.shapes import TupleShape


@lowers("call", "fusion")
def _call(site: Site) -> Action:
    plan, watch = site.plan_of(site.attributes.called[0]), site.effects.watch
    return plan.run if watch is None else lambda x: plan.run(x, watch)


@lowers("while")
def _while(site: Site) -> Action:
    condition = site.plan_of(site.attributes.text("condition"))
    body = site.plan_of(site.attributes.text("body"))

    def run(state: list[Array]) -> list[Array]:
        for _ in site.iterations():
            if not condition.run(state.copy())[0]:
                break
            state = body.run(state)
        return state

    return run


@lowers("conditional")
def _conditional(site: Site) -> Action:
    plans = [site.plan_of(name) for name in site.attributes.called]
    by_predicate = site.element_type(0) == "pred"
    ends = [1]
    for shape in site.operand_shapes[1:]:
        ends.append(ends[-1] + leaf_count(shape))

    def run(x: list[Array]) -> list[Array]:
        chosen = int(x[0])
        if by_predicate:
            chosen = 0 if chosen else 1
        elif not 0 <= chosen < len(plans):
            chosen = len(plans) - 1
        arguments = x[ends[chosen] : ends[chosen + 1]]
        x.clear()
        return plans[chosen].run(arguments)

    return run


@lowers("async-start")
def _async_start(site: Site) -> Action:
    """Run the whole computation at the start; the value is ((operands…), results, contexts…)."""
    plan = site.plan_of(site.attributes.called[0])
    operands = sum(map(leaf_count, site.operand_shapes))
    wanted = leaf_count(site.instruction.shape)

    def run(x: list[Array]) -> list[Array]:
        results = plan.run(x.copy())
        filler = x[:1] or results[:1]
        return [*x, *results, *filler * (wanted - operands - len(results))]

    return run


@lowers("async-update")
def _async_update(site: Site) -> Action:
    return lambda x: x


@lowers("async-done")
def _async_done(site: Site) -> Action:
    """Return the second element of the start's value."""
    shape = site.operand_shapes[0]
    if not isinstance(shape, TupleShape):
        return lambda x: x
    first = leaf_count(shape.elements[0])
    count = leaf_count(site.instruction.shape)
    return lambda x: x[first : first + count]


@lowers("copy-start")
def _copy_start(site: Site) -> Action:
    """Return (destination, source, context)."""
    return lambda x: [x[0], x[0], _context()]


@lowers("copy-done")
def _copy_done(site: Site) -> Action:
    return lambda x: x[:1]


def _context() -> Array:
    """Return a placeholder for a handle that is never read."""
    return np.zeros((), np.uint32)
