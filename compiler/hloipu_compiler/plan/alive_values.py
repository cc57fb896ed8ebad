"""The bytes of values that are alive on an IPU while each instruction of a computation runs."""

from collections.abc import Sequence

from hloipu_compiler.analysis.live_bytes import Buffers, buffers_of, live_bytes
from hloipu_compiler.ir.graph import Computation, Module
from hloipu_compiler.ir.shapes import leaves
from hloipu_compiler.plan.plan import Plan

_NOWHERE = -1


def alive_bytes(module: Module, plan: Plan, computation: Computation, *, late: bool) -> list[int]:
    """Return the bytes that are alive on an instruction's IPU while it runs, without what it makes.

    `late`: parameters come in when they are read first. Bytes of which the IPU is not known count
    in equal parts on all.
    """
    buffers = buffers_of(computation, module.computation, {})
    wanted = [plan.ipus.get((computation.name, x.name)) for x in computation.instructions]
    if all(ipu is None for ipu in wanted):
        return _alive(buffers, late=late)
    homes = _homes(buffers, plan, computation)
    found = [0] * len(wanted)
    shards = plan.shards
    for ipu in set(wanted):
        sizes = tuple(
            size if home == ipu else size // shards if home == _NOWHERE else 0
            for size, home in zip(buffers.sizes, homes, strict=True)
        )
        here = _alive(buffers._replace(sizes=sizes), late=late)
        for position, at in enumerate(wanted):
            if at == ipu:
                found[position] = here[position]
    return found


def _homes(buffers: Buffers, plan: Plan, computation: Computation) -> Sequence[int]:
    """Return the IPU of each buffer."""
    homes = [_NOWHERE] * len(buffers.sizes)
    for x, made in zip(computation.instructions, buffers.makes, strict=True):
        ipu = plan.ipus.get((computation.name, x.name), _NOWHERE)
        for number, buffer in enumerate(made):
            homes[buffer] = plan.held_ipus.get((computation.name, x.name, number), ipu)
    given = iter(buffers.given)
    for x in computation.instructions:
        if x.parameter_number >= 0:
            for number, _ in enumerate(leaves(x.shape)):
                buffer = next(given, _NOWHERE)
                if buffer >= 0:
                    homes[buffer] = plan.held_ipus.get((computation.name, x.name, number), _NOWHERE)
    return homes


def _alive(buffers: Buffers, *, late: bool) -> list[int]:
    alive = live_bytes(buffers, range(len(buffers.makes)))
    found = [
        max(0, every - sum(buffers.sizes[b] for b in makes))
        for every, makes in zip(alive, buffers.makes, strict=True)
    ]
    if late:
        waiting = set(buffers.given)
        absent = sum(buffers.sizes[b] for b in waiting)
        for position, reads in enumerate(buffers.reads):
            for b in reads:
                if b in waiting:
                    waiting.remove(b)
                    absent -= buffers.sizes[b]
            found[position] -= absent
    return found
