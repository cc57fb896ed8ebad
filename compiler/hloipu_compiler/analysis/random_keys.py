"""Finds parameters that are keys of random numbers, by the use of their bits.

A key goes through ops that move its words to a generator: `rng-bit-generator`, or Threefry as JAX
writes it out, known by the word that its key schedule mixes in. What comes out of there, or of any
exclusive or, is mixed: it may become anything. Words of a key that are compared, converted to
floats, used as an index, or reach a result after additions alone are no key's.

Every array of the parameters has one bit, and so has every generator where something calls it; a
value has one mask for each of the ways in which it may depend on them. Calls, fusions, branches and
loops are followed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hloipu_compiler.analysis.trip_count import trip_count
from hloipu_compiler.ir.annotations import is_identity
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.shapes import ArrayShape, Shape, TupleShape

THREEFRY_WORD = 0x1BD11BDA
"""Salmon et al.: Parallel Random Numbers: As Easy as 1, 2, 3 (SC 2011), Random123's `threefry.h`:
SKEIN_KS_PARITY32, exclusive-ored with the words of a key."""
_MOVING = frozenset(
    "copy reshape bitcast bitcast-convert slice concatenate transpose broadcast reverse "
    "opt-barrier copy-start copy-done add-dependency "
    "shift-left shift-right-logical shift-right-arithmetic and or not".split()
)
"""Ops that leave words words. Seeds are made keys by shifts and masks, rotations by shifts."""
_OF_FIRST = frozenset({"dynamic-slice", "gather"})
_CALLS = frozenset({"call", "fusion", "async-start"})
_MOST_ITERATIONS = 64
"""Turns after which a loop's masks are looked at as they are; they settle in a few."""
Site = tuple[str, ...]
"""Names of the instructions that call each other, outermost first."""


class Masks(NamedTuple):
    """On which arrays of the parameters a value depends, and how: a bit for each."""

    words: int = 0
    """It has words of them as they are."""
    added: int = 0
    """It has words with others added."""
    mixed: int = 0
    """It is made of them in whatever other way."""
    pairs: int = 0
    """It is the exclusive or of two words, as in a key schedule; `mixed` has these too."""

    def __or__(self, other: "Masks") -> "Masks":
        return Masks(self[0] | other[0], self[1] | other[1], self[2] | other[2], self[3] | other[3])

    @property
    def bare(self) -> int:
        """Parameters that it depends on unmixed."""
        return self.words | self.added

    @property
    def all(self) -> int:
        """All that it depends on."""
        return self.words | self.added | self.mixed


Leaves = tuple[Masks, ...]
"""Of the arrays of a value, tuples walked in order."""
_NONE = Masks()


@dataclass
class KeyWalk:
    """Uses of the parameters' arrays in a module; numbers count arrays."""

    module: Module
    together: Sequence[int] = ()
    """Of each array that is in pieces, the bits of all pieces: words of one key."""
    replica_bit: int = 0
    """The bit that stands for `replica-id`, behind those of the parameters."""
    seeds: int = 0
    """Arrays that reach a generator as words."""
    spoiled: int = 0
    """Arrays whose words are used for something else."""
    results: Leaves = ()
    """Of the entry."""
    _generators: dict[Site, int] = field(default_factory=dict)
    """Each generator -> its bit."""
    _keys: dict[Site, int] = field(default_factory=dict)
    """Each generator -> what its key depends on, other generators too."""
    _known: dict[tuple[str, Leaves, Site], Leaves] = field(default_factory=dict)
    _drawing: frozenset[str] = frozenset()
    """Computations with a generator in them, or in what they call."""
    _operands: dict[str, Leaves] = field(default_factory=dict)
    """Of the entry's instructions, by name."""

    def __post_init__(self) -> None:
        entry = self.module.entry
        parameter_masks, number = [], 0
        for position in entry.parameters:
            shapes = _leaves(entry.instructions[position].shape)
            parameter_masks.append(
                tuple(_born(shape, number + n) for n, shape in enumerate(shapes))
            )
            number += len(shapes)
        self.replica_bit = 1 << number
        self._drawing = _drawing_computations(self.module)
        self.results = self._values(entry, parameter_masks, ())

    @property
    def draws(self) -> dict[Site, int]:
        """On which parameters, and `replica-id`, the key of each generator depends.

        Left out are those whose bits are the keys of others.
        """
        return {
            site: mask & (2 * self.replica_bit - 1)
            for site, mask in self._keys.items()
            if not any(
                other_generators & self._generators[site]
                for other, other_generators in self._keys.items()
                if other != site
            )
        }

    def changes(self, parameter: int, result: int) -> bool:
        """Whether new state is more than the old one's words."""
        return self.results[result] != Masks(words=1 << parameter)

    def operands(self, call: str) -> list[Masks]:
        """Return what each operand of an instruction of the entry depends on, tuples as one."""
        entry = self.module.entry
        return [_joined(self._operands[entry.instructions[i].name]) for i in entry[call].operands]

    def _values(self, computation: Computation, arguments: Sequence[Leaves], site: Site) -> Leaves:
        """Return what a computation's result depends on, from what its parameters do.

        `site`: what calls it.
        """
        of_site = site if computation.name in self._drawing else ()
        key = computation.name, tuple(masks for leaves in arguments for masks in leaves), of_site
        if key in self._known:
            return self._known[key]
        leaves_by_position: list[Leaves] = []
        for instruction in computation.instructions:
            operands = [leaves_by_position[i] for i in instruction.operands]
            leaves_by_position.append(
                self._value(
                    computation, instruction, arguments, operands, (*of_site, instruction.name)
                )
            )
        if not site:
            self._operands = {
                op.name: leaves
                for op, leaves in zip(computation.instructions, leaves_by_position, strict=True)
            }
        self._known[key] = leaves_by_position[computation.root]
        return leaves_by_position[computation.root]

    def _value(
        self,
        computation: Computation,
        instruction: Instruction,
        arguments: Sequence[Leaves],
        operands: Sequence[Leaves],
        site: Site,
    ) -> Leaves:
        if instruction.parameter_number >= 0:
            return arguments[instruction.parameter_number]
        match instruction.opcode:
            case "tuple":
                return tuple(leaf for leaves in operands for leaf in leaves)
            case "get-tuple-element":
                tuple_shape = computation.instructions[instruction.operands[0]].shape
                if not isinstance(tuple_shape, TupleShape):
                    return operands[0]
                index = instruction.attributes.integer("index")
                first = sum(len(_leaves(element)) for element in tuple_shape.elements[:index])
                return operands[0][first : first + len(_leaves(instruction.shape))]
            case "while":
                return self._loop(computation, instruction, operands[0], site)
            case "conditional":
                self._use(operands[0])
                results = [
                    self._values(self.module.computation[name], [leaves], (*site, name))
                    for name, leaves in zip(
                        instruction.attributes.called, operands[1:], strict=True
                    )
                ]
                return tuple(_joined(leaves) for leaves in zip(*results, strict=True))
            case opcode if opcode in _CALLS and len(instruction.attributes.called) == 1:
                called = self.module.computation[instruction.attributes.called[0]]
                return self._values(called, operands, site)
        masks = self._plain(computation, instruction, operands, site)
        return (masks,) * len(_leaves(instruction.shape))

    def _loop(
        self, computation: Computation, instruction: Instruction, begun: Leaves, site: Site
    ) -> Leaves:
        """Return what a loop leaves: what its last iteration does, where it has one for certain."""
        body = self.module.computation[instruction.attributes.text("body")]
        carried = begun
        for _ in range(_MOST_ITERATIONS):
            after = self._values(body, [carried], site)
            joined = tuple(a | b for a, b in zip(carried, after, strict=True))
            if joined == carried:
                break
            carried = joined
        else:
            self._use(carried)
        condition = self.module.computation[instruction.attributes.text("condition")]
        self._use(self._values(condition, [carried], (*site, condition.name)))
        return after if (trip_count(self.module, computation, instruction) or 0) > 0 else carried

    def _plain(
        self,
        computation: Computation,
        instruction: Instruction,
        operands: Sequence[Leaves],
        site: Site,
    ) -> Masks:
        """Return what an op's arrays depend on, that calls nothing or regions of scalars alone."""
        values = [_joined(leaves) for leaves in operands]
        every = _joined(values)
        is_moved = instruction.opcode in _MOVING or is_identity(instruction)
        is_moved |= instruction.opcode == "convert" and _is_integer(instruction.shape)
        if is_moved and _is_integer(instruction.shape):
            return every
        match instruction.opcode:
            case "rng-bit-generator":
                self.seeds |= every.words
                return Masks(mixed=every.all | self._generator(site, every))
            case "xor":
                if any(_is_word(computation, i) for i in instruction.operands):
                    self.seeds |= every.pairs | every.words
                    return Masks(mixed=every.all | self._generator(site, every))
                if all(value.words for value in values):
                    pairs = self._with_pieces(values[0].words)
                    pairs &= self._with_pieces(values[-1].words)
                    return Masks(mixed=every.all, pairs=pairs)
            case "add" if _is_integer(instruction.shape):
                pure = 0
                for value in values:
                    pure |= value.mixed & ~value.bare
                return Masks(added=every.bare & ~pure, mixed=every.mixed | (every.bare & pure))
            case "select":
                self._use([values[0]])
                return _joined(values[1:]) | Masks(mixed=values[0].all)
            case opcode if opcode in _OF_FIRST:
                self._use(values[1:])
                return values[0] | Masks(mixed=_joined(values[1:]).all)
            case "dynamic-update-slice":
                self._use(values[2:])
                return _joined(values[:2]) | Masks(mixed=_joined(values[2:]).all)
            case "replica-id":
                return Masks(mixed=self.replica_bit)
            case _:
                self._use(values)
        return Masks(mixed=every.all)

    def _with_pieces(self, mask: int) -> int:
        for pieces in self.together:
            if mask & pieces:
                mask |= pieces
        return mask

    def _generator(self, site: Site, key: Masks) -> int:
        """Note a generator and what its key depends on; return its bit."""
        bit = self._generators.setdefault(site, self.replica_bit << (1 + len(self._generators)))
        self._keys[site] = self._keys.get(site, 0) | key.all
        return bit

    def _use(self, values: Sequence[Masks]) -> None:
        """Note that words go where no key's do."""
        self.spoiled |= _joined(values).bare


def draws_random_bits(module: Module) -> bool:
    """Whether a module has a generator that `KeyWalk` knows; without one none need be made."""
    return any(_draws(computation) for computation in module.computations)


def _draws(computation: Computation) -> bool:
    return any(
        op.opcode == "rng-bit-generator" or (op.opcode == "constant" and _is_word(computation, i))
        for i, op in enumerate(computation.instructions)
    )


def _drawing_computations(module: Module) -> frozenset[str]:
    """Return the names of computations with a generator in them, or in what they call."""
    drawing: set[str] = set()
    for computation in module.computations:  # callees come first
        called = {name for op in computation.instructions for name in op.attributes.called}
        if _draws(computation) or not drawing.isdisjoint(called):
            drawing.add(computation.name)
    return frozenset(drawing)


def key_numbers(walk: KeyWalk, state: Mapping[int, int]) -> frozenset[int]:
    """Return the arrays of the parameters that are keys and nothing else.

    `state`: the result that each array of state comes out as.
    """
    keys = set()
    numbers = [n for n in range(walk.replica_bit.bit_length() - 1) if walk.seeds >> n & 1]
    for number in numbers:
        bit = 1 << number
        if walk.spoiled & bit:
            continue
        own_result = state.get(number)
        other_results = [masks for n, masks in enumerate(walk.results) if n != own_result]
        if own_result is not None and walk.results[own_result].added & bit:
            continue
        if not any(masks.bare & bit for masks in other_results):
            keys.add(number)
    return frozenset(keys)


def _born(shape: ArrayShape | None, number: int) -> Masks:
    bit = 1 << number
    return Masks(words=bit) if shape is not None and _is_integer(shape) else Masks(mixed=bit)


def _joined(values: Sequence[Masks]) -> Masks:
    joined = _NONE
    for value in values:
        if value is not joined:
            joined = joined | value
    return joined


def _leaves(shape: Shape) -> list[ArrayShape | None]:
    """Return the arrays of a shape; None for what is none."""
    if isinstance(shape, TupleShape):
        return [leaf for element in shape.elements for leaf in _leaves(element)]
    if isinstance(shape, ArrayShape):
        return [] if shape.element_type.name == "token" else [shape]
    return [None]


def _is_integer(shape: Shape | None) -> bool:
    leaves = _leaves(shape) if shape is not None else []
    return all(
        leaf is not None and leaf.element_type.is_integer and leaf.element_type.bits in (32, 64)
        for leaf in leaves
    )


def _is_word(computation: Computation, position: int) -> bool:
    """Whether a value is the word of Threefry's key schedule."""
    instruction = computation.instructions[position]
    while instruction.opcode in ("broadcast", "reshape", "copy", "bitcast"):
        instruction = computation.instructions[instruction.operands[0]]
    if instruction.opcode != "constant" or instruction.literal is None:
        return False
    if instruction.literal.array is not None:
        array = instruction.literal.array
        return bool(array.size) and bool((array == THREEFRY_WORD).all())
    return instruction.literal.text.strip() == str(THREEFRY_WORD)
