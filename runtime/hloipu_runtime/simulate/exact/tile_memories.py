"""Allocation of tile memories: made at first use, reused after the last."""

from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import VariableId
from hloipu_runtime.simulate.exact.moving import NOTHING_MOVES, MovingMemory, moving_variables
from hloipu_runtime.simulate.exact.private_variables import private_variables
from hloipu_runtime.simulate.exact.shared_buffers import NO_SHARED_BUFFERS, shared_buffers
from hloipu_runtime.simulate.exact.storage import (
    TileStorage,
    allocate,
    moved,
    scatter_whole,
    within,
)
from hloipu_runtime.simulate.run.pool import MemoryPool, Scratch

KEPT_BYTES = 1 << 30
"""With more memory than this, an engine keeps none from run to run, nor what is prepared for it."""


class TileMemories:
    """Memories of variables; without poison they stay from run to run, for prepared steps."""

    def __init__(self, program: Program, *, poison: bool) -> None:
        self.program = program
        self.poison = poison
        self.alive: dict[VariableId, TileStorage] = {}
        """Of variables between their first and their last use."""
        self.state = frozenset(port.variable for port in program.state)
        """Variables that stay from run to run."""
        self.may_share = False
        """Whether steps are prepared for the first time, in order: later ones may take over memory
        that earlier ones no longer use."""
        self._private = private_variables(program)
        self._moving = NOTHING_MOVES if poison else moving_variables(program, self._private)
        self._shared = (
            NO_SHARED_BUFFERS
            if poison
            else shared_buffers(program, self._private, self._moving.all)
        )
        self.given_away = self._moving.given - self._shared.places.keys()
        """Results that the host will keep where they are made."""
        self.moving = self.given_away | self._moving.lent
        """Variables whose memory is elsewhere in each run."""
        self._made: dict[VariableId, TileStorage] = {}
        """Memories that prepared steps refer to; none with poison."""
        self._pool = MemoryPool()
        self._apart_bytes = 0
        """Of memories that are not in the pool."""
        self.scratch = Scratch()

    @property
    def bytes(self) -> int:
        """Of all memories."""
        return self._pool.bytes + self._apart_bytes + self.scratch.bytes

    @property
    def are_too_many(self) -> bool:
        """Whether they take more than is kept from run to run."""
        return self.bytes > KEPT_BYTES

    def memory(self, variable: VariableId) -> TileStorage:
        """Return a variable's memory, made on the first request."""
        storage = self.alive.get(variable)
        if storage is None:
            storage = self._made.get(variable)
            if storage is None:
                storage = self._allocated(variable)
            self.alive[variable] = storage
        return storage

    def begin(self, variable: VariableId) -> None:
        """Give a result that the host will keep new memory, before its first use in a run."""
        given = self.given(variable)
        if given is not None:
            given.begin()

    def lent(self, variable: VariableId) -> MovingMemory | None:
        """Return the memory of a parameter that is read where the host has it, else None."""
        return self.memory(variable).moving if variable in self._moving.lent else None

    def given(self, variable: VariableId) -> MovingMemory | None:
        """Return the memory of a result that the host will keep, else None."""
        return self.memory(variable).moving if variable in self.given_away else None

    def lies_in_another(self, variable: VariableId) -> bool:
        """Whether a variable has no memory of its own, and need not be written."""
        return variable in self._shared.places

    def with_memories(self, variables: frozenset[VariableId]) -> frozenset[VariableId]:
        """Return variables, and those in whose memory some of them lie."""
        places = self._shared.places
        return variables | {places[v].memory for v in variables if v in places}

    def drop(self, variable: VariableId) -> None:
        """Take a variable's memory away after its last use; constants stay for later runs."""
        memory = self.alive.pop(variable, None)
        if memory is None or self.poison or variable in self.program.constants:
            return
        if self.may_share and memory.memory is not None and memory.moving is None:
            self._pool.give_back(memory.memory)

    def end_run(self) -> None:
        """Take away what does not stay from run to run."""
        for variable in self.moving & self._made.keys():
            memory = self._made[variable].moving
            if memory is not None:
                memory.leave()
        for variable in [v for v in self.alive if v not in self.state]:
            del self.alive[variable]

    def forget(self) -> None:
        """Let go of all memory but the state's."""
        self._made = dict(self.alive)
        self._pool, self._apart_bytes, self.scratch = MemoryPool(), 0, Scratch()

    def load_again(self, variable: VariableId) -> None:
        """Write a constant, which the program wrote over in the run before, once more."""
        if variable in self._made:
            scatter_whole(self._made[variable], self.program.constants[variable][1])

    def _allocated(self, variable: VariableId) -> TileStorage:
        place = self._shared.places.get(variable)
        if place is not None:
            record = self.program.variables[variable]
            inside = self._made[variable] = within(self.memory(place.memory), place, record)
            return inside
        constant = self.program.constants.get(variable)
        record, shared = self.program.variables[variable], variable not in self._private
        others = self._shared.reaches.get(variable, (0, 0))
        if variable in self.moving:
            storage = moved(record, variable, others, is_lent=variable in self._moving.lent)
        elif self.may_share and not self.poison and constant is None and variable not in self.state:
            storage = allocate(record, shared=shared, take=self._pool.take, others=others)
        else:
            storage = allocate(record, shared=shared, others=others)
            self._apart_bytes += storage.merged.nbytes
        if constant is not None:
            scatter_whole(storage, constant[1])
        elif self.poison:
            storage.poison()
        if not self.poison:
            self._made[variable] = storage
        return storage
