"""Parameters in remote buffers, fetched to the IPUs that read them.

State that only the update reads is there for the update alone, and weights that are cast before the
micro-batches for that as well. Weights come to each position that reads them, for each micro-batch
or each group of them; so do those that were cast. Those that several IPUs read lie beside each of
these, handed over before the pipeline begins.
"""

from hloipu_compiler.lowering.core.offloading import (
    fetched,
    handed_over,
    is_large,
    only_updated,
    only_used_by,
    remote_constant,
    remote_variable,
    stored,
)
from hloipu_compiler.lowering.core.values import TileTensor
from hloipu_compiler.lowering.pipelines.draft import Making
from hloipu_runtime.program.loading import not_given
from hloipu_runtime.program.mapping import Sizes


class RemoteParameters:
    """Which parameters these are; `making.remote` knows where weights lie."""

    def __init__(self, making: Making) -> None:
        self.making = making
        entry, plan, wrapping = making.module.entry, making.pipelining, making.wrapping
        kinds = dict(enumerate(making.calls.arrays))
        kept = {pair.parameter for pair in wrapping.state}
        kept -= {parameter for parameter, _ in plan.per_micro_batch}
        self.state: frozenset[int] = frozenset()
        """That the update makes anew: optimizer state, and weights."""
        self.constants: frozenset[int] = frozenset()
        """Weights that nothing updates."""
        outside = (plan.update, plan.pre)
        only_there = only_updated(entry, outside, kinds, kept)
        if making.offloads.state:
            self.state |= only_there
        if making.offloads.weights:
            calls = making.in_pipeline
            self.state |= only_used_by(entry, (*calls, *outside), kinds, kept - only_there)
            self.constants = only_used_by(entry, calls, kinds, wrapping.constants)
        places = {number: entry.parameters[number] for number in self.state | self.constants}
        self.readers = {number: self._readers(place) for number, place in places.items()}
        """The IPUs to which they are brought for the positions that read them."""
        pre = entry.position.get(plan.pre, -1)
        self.read_before = frozenset(
            number for number in self.state if pre in entry.users[entry.parameters[number]]
        )
        """Of the state: what is read before the micro-batches."""

    def _readers(self, position: int) -> list[int]:
        """Return the IPUs to which a value of the entry is brought for the positions."""
        making = self.making
        entry = making.module.entry
        users = {entry.instructions[n].name for n in entry.users[position]}
        parts = (part for part in making.pipelining.parts if part.call in users)
        return sorted({making.ipu_for(part, position) for part in parts})

    def constant(self, number: int, kind: tuple[str, Sizes]) -> None:
        """Begin a weight that nothing updates, beside each IPU that reads it."""
        making, builder = self.making, self.making.builder
        value, array = builder.value(*kind), not_given(*kind)
        making.loaded.append(value)
        making.remote[number] = {}
        for ipu in self.readers[number]:
            builder.ipu = ipu
            making.remote[number][ipu] = remote_constant(builder, value, kind, array)

    def fetch_before(self, in_loop: dict[int, TileTensor]) -> None:
        """Write what brings state to tiles that is read before the micro-batches."""
        making, builder = self.making, self.making.builder
        for number in sorted(self.read_before):
            builder.origin = builder.variables[in_loop[number].variable].origin
            making.given[number] = fetched(builder, in_loop[number])

    def leave(self, in_loop: dict[int, TileTensor]) -> None:
        """Let go of that state, and take to remote memory what was made of weights."""
        making, builder = self.making, self.making.builder
        builder.forget(frozenset(in_loop[number].value for number in self.read_before))
        making.given.update({number: in_loop[number] for number in self.read_before})
        if not (making.offloads.weights and making.pipelining.pre):
            return
        entry = making.module.entry
        for position in entry.users[entry.position[making.pipelining.pre]]:
            element = making.calls.element(position)
            leaf = making.made[element]
            ipus = self._readers(position)
            if isinstance(leaf, TileTensor) and ipus and is_large((leaf.element_type, leaf.shape)):
                making.cast[element] = {ipu: self._stored_at(leaf, ipu) for ipu in ipus}

    def _stored_at(self, leaf: TileTensor, ipu: int) -> TileTensor:
        """Write the copy of what is on tiles to remote memory beside an IPU; return it there."""
        builder = self.making.builder
        builder.origin = builder.variables[leaf.variable].origin
        builder.ipu = ipu
        there = remote_variable(builder, (leaf.element_type, leaf.shape))
        storage = TileTensor(leaf.value, there, leaf.element_type, leaf.shape)
        stored(builder, leaf, storage)
        return storage

    def begin_update(self, in_loop: dict[int, TileTensor]) -> None:
        """Write what brings state to IPUs that read it beside its own; `in_loop`: as it begins."""
        builder = self.making.builder
        for number in sorted(self.state):
            there = in_loop[number]
            storage = builder.variables[there.variable].ipu
            builder.origin = builder.variables[there.variable].origin
            self.making.remote[number] = {
                ipu: there if ipu == storage else handed_over(builder, there, ipu)
                for ipu in self.readers[number]
            }
