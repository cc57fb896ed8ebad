"""Programs for tests: a small writer, and programs drawn at random that the verifier proves."""

from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from random import Random

import numpy as np

from hloipu_runtime.codelets.codelet import Tensor
from hloipu_runtime.codelets.elementwise import Elementwise
from hloipu_runtime.codelets.expression import Expression, Node
from hloipu_runtime.codelets.move import Copy
from hloipu_runtime.kernels.storage import storage_dtype
from hloipu_runtime.program.law import required_spans
from hloipu_runtime.program.mapping import Box, Mapping, Sizes, Span, Tiles, whole, whole_box
from hloipu_runtime.program.program import Program, Role, Value, Variable
from hloipu_runtime.program.steps import (
    Call,
    Carried,
    ComputeSet,
    Definition,
    Exchange,
    If,
    Merged,
    Operand,
    Parallel,
    Piece,
    Repeat,
    RepeatWhile,
    Sequence,
    Step,
    StreamIn,
    StreamOut,
    Switch,
    Sync,
    Transfer,
    VertexGroup,
)
from hloipu_runtime.program.uses import written

Held = dict[int, int]
"""What each variable holds: variable -> value."""


def rows(parts: int, size: int, rank: int = 1, *, first: int = 0, copies: int = 1) -> Mapping:
    """Return a mapping that splits dimension 0 into blocks of rows, the rest whole.

    `size` is a block's; `copies` tiles next to each other hold each block.
    """
    axes = [(parts, copies)] * (parts > 1) + [(copies, 1)] * (copies > 1)
    tiles = Tiles(tuple(n for n, _ in axes), tuple(s for _, s in axes), first)
    span = Span(0, size, 0, size) if parts > 1 else whole(size)
    return Mapping(tiles, (span,) * (rank > 0))


def blocks(shape: Sizes, parts: Sizes, first: int = 0) -> Mapping:
    """Return a mapping that splits each dimension into so many parts; tiles in row-major order."""
    extents = tuple(n for n in parts if n > 1)
    strides = tuple(prod(extents[k + 1 :]) for k in range(len(extents)))
    spans, axis = [], 0
    for size, count in zip(shape, parts, strict=True):
        if count > 1:
            block = -(-size // count)
            spans.append(Span(axis, block, 0, block))
            axis += 1
        else:
            spans.append(whole(size))
    return Mapping(Tiles(extents, strides, first), tuple(spans))


@dataclass
class ProgramBuilder:
    """Numbers variables and values and appends steps; `held` follows what variables hold."""

    ipus: int = 1
    variables: list[Variable] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    constants: dict[int, tuple[int, np.ndarray]] = field(default_factory=dict)
    functions: dict[str, Sequence] = field(default_factory=dict)
    held: Held = field(default_factory=dict)
    blocks: list[list[Step]] = field(default_factory=lambda: [[]])

    def variable(
        self,
        shape: Sizes,
        mapping: Mapping,
        *,
        kind: str = "f32",
        role: Role = Role.TEMPORARY,
        ipu: int = 0,
    ) -> int:
        number = len(self.variables)
        name = f"v{number}"
        self.variables.append(Variable(name, kind, shape, mapping, role, ipu, f"x{number}"))
        return number

    def value_like(self, variable: int) -> int:
        x = self.variables[variable]
        self.values.append(Value(x.element_type, x.shape))
        return len(self.values) - 1

    def constant(self, shape: Sizes, mapping: Mapping, ipu: int = 0) -> int:
        variable = self.variable(shape, mapping, role=Role.CONSTANT, ipu=ipu)
        value = self.value_like(variable)
        self.constants[variable] = (value, np.zeros(shape, storage_dtype("f32")))
        self.held[variable] = value
        return variable

    def emit(self, step: Step) -> None:
        self.blocks[-1].append(step)

    @contextmanager
    def block(self) -> Iterator[list[Step]]:
        """Collect the steps of an inner sequence."""
        self.blocks.append([])
        try:
            yield self.blocks[-1]
        finally:
            self.blocks.pop()

    def stream_in(self, variable: int) -> int:
        value = self.held[variable] = self.value_like(variable)
        self.emit(StreamIn(f"in{variable}", variable, value))
        return variable

    def stream_out(self, variable: int) -> None:
        self.emit(StreamOut(f"out{variable}", variable, self.held[variable]))

    def add(self, inputs: SequenceOf[int], target: int) -> int:
        """Compute the sum of variables of one shape and mapping, or a copy of one."""
        x = self.variables[target]
        kinds = tuple(self.variables[v].element_type for v in inputs)
        if len(inputs) == 1:
            codelet: Copy | Elementwise = Copy()
        else:
            node = Node("add", (0, 1), kinds[0])
            axes = tuple(range(len(x.shape)))
            codelet = Elementwise(Expression(kinds, (node,), (2,)), (axes, axes), len(axes))
        tensors = [Tensor(x.element_type, x.shape)] * len(inputs)
        result = Tensor(x.element_type, x.shape)
        needed = required_spans(
            codelet.indexing(tensors, [result]),
            [x.mapping.spans],
            [x.shape],
            [x.shape] * len(inputs),
        )
        assert not isinstance(needed, str), needed
        reads = tuple(self.held[v] for v in inputs)
        value = self.held[target] = self.value_like(target)
        group = VertexGroup(
            codelet,
            x.mapping.tiles,
            tuple(Operand(v, spans) for v, spans in zip(inputs, needed, strict=True)),
            (Operand(target, x.mapping.spans),),
            reads,
            (value,),
            f"add{value}",
        )
        self.emit(ComputeSet((group,)))
        return target

    def copy(self, source: int, target: int) -> int:
        """Bring a whole variable to another of its shape."""
        shape = self.variables[target].shape
        return self._move([(source, whole_box(shape))], target, None, self.held[source])

    def place(self, pieces: SequenceOf[tuple[int, Box]], target: int, *, keep: bool) -> int:
        """Copy boxes of other variables of the same shape; `keep` what the target has elsewhere."""
        base = self.held[target] if keep else None
        return self._move(pieces, target, base, self.value_like(target))

    def _move(
        self, pieces: SequenceOf[tuple[int, Box]], target: int, base: int | None, value: int
    ) -> int:
        x = self.variables[target]
        zeros = (0,) * len(x.shape)
        grid = x.mapping.tiles
        transfers = tuple(
            Transfer(
                source,
                target,
                grid,
                whole_box(grid.extents),
                x.mapping.spans,
                box,
                zeros,
                self.variables[source].shape,
                self.held[source],
            )
            for source, box in pieces
        )
        made = tuple(
            Piece(self.held[source], self.variables[source].shape, box, zeros)
            for source, box in pieces
        )
        self.emit(Exchange(transfers, (Definition(target, value, base, made),), f"move{value}"))
        self.held[target] = value
        return target

    def program(self) -> Program:
        return Program(
            "drawn",
            "tiny",
            self.ipus,
            tuple(self.variables),
            tuple(self.values),
            self.constants,
            Sequence(tuple(self.blocks[0])),
            self.functions,
        )


def random_mapping(draw: Random, shape: Sizes, tiles: int) -> Mapping:
    """Return parts on a random grid: some dimensions split, some blocks held by several tiles."""
    parts: list[int] = []
    room = tiles
    for size in shape:
        count = draw.choice([n for n in (1, 1, 2, 3, 4) if n <= min(room, size)])
        count = -(-size // -(-size // count))
        parts.append(count)
        room //= count
    made = blocks(shape, tuple(parts))
    extents, strides = made.tiles.extents, made.tiles.strides
    if room > 1 and draw.random() < 0.3:
        copies = draw.randint(2, room)
        extents, strides = (*extents, copies), (*(s * copies for s in strides), 1)
    room = tiles - Tiles(extents, strides).last
    return Mapping(Tiles(extents, strides, draw.randrange(room)), made.spans)


class RandomProgram:
    """Draws steps of all kinds; every program is one that the verifier proves."""

    def __init__(self, draw: Random, tiles: int, ipus: int = 1) -> None:
        self.draw = draw
        self.tiles = tiles
        self.make = ProgramBuilder(ipus)
        self.shapes: list[Sizes] = [(), (5,), (7, 3), (2, 4, 3)]

    def new(self, shape: Sizes, ipu: int = 0, role: Role = Role.TEMPORARY) -> int:
        mapping = random_mapping(self.draw, shape, self.tiles)
        return self.make.variable(shape, mapping, ipu=ipu, role=role)

    def known(self, shape: Sizes, ipu: int) -> list[int]:
        variables = self.make.variables
        return [
            v
            for v in self.make.held
            if variables[v].ipu == ipu
            and variables[v].shape == shape
            and variables[v].element_type == "f32"
        ]

    def start(self) -> None:
        """Begin with parameters, state and a constant of every shape on every IPU."""
        for ipu in range(self.make.ipus):
            for shape in self.shapes:
                self.make.constant(shape, random_mapping(self.draw, shape, self.tiles), ipu)
                role = self.draw.choice((Role.STATE, Role.PARAMETER))
                self.make.stream_in(self.new(shape, ipu, role))

    def steps(self, count: int, level: int, ipu: int) -> None:
        for _ in range(count):
            kinds = [self.compute] * 5 + [self.move] * 3 + [self.mend] * 2 + [self.hand_out]
            if level:
                kinds += [self.repeat, self.repeat_while, self.branches, self.call]
            self.draw.choice(kinds)(level, ipu)

    def writable(self, shape: Sizes, ipu: int) -> list[int]:
        """Return variables that may be given another value here; their old one is forgotten."""
        variables = self.make.variables
        return [v for v in self.known(shape, ipu) if variables[v].role is Role.TEMPORARY]

    def target(self, like: int) -> int:
        """Return a variable with the shape and mapping of another: a new one, or an old one."""
        x = self.make.variables[like]
        same = [
            v
            for v in self.writable(x.shape, x.ipu)
            if self.make.variables[v].mapping == x.mapping and v != like
        ]
        if same and self.draw.random() < 0.4:
            return self.draw.choice(same)
        return self.make.variable(x.shape, x.mapping, ipu=x.ipu)

    def compute(self, level: int, ipu: int) -> None:
        shape = self.draw.choice(self.shapes)
        first = self.draw.choice(self.known(shape, ipu))
        if first in self.writable(shape, ipu) and self.draw.random() < 0.3:
            self.make.add([first], first)
            return
        second = self.target(first)
        if second not in self.make.held:
            self.make.copy(self.draw.choice(self.known(shape, ipu)), second)
        self.make.add(
            [first, second], self.make.variable(shape, self.make.variables[first].mapping, ipu=ipu)
        )

    def move(self, level: int, ipu: int) -> None:
        shape = self.draw.choice(self.shapes)
        source = self.draw.choice(self.known(shape, ipu))
        others = [v for v in self.writable(shape, ipu) if v != source]
        if others and self.draw.random() < 0.3:
            self.make.copy(source, self.draw.choice(others))
        else:
            self.make.copy(source, self.new(shape, ipu))

    def mend(self, level: int, ipu: int) -> None:
        shape = self.draw.choice(self.shapes)
        targets = self.writable(shape, ipu)
        if not targets:
            return
        target = self.draw.choice(targets)
        sources = [v for v in self.known(shape, ipu) if v != target]
        box = []
        for size in shape:
            low = self.draw.randrange(size)
            box.append((low, self.draw.randint(low + 1, size)))
        self.make.place([(self.draw.choice(sources), tuple(box))], target, keep=True)

    def hand_out(self, level: int, ipu: int) -> None:
        self.make.emit(Sync())
        self.make.stream_out(self.draw.choice(self.known(self.draw.choice(self.shapes), ipu)))

    def _carried(self, ipu: int) -> list[int]:
        found = [v for shape in self.shapes for v in self.writable(shape, ipu)]
        return sorted(self.draw.sample(found, min(len(found), self.draw.randint(0, 3))))

    def _loop(
        self, level: int, ipu: int, *, condition: bool
    ) -> tuple[list[Step], list[Step], tuple[Carried, ...], int]:
        """Write a body in which only what is carried is overwritten, and a condition before it."""
        make = self.make
        carried = self._carried(ipu)
        outside = dict(make.held)
        frozen = {v for v in outside if v not in carried}
        initial = {v: make.held[v] for v in carried}
        turn = {v: make.value_like(v) for v in carried}
        make.held.update(turn)
        hidden = self._hide(frozen)
        predicate = -1
        with make.block() as test:
            if condition:
                predicate = self.predicate(ipu)
                hidden_too = self._hide(set(carried))
                self.steps(self.draw.randint(0, 2), 0, ipu)
                self._show(hidden_too)
        with make.block() as body:
            self.steps(self.draw.randint(1, 4), level - 1, ipu)
            for v in carried:
                make.add([v], v)
            following = {v: make.held[v] for v in carried}
        self._show(hidden)
        final = {v: make.value_like(v) for v in carried}
        make.held.clear()
        make.held.update(outside)
        make.held.update(final)
        items = tuple(Carried(v, initial[v], turn[v], following[v], final[v]) for v in carried)
        return test, body, items, predicate

    def _hide(self, variables: set[int]) -> dict[int, Variable]:
        """Make variables read-only for a while, by another role."""
        hidden = {}
        for v in variables:
            x = self.make.variables[v]
            if x.role is Role.TEMPORARY:
                hidden[v] = x
                self.make.variables[v] = Variable(
                    x.name, x.element_type, x.shape, x.mapping, Role.STATE, x.ipu, x.origin
                )
        return hidden

    def _show(self, hidden: dict[int, Variable]) -> None:
        for v, x in hidden.items():
            self.make.variables[v] = x

    def predicate(self, ipu: int, kind: str = "pred") -> int:
        tile = self.draw.randrange(self.tiles)
        made = self.make.variable((), Mapping(Tiles((), (), tile), ()), kind=kind, ipu=ipu)
        return self.make.stream_in(made)

    def repeat(self, level: int, ipu: int) -> None:
        _, body, carried, _ = self._loop(level, ipu, condition=False)
        count = self.draw.randint(0, 3)
        self.make.emit(Repeat(count, Sequence(tuple(body)), carried))

    def repeat_while(self, level: int, ipu: int) -> None:
        test, body, carried, predicate = self._loop(level, ipu, condition=True)
        value = next(s.value for s in test if isinstance(s, StreamIn))
        self.make.emit(
            RepeatWhile(Sequence(tuple(test)), predicate, value, Sequence(tuple(body)), carried)
        )

    def branches(self, level: int, ipu: int) -> None:
        make = self.make
        two = self.draw.random() < 0.5
        chooser = self.predicate(ipu, "pred" if two else "s32")
        outside = dict(make.held)
        fresh = self.new(self.draw.choice(self.shapes), ipu)
        results: list[dict[int, int]] = []
        bodies: list[Sequence] = []
        changed: set[int] = set()
        for _ in range(2 if two else self.draw.randint(1, 3)):
            make.held.clear()
            make.held.update(outside)
            with make.block() as body:
                self.steps(self.draw.randint(0, 3), level - 1, ipu)
                source = self.draw.choice(self.known(make.variables[fresh].shape, ipu))
                make.copy(source, fresh)
            results.append(dict(make.held))
            bodies.append(Sequence(tuple(body)))
            changed |= written(bodies[-1], make.program())
        make.held.clear()
        make.held.update(outside)
        kept = [*sorted(changed & outside.keys()), fresh]
        values = {v: make.value_like(v) for v in kept}
        items = tuple(Merged(v, tuple(r[v] for r in results), values[v]) for v in kept)
        make.held.update(values)
        value = outside[chooser]
        if two:
            make.emit(If(chooser, value, bodies[0], bodies[1], items))
        else:
            make.emit(Switch(chooser, value, tuple(bodies), items))

    def call(self, level: int, ipu: int) -> None:
        name = f"f{len(self.make.functions)}"
        self.make.functions[name] = Sequence()
        with self.make.block() as body:
            self.steps(self.draw.randint(1, 3), level - 1, ipu)
        self.make.functions[name] = Sequence(tuple(body))
        self.make.emit(Call(name))

    def parallel(self) -> None:
        bodies = []
        for ipu in range(self.make.ipus):
            with self.make.block() as body:
                self.steps(3, 1, ipu)
            bodies.append(Sequence(tuple(body)))
        self.make.emit(Parallel(tuple(bodies)))


def random_program(seed: int, *, tiles: int = 4, ipus: int = 1, steps: int = 12) -> Program:
    """Return a drawn program that `faults_of` finds nothing in."""
    drawn = RandomProgram(Random(seed), tiles, ipus)
    drawn.start()
    for ipu in range(ipus):
        drawn.steps(steps, 2, ipu)
    if ipus > 1:
        drawn.parallel()
        for ipu in range(ipus):
            drawn.steps(2, 1, ipu)
    drawn.make.stream_out(drawn.draw.choice(list(drawn.make.held)))
    return drawn.make.program()
