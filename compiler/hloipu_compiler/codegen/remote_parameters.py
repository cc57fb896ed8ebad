"""Parameters of a step that is cut whose arrays lie in remote buffers, at the IPUs that read them.

State that only the update reads is there for the update alone. Weights come to each position that
reads them, for each micro-batch or each group of them. Those that several IPUs read lie beside each
of these, handed over before the pipeline begins.
"""

from hloipu_compiler.codegen.leaves import Held
from hloipu_compiler.codegen.offloading import (
    handed_over,
    only_updated,
    only_used_by,
    remote_constant,
)
from hloipu_compiler.codegen.pipeline_making import Making
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
        only_there = only_updated(entry, plan.update, kinds, kept)
        if making.offloads.state:
            self.state |= only_there
        if making.offloads.weights:
            calls = making.in_pipeline
            self.state |= only_used_by(entry, (*calls, plan.update), kinds, kept - only_there)
            self.constants = only_used_by(entry, calls, kinds, wrapping.constants)
        self.readers = {number: self._readers(number) for number in self.state | self.constants}
        """The IPUs of the positions that read them."""

    def _readers(self, number: int) -> list[int]:
        making = self.making
        entry = making.module.entry
        users = {entry.instructions[n].name for n in entry.users[entry.parameters[number]]}
        return sorted({making.ipus[name] for name in users & making.in_pipeline})

    def constant(self, number: int, kind: tuple[str, Sizes]) -> None:
        """Begin a weight that nothing updates, beside each IPU that reads it."""
        making, builder = self.making, self.making.builder
        value, array = builder.value(*kind), not_given(*kind)
        making.loaded.append(value)
        making.remote[number] = {}
        for ipu in self.readers[number]:
            builder.ipu = ipu
            making.remote[number][ipu] = remote_constant(builder, value, kind, array)

    def begin_update(self, turns: dict[int, Held]) -> None:
        """Write what brings state to IPUs that read it beside its own; `turns`: as it begins."""
        builder = self.making.builder
        for number in sorted(self.state):
            there = turns[number]
            home = builder.variables[there.variable].ipu
            builder.origin = builder.variables[there.variable].origin
            self.making.remote[number] = {
                ipu: there if ipu == home else handed_over(builder, there, ipu)
                for ipu in self.readers[number]
            }
