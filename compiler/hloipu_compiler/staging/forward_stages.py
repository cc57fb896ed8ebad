"""Which stage every forward op belongs to, from the cut of those that the loss is made of.

Other forward ops (what makes statistics, keys and counts for the next micro-batch) are where what
they read is first at hand. State that goes from micro-batch to micro-batch has one stage that reads
it and makes it anew: what is made of it alone is brought there, and sent on to others.
"""

from collections.abc import Mapping

from hloipu_compiler.ir.graph import Computation
from hloipu_compiler.staging.marks import marked_stages
from hloipu_compiler.staging.phases import FORWARD, FREE, Phases
from hloipu_compiler.staging.reach import Mask, ancestors, parameter_positions, result_positions


def forward_stages(entry: Computation, phases: Phases, wanted: Mapping[int, int]) -> list[int]:
    """Return the stage of every forward op, at least 0, and -1 for all others.

    `wanted`: stages of forward ops; one that has none, or that the loss does not need and no mark
    puts anywhere, is where its operands are.
    """
    finding = _Finding(entry, phases, wanted)
    finding.run()
    while finding.gather():
        finding.run()
    return finding.found


class _Finding:
    """Stages so far, and where state of micro-batches holds ops."""

    def __init__(self, entry: Computation, phases: Phases, wanted: Mapping[int, int]) -> None:
        self.entry = entry
        self.phases = phases
        self.wanted = wanted
        self.found: list[int] = []
        results = result_positions(entry)
        loss = results[phases.loss] if phases.loss >= 0 else None
        marked = marked_stages(entry)
        self.fixed = Mask(len(entry.instructions))
        if loss is None:
            self.fixed = Mask(b"\1" * len(entry.instructions))
        else:
            self.fixed = ancestors(entry, [loss])
            for position in marked:
                self.fixed[position] = 1
        self.marked = marked
        self.pins: dict[int, int] = {}
        parameters = parameter_positions(entry)
        self.groups = []
        for pair in phases.per_micro_batch:
            made = results[pair.result]
            if made is not None and phases.phase[made] == FORWARD:
                self.groups.append([*self._readers(parameters[pair.parameter]), made])

    def _readers(self, positions: list[int]) -> list[int]:
        """Return the forward ops that read state, directly or through what does not vary."""
        found, waiting, seen = set(), list(positions), set(positions)
        while waiting:
            for user in self.entry.users[waiting.pop()]:
                if self.phases.phase[user] == FORWARD:
                    found.add(user)
                elif self.phases.phase[user] == FREE and user not in seen:
                    seen.add(user)
                    waiting.append(user)
        return sorted(found)

    def run(self) -> None:
        """Place all ops anew, in order."""
        found = self.found = [-1] * len(self.entry.instructions)
        for position, x in enumerate(self.entry.instructions):
            if self.phases.phase[position] != FORWARD:
                continue
            if x.opcode == "get-tuple-element" and self.phases.phase[x.operands[0]]:
                found[position] = found[x.operands[0]]
                continue
            least = max((found[i] for i in x.operands), default=0)
            wanted = self.wanted.get(position, 0) if self.fixed[position] else 0
            found[position] = max(self.pins.get(position, wanted), least, 0)

    def gather(self) -> bool:
        """Pin the readers of state to the stage that makes it anew; return whether any moves.

        Ops of the loss come down to it, others come up; one of the loss that would have to come up,
        or a marked one, stays.
        """
        moved = False
        for group in self.groups:
            floors = [self._floor(position) for position in group]
            stage = max(floors)
            for position in group:
                here = self.found[position]
                stays = position in self.marked or (self.fixed[position] and here < stage)
                if here != stage and not stays and self.pins.get(position) != stage:
                    self.pins[position] = stage
                    moved = True
        return moved

    def _floor(self, position: int) -> int:
        """Return the lowest stage that an op can be at: of what it reads."""
        if position in self.marked:
            return self.found[position]
        operands = self.entry.instructions[position].operands
        return max((self.found[i] for i in operands), default=0) if operands else 0
