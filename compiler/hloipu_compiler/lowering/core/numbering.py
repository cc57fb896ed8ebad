"""Builder's variables and values, and the nested blocks that take its steps."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from hloipu_compiler.lowering.core.values import TileTensor
from hloipu_compiler.planners.placing import mapping_of
from hloipu_compiler.planners.planned import Record
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program import steps as s
from hloipu_runtime.program.mapping import Mapping, Sizes, Tiles
from hloipu_runtime.program.program import Role, Value, Variable


@dataclass
class Scope:
    """One sequence under construction."""

    steps: list[s.Step] = field(default_factory=list)
    owned: set[int] = field(default_factory=set)
    """Variables that this block may overwrite."""
    copies: dict[tuple[int, Mapping, int, int], int] = field(default_factory=dict)
    """Value, mapping, IPU and how many products came before -> where the value was brought to."""
    brought: dict[tuple[int, int], int] = field(default_factory=dict)
    """Value and IPU -> a variable that it was brought to from another IPU."""
    repeats: bool = False
    """Whether the block runs again and again: what does not change is better done before."""
    is_function: bool = False
    """Whether it is a function's own, which sees constants and its arguments alone."""
    ipus: int = 0
    """That meet where an exchange leads from one to another; 0: all of the program."""


class Numbering:
    """What a program under construction is made of so far, for one machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.tile_count = machine.chip.tiles_per_ipu
        self.ipu = 0
        """That variables are made on."""
        self.ipus = 1
        """Of the program."""
        self.variables: list[Variable] = []
        self.values: list[Value] = []
        self._depth_of: list[int] = []
        """For each value, how many blocks lie around the one that makes it."""
        self._mappings: dict[Mapping, Mapping] = {}
        """Of variables, and their grids, each as one record: they are keys again and again."""
        self._grids: dict[Tiles, Tiles] = {}
        self.scopes: list[Scope] = [Scope()]
        self._next_tile = 0
        self.origin = ""
        """Name of the instruction that is being lowered."""
        self.plans: list[Record] | None = None
        """What planners chose, in the order of lowering, for a reader; None: there is none."""

    @property
    def scope(self) -> Scope:
        """The innermost block."""
        return self.scopes[-1]

    @contextmanager
    def block(self, *, repeats: bool = False, ipus: int = 0) -> Iterator[Scope]:
        """Write the steps of an inner block, which `repeats` or is run once.

        `ipus`: that work on it, where these are not those of the block around it.
        """
        self.scopes.append(Scope(repeats=repeats, ipus=ipus or self.scope.ipus))
        try:
            yield self.scope
        finally:
            self.scopes.pop()

    @contextmanager
    def function(self) -> Iterator[Scope]:
        """Write the steps of a function, which the caller's blocks do not contain."""
        self.scopes.append(Scope(is_function=True, ipus=self.scope.ipus))
        try:
            yield self.scope
        finally:
            self.scopes.pop()

    @property
    def seen_scopes(self) -> Iterator[Scope]:
        """The blocks whose copies can be read here, innermost first."""
        for scope in reversed(self.scopes):
            yield scope
            if scope.is_function:
                return

    def first_tile(self, width: int) -> int:
        """Return where the next narrow tensor begins, so that not all lie on tile 0."""
        first = self._next_tile
        self._next_tile = (first + width) % self.tile_count
        return first

    def value(self, element_type: str, shape: Sizes) -> int:
        """Return the number of a new value, made in the innermost block."""
        self.values.append(Value(element_type, shape, self.origin))
        self._depth_of.append(len(self.scopes) - 1)
        return len(self.values) - 1

    def loop_value(self, leaf: TileTensor) -> TileTensor:
        """Return what a loop's variable holds in each iteration: a value of a block to open."""
        value = self.value(leaf.element_type, leaf.shape)
        self._depth_of[value] += 1
        return TileTensor(value, leaf.variable, leaf.element_type, leaf.shape)

    def made_here(self, value: int, depth: int = -1) -> None:
        """Take a value that changes, or comes, with each iteration of a block as one made in it.

        Otherwise copies of what was known before the block would be made before it, too.
        """
        self._depth_of[value] = len(self.scopes) + depth

    def forget(self, values: frozenset[int]) -> None:
        """Have copies of values made anew from here on."""
        for scope in self.scopes:
            scope.copies = {key: x for key, x in scope.copies.items() if key[0] not in values}
            scope.brought = {key: x for key, x in scope.brought.items() if key[0] not in values}

    def variable(
        self,
        element_type: str,
        shape: Sizes,
        mapping: Mapping,
        role: Role = Role.TEMPORARY,
        *,
        depth: int = -1,
    ) -> int:
        """Return the number of a new variable, which one block, the innermost, may overwrite."""
        number = len(self.variables)
        name = f"{self.origin or role.value}.v{number}"
        known = self._mappings.get(mapping)
        if known is None:
            tiles = self._grids.setdefault(mapping.tiles, mapping.tiles)
            known = mapping if tiles is mapping.tiles else Mapping(tiles, mapping.spans)
            self._mappings[known] = known
        self.variables.append(
            Variable(name, element_type, shape, known, role, self.ipu, self.origin)
        )
        if role is not Role.CONSTANT:
            self.scopes[depth].owned.add(number)
        return number

    def default_mapping(self, element_type: str, shape: Sizes) -> Mapping:
        """Return the default mapping of a tensor."""
        bits = ELEMENT_TYPES[element_type].bits
        mapping = mapping_of(shape, bits, self.tile_count)
        count = mapping.tiles.count
        if 2 * count > self.tile_count:
            return mapping
        first = self.first_tile(count) % (self.tile_count - count + 1)
        tiles = Tiles(mapping.tiles.extents, mapping.tiles.strides, first)
        return Mapping(tiles, mapping.spans)

    def explains(self, make: Callable[[], Record]) -> None:
        """Keep a planner's record of its choice, if somebody will read it."""
        if self.plans is not None:
            self.plans.append(make())

    def emit(self, step: s.Step) -> None:
        """Append a step to the innermost block."""
        self.scope.steps.append(step)
