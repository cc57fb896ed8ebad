"""Lowerings that differ where scalars became arrays: calls, branches and loops on many elements."""

import numpy as np

from hloipu_compiler.evaluate.plan import Action, Array
from hloipu_compiler.evaluate.site import Lowering, Region, Site


def _call(site: Site) -> Action:
    region = site.region_of(site.attributes.called[0])
    return lambda x: region(*x)


def _conditional(site: Site) -> Action:
    """Compute every branch and choose by element."""
    regions = [site.region_of(name) for name in site.attributes.called]
    counts = [len(site.module.computation[n].parameters) for n in site.attributes.called]
    by_predicate = site.element_type(0) == "pred"

    def run(x: list[Array]) -> list[Array]:
        index = np.where(x[0], 0, 1) if by_predicate else _clamped_index(x[0], len(regions))
        results: list[Array] | None = None
        first = 1
        for number, (region, count) in enumerate(zip(regions, counts, strict=True)):
            branch = list(region(*x[first : first + count]))
            first += count
            if results is None:
                results = branch
            else:
                results = [
                    np.where(index == number, new, old)
                    for new, old in zip(branch, results, strict=True)
                ]
        return results or []

    return run


def _clamped_index(index: Array, branches: int) -> Array:
    return np.where((index < 0) | (index >= branches), branches - 1, index)


def _while(site: Site) -> Action:
    condition = site.region_of(site.attributes.text("condition"))
    body = site.region_of(site.attributes.text("body"))
    return lambda x: loop_on_elements(condition, body, x)


def loop_on_elements(condition: Region, body: Region, state: list[Array]) -> list[Array]:
    """Run a loop for every element until none goes on; finished elements keep their state."""
    shape = np.broadcast_shapes(*(x.shape for x in state))
    state = [np.broadcast_to(x, shape) for x in state]
    going = np.ones(shape, bool)
    while True:
        going = going & condition(*state)[0]
        if not going.any():
            return state
        state = [np.where(going, new, old) for new, old in zip(body(*state), state, strict=True)]


LIFTED: dict[str, Lowering] = {
    "call": _call,
    "fusion": _call,
    "map": _call,
    "conditional": _conditional,
    "while": _while,
}
"""Opcode -> lowering inside a computation that is applied to elements."""
