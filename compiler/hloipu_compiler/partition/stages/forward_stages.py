"""The stage of every forward op, from the cut of the loss's ancestors.

Other forward ops (what makes statistics, keys and counts for the next micro-batch) are where what
they read is first at hand. State that goes from micro-batch to micro-batch has one stage that reads
it and makes it anew: what is made of it alone is brought there, and sent on to others.
"""

from collections.abc import Mapping, Sequence

from hloipu_compiler.ir.graph import Computation
from hloipu_compiler.partition.training.marks import marked_stages
from hloipu_compiler.partition.training.reach import (
    Mask,
    ancestors,
    parameter_positions,
    result_positions,
)
from hloipu_compiler.partition.training.step_phases import FORWARD, FREE, Phases


def forward_stages(entry: Computation, phases: Phases, wanted: Mapping[int, int]) -> list[int]:
    """Return the stage of every forward op, at least 0, and -1 for all others.

    `wanted`: stages of forward ops; one that has none, or that the loss does not need and no mark
    puts anywhere, is where its operands are.
    """
    finding = _Finding(entry, phases, wanted)
    finding.place()
    for _ in range(len(finding.groups) + 1):  # groups may push each other up, and each but once
        if not finding.gather():
            break
        finding.place()
    return finding.found


class _Finding:
    """Stages so far, and where state of micro-batches holds ops."""

    def __init__(self, entry: Computation, phases: Phases, wanted: Mapping[int, int]) -> None:
        self.entry = entry
        self.phases = phases
        self.wanted = wanted
        self.found: list[int] = []
        self.pins: dict[int, int] = {}
        self.results = result_positions(entry)
        self.parameters = parameter_positions(entry)
        self.marked = marked_stages(entry)
        self.fixed = self._fixed()
        self.groups = self._groups()

    def _fixed(self) -> Mask:
        """Return the ops that a cut or a mark puts somewhere: those that the loss is made of."""
        loss = self.results[self.phases.loss] if self.phases.loss >= 0 else None
        if loss is None:
            return Mask(b"\1" * len(self.entry.instructions))
        is_fixed = ancestors(self.entry, [loss])
        for position in self.marked:
            is_fixed[position] = 1
        return is_fixed

    def _groups(self) -> list[list[int]]:
        """Return, for each array of such state, the ops that should be in one stage, ascending.

        They are those that read it, that which makes it anew, and all in between that are made of
        state alone: a key is split by many ops. Arrays that share one are in one stage.
        """
        groups: list[set[int]] = []
        alone = self._made_of_state() if self.phases.per_micro_batch else Mask()
        for pair in self.phases.per_micro_batch:
            new = self.results[pair.result]
            if new is None or self.phases.phase[new] != FORWARD:
                continue
            positions = self.parameters[pair.parameter]
            between = self._between(positions, new, alone)
            groups.append({*self._readers(positions), new, *between})
        return _joined(groups)

    def _made_of_state(self) -> Mask:
        """Return the forward ops that no data goes into."""
        phases, entry = self.phases, self.entry
        state = {*phases.per_micro_batch, *phases.updated, *phases.kept}
        known = {i for pair in state for i in self.parameters[pair.parameter]}
        is_made_of_state = Mask(len(entry.instructions))
        for position, op in enumerate(entry.instructions):
            if phases.phase[position] == FORWARD:
                is_made_of_state[position] = all(
                    is_made_of_state[i] or i in known or phases.phase[i] == FREE
                    for i in op.operands
                )
        return is_made_of_state

    def _between(self, positions: Sequence[int], new: int, alone: Mask) -> set[int]:
        """Return what new state is made of that is made of the old, and of no data."""
        after, waiting = set(positions), list(positions)
        while waiting:
            users = {i for i in self.entry.users[waiting.pop()] if alone[i]} - after
            after |= users
            waiting.extend(users)
        between, waiting = set[int](), [new]
        while waiting:
            operands = self.entry.instructions[waiting.pop()].operands
            more = {i for i in operands if i in after and alone[i]} - between
            between |= more
            waiting.extend(more)
        return between

    def _readers(self, positions: Sequence[int]) -> set[int]:
        """Return the forward ops that read state, directly or through what does not vary."""
        readers, waiting, seen = set[int](), list(positions), set(positions)
        while waiting:
            for user in self.entry.users[waiting.pop()]:
                if self.phases.phase[user] == FORWARD:
                    readers.add(user)
                elif self.phases.phase[user] == FREE and user not in seen:
                    seen.add(user)
                    waiting.append(user)
        return readers

    def place(self) -> None:
        stage_by_position = self.found = [-1] * len(self.entry.instructions)
        for position, op in enumerate(self.entry.instructions):
            if self.phases.phase[position] != FORWARD:
                continue
            if self._is_element(position):
                stage_by_position[position] = stage_by_position[op.operands[0]]
                continue
            least = max((stage_by_position[i] for i in op.operands), default=0)
            wanted = self.wanted.get(position, 0) if self.fixed[position] else 0
            stage_by_position[position] = max(self.pins.get(position, wanted), least, 0)

    def gather(self) -> bool:
        """Pin each group to one stage, the first that it can be in; return whether any op moves.

        Ops of the loss come down to it, others come up; one of the loss that would have to come up
        stays, and a marked one.
        """
        moved = False
        for group in self.groups:
            stage = self._first_stage(group)
            for position in group:
                here = self.found[position]
                stays = position in self.marked or (self.fixed[position] and here < stage)
                if here != stage and not stays and self.pins.get(position) != stage:
                    self.pins[position] = stage
                    moved = True
        return moved

    def _first_stage(self, group: Sequence[int]) -> int:
        """Return the highest stage of what a group reads from outside, and of what stays in it."""
        level: dict[int, int] = {}
        for position in group:
            operands = self.entry.instructions[position].operands
            level[position] = max((level.get(i, self.found[i]) for i in operands), default=0)
            if position in self.marked:
                level[position] = max(level[position], self.found[position])
        return max(0, *level.values())

    def _is_element(self, position: int) -> bool:
        """Whether an op takes an array out of a tuple that a stage makes: it stays there."""
        op = self.entry.instructions[position]
        return op.opcode == "get-tuple-element" and bool(self.phases.phase[op.operands[0]])


def _joined(groups: Sequence[set[int]]) -> list[list[int]]:
    """Return groups with those in one that have an op in common."""
    owner: dict[int, int] = {}
    joined: list[set[int]] = []
    for group in groups:
        whole = set(group)
        for number in sorted({owner[position] for position in group if position in owner}):
            whole |= joined[number]
            joined[number] = set()
        owner.update(dict.fromkeys(whole, len(joined)))
        joined.append(whole)
    return [sorted(group) for group in joined if group]
