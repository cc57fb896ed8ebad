"""Live bytes on an IPU at each instruction of a computation."""

from collections.abc import Sequence

from hloipu_compiler.analysis.live_bytes import Buffers, buffers_of, live_bytes
from hloipu_compiler.ir.graph import Computation, Module
from hloipu_compiler.ir.shapes import leaves
from hloipu_compiler.plan.plan import Plan

_NOWHERE = -1


def alive_bytes(
    module: Module,
    plan: Plan,
    computation: Computation,
    standing: frozenset[int] = frozenset(),
    *,
    late: bool,
) -> list[int]:
    """Return the bytes that are alive on an instruction's IPU while it runs, without what it makes.

    `standing`: numbers of parameters that the caller counts, whoever reads them. Gradients that are
    added up as they come (`plan.added_up`) are gone when they are made. `late`: parameters come in
    when they are read first. Bytes of which the IPU is not known count in equal parts on all.
    """
    added_up = plan.added_up.get(computation.name, frozenset())
    buffers = _without(
        standing, computation, buffers_of(computation, module.computation, {}, added_up)
    )
    wanted = [plan.ipus.get((computation.name, op.name)) for op in computation.instructions]
    if all(ipu is None for ipu in wanted):
        return _alive(buffers, late=late)
    return _alive_on(wanted, buffers, _homes(buffers, plan, computation), plan.shards, late=late)


def _without(standing: frozenset[int], computation: Computation, buffers: Buffers) -> Buffers:
    """Return buffers of which those that callers count have no size."""
    if not standing:
        return buffers
    sizes = list(buffers.sizes)
    for number in standing:
        for part in buffers.holds[computation.parameters[number]]:
            for b in part:
                sizes[b] = 0
    return buffers._replace(sizes=tuple(sizes))


def _homes(buffers: Buffers, plan: Plan, computation: Computation) -> Sequence[int]:
    homes = [_NOWHERE] * len(buffers.sizes)
    for instruction, made_buffers in zip(computation.instructions, buffers.makes, strict=True):
        ipu = plan.ipus.get((computation.name, instruction.name), _NOWHERE)
        for number, buffer in enumerate(made_buffers):
            homes[buffer] = plan.held_ipus.get((computation.name, instruction.name, number), ipu)
    entry_buffers = iter(buffers.given)
    for instruction in computation.instructions:
        if instruction.parameter_number >= 0:
            for number, _ in enumerate(leaves(instruction.shape)):
                buffer = next(entry_buffers, _NOWHERE)
                if buffer >= 0:
                    homes[buffer] = plan.held_ipus.get(
                        (computation.name, instruction.name, number), _NOWHERE
                    )
    return homes


def _alive(buffers: Buffers, *, late: bool) -> list[int]:
    alive = live_bytes(buffers, range(len(buffers.makes)))
    bytes_alive = [
        max(0, every - sum([buffers.sizes[b] for b in makes]))
        for every, makes in zip(alive, buffers.makes, strict=True)
    ]
    if late:
        waiting = set(buffers.given)
        absent = sum(buffers.sizes[b] for b in waiting)
        before: tuple[int, ...] = ()
        for position, reads in enumerate(buffers.reads):
            for b in reads if reads is not before else ():
                if b in waiting:
                    waiting.remove(b)
                    absent -= buffers.sizes[b]
            before = reads
            bytes_alive[position] -= absent
    return bytes_alive


class _OnIpus:
    """Sums of bytes by IPU; those of which it is not known count in equal parts on all."""

    def __init__(self, sizes: Sequence[int], homes: Sequence[int], shards: int) -> None:
        self.sizes = sizes
        self.homes = homes
        self.shards = shards
        self.own: dict[int, int] = {}
        self.everywhere = 0

    def add(self, buffer: int, times: int = 1) -> None:
        home, size = self.homes[buffer], self.sizes[buffer]
        if home == _NOWHERE:
            self.everywhere += times * (size // self.shards)
        else:
            self.own[home] = self.own.get(home, 0) + times * size

    def on(self, ipu: int | None) -> int:
        """Return the bytes on an IPU; None: of which nothing is known but the equal parts."""
        return self.everywhere + (0 if ipu is None else self.own.get(ipu, 0))

    def size(self, buffer: int, ipu: int | None) -> int:
        home, size = self.homes[buffer], self.sizes[buffer]
        return size if home == ipu else size // self.shards if home == _NOWHERE else 0


def _alive_on(
    wanted: Sequence[int | None], buffers: Buffers, homes: Sequence[int], shards: int, *, late: bool
) -> list[int]:
    """Return what `_alive` does, each instruction's on its own IPU, in one walk for all IPUs."""
    live = _OnIpus(buffers.sizes, homes, shards)
    absent = _OnIpus(buffers.sizes, homes, shards)
    last = {b: at for at, reads in enumerate(buffers.reads) for b in reads}
    waiting = set(buffers.given) if late else set[int]()
    for b in waiting:
        absent.add(b)
    for b in buffers.given:
        if b in last or b in buffers.kept:
            live.add(b)
    bytes_alive: list[int] = []
    for at, (ipu, reads, makes) in enumerate(
        zip(wanted, buffers.reads, buffers.makes, strict=True)
    ):
        dying = [b for b in reads if last[b] == at and b not in buffers.kept]
        bytes_made = sum([live.size(b, ipu) for b in makes])
        spared = 0
        if buffers.in_place[at]:
            spared = min(bytes_made, max([live.size(b, ipu) for b in dying], default=0))
        alive = max(0, live.on(ipu) - spared + buffers.extra[at])
        for b in waiting.intersection(reads):
            waiting.remove(b)
            absent.add(b, -1)
        bytes_alive.append(alive - absent.on(ipu))
        for b in makes:
            if b in last or b in buffers.kept:
                live.add(b)
        for b in dying:
            live.add(b, -1)
    return bytes_alive
