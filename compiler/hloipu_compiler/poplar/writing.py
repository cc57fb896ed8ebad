"""Computations written out into one: values are positions, tuples of them, or things not yet made.

What Graphcore's encoding is made of besides plain ops (calls, accumulators, counters, queues) is
left to whoever writes: methods to be overridden. Tuples are taken apart, so that no call hides what
passes.
"""

from collections.abc import Sequence

from hloipu_compiler.hlo.frontend_attributes import (
    frontend_attributes_text,
    read_frontend_attributes,
)
from hloipu_compiler.ir.attributes import NO_ATTRIBUTES, Attributes
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.literals import Literal
from hloipu_compiler.ir.shapes import ArrayShape, Shape, TupleShape, compatible
from hloipu_compiler.passes.call_forms import INLINED
from hloipu_compiler.passes.names import Names
from hloipu_compiler.poplar.call_config import CallConfig, config_of
from hloipu_compiler.poplar.custom_ops import MOVES, REPLICATION, SHARE, STORE, target_of
from hloipu_compiler.poplar.errors import PoplarError
from hloipu_compiler.poplar.values import (
    OUTSIDE,
    Buffer,
    Context,
    Counter,
    Lazy,
    Made,
    Sunk,
    Token,
    Value,
)

MOST_DEPTH = 60
"""Of calls within calls; Graphcore's own modules have about ten."""
_KEY = "frontend_attributes"
_DROPPED = frozenset({"sharding", "control-predecessors"})
_CONFIGURES = (
    "CALL_CONFIG_TYPE",
    "PIPELINE_",
    "GradientAccumulation",
    "OFFLOAD_",
    "PARTITION_",
)


class Writer:
    """Writes one computation, with the ops of all that it calls."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.made: list[Instruction] = []
        self.names = Names(())
        self._hurried: dict[tuple[int, Context], int] = {}
        self._kept: list[Lazy] = []
        """So that no other is at their address."""
        self.depth = 0
        self.current = module.entry
        """What is being written out."""

    def computation(self, old: Computation, arguments: Sequence[Value], here: Context) -> Value:
        """Write the ops of a computation with its parameters' values; return the root's value."""
        self.depth += 1
        if self.depth > MOST_DEPTH:
            raise PoplarError(
                "E0549",
                f"calls stand in each other more than {MOST_DEPTH} deep, in {old.name!r}",
                hint="write the calls out",
            )
        outer, self.current = self.current, old
        place: list[Value] = []
        for x in old.instructions:
            if x.parameter_number >= 0:
                place.append(arguments[x.parameter_number])
            else:
                place.append(self.written(x, [place[i] for i in x.operands], here))
        self.depth -= 1
        self.current = outer
        return place[old.root]

    def written(self, x: Instruction, operands: list[Value], here: Context) -> Value:
        """Write one instruction; return its value."""
        if x.opcode == "tuple":
            return Made(tuple(operands))
        if x.opcode == "get-tuple-element":
            return self.element(x, operands[0], x.attributes.integer("index"))
        if x.opcode in ("infeed", "outfeed"):
            return (
                self.fed(x, operands, here)
                if x.opcode == "infeed"
                else self.sent(x, operands, here)
            )
        if x.opcode == "after-all":
            return Token()
        if x.opcode == "add-dependency":
            return operands[0]
        if x.opcode == "all-reduce" and self.takes_means(x):
            shapes = x.shape.elements if isinstance(x.shape, TupleShape) else (x.shape,)
            made = tuple(
                self.replicated(x._replace(shape=shape), SHARE, [v], here, is_sum=True)
                for v, shape in zip(operands, shapes, strict=True)
            )
            return Made(made) if isinstance(x.shape, TupleShape) else made[0]
        if x.opcode in INLINED:
            return self.called(x, config_of(x), operands, here)
        target = target_of(x)
        if not target:
            return self.plain(x, operands, here)
        return self.as_declared(x, self.special(x, target, operands, here))

    def special(self, x: Instruction, target: str, operands: list[Value], here: Context) -> Value:
        """Write an op of Graphcore's that belongs to a step's structure."""
        if target in MOVES:
            return operands[0] if len(operands) == 1 else Made(tuple(operands))
        if target == STORE:
            new = operands[len(operands) // 2 :]
            return new[0] if len(new) == 1 else Made(tuple(new))
        if target in REPLICATION:
            return self.replicated(x, target, operands, here)
        return self.structure(x, target, operands, here)

    def as_declared(self, x: Instruction, value: Value) -> Value:
        """Return a value; PoplarError E0545 where it has another shape than the text says."""
        waiting: list[tuple[Value, Shape]] = [(value, x.shape)]
        while waiting:
            each, shape = waiting.pop()
            if isinstance(each, Made):
                parts = shape.elements if isinstance(shape, TupleShape) else ()
                fits = len(parts) == len(each.parts) and isinstance(shape, TupleShape)
                waiting.extend(zip(each.parts, parts, strict=False))
            else:
                fits = not isinstance(each, int) or compatible(self.made[each].shape, shape)
            if not fits:
                raise PoplarError(
                    "E0545",
                    f"{x.name!r} is {x.shape}, and what it gives is something else",
                    hint="declare it as what goes into it",
                )
        return value

    def called(
        self,
        x: Instruction,
        config: CallConfig | None,
        operands: list[Value],
        here: Context,
    ) -> Value:
        """Write what a call runs."""
        return self.computation(self.callee(x), operands, here)

    def callee(self, x: Instruction) -> Computation:
        """Return the computation that a call or a fusion runs."""
        return self.module.computation[x.attributes.called[0]]

    def takes_means(self, x: Instruction) -> bool:
        """Whether an all-reduce divides by the number of replicas what it adds up."""
        return any(
            target_of(inner) == SHARE
            for name in x.attributes.called
            for inner in self.module.computation[name].instructions
        )

    def replicated(
        self,
        x: Instruction,
        target: str,
        operands: Sequence[Value],
        here: Context,
        *,
        is_sum: bool = False,
    ) -> Value:
        """Write what depends on the number of replicas, or on which one this is.

        `is_sum`: of an all-reduce, which adds up before it divides.
        """
        raise NotImplementedError

    def structure(self, x: Instruction, target: str, operands: list[Value], here: Context) -> Value:
        """Write a custom call that belongs to a step's structure."""
        raise NotImplementedError

    def fed(self, x: Instruction, operands: list[Value], here: Context) -> Value:
        """Write an infeed."""
        raise NotImplementedError

    def sent(self, x: Instruction, operands: list[Value], here: Context) -> Value:
        """Write an outfeed."""
        raise NotImplementedError

    def plain(self, x: Instruction, operands: list[Value], here: Context) -> Value:
        """Write any other op."""
        return self.copied(x, [self.settled(v, x, here) for v in operands], here)

    def copied(self, x: Instruction, operands: Sequence[int], here: Context) -> int:
        """Append an op of the old module, marked."""
        attributes = marked(x.attributes, here.marks)
        name = self.names.fresh(x.name)
        self.made.append(
            Instruction(
                name, x.opcode, x.shape, tuple(operands), attributes, x.metadata,
                x.backend_config, x.literal, -1, x.start, x.end,
            )
        )  # fmt: skip
        return len(self.made) - 1

    def add(
        self,
        name: str,
        opcode: str,
        shape: Shape,
        operands: Sequence[int] = (),
        here: Context = OUTSIDE,
        attributes: Attributes = NO_ATTRIBUTES,
        literal: Literal | None = None,
        parameter_number: int = -1,
    ) -> int:
        """Append an op of our own."""
        attributes = marked(attributes, here.marks)
        self.made.append(
            Instruction(
                self.names.fresh(name), opcode, shape, tuple(operands), attributes, literal=literal,
                parameter_number=parameter_number,
            )
        )  # fmt: skip
        return len(self.made) - 1

    def element(self, x: Instruction, value: Value, index: int) -> Value:
        """Return one part of a tuple."""
        if isinstance(value, Made):
            return value.parts[index]
        if not isinstance(value, int):
            raise _misplaced(x, value)
        return self.copied(x, (value,), self.where(value))

    def where(self, position: int) -> Context:
        """Return what is to be said of a value's part, which is made where the whole is."""
        said = read_frontend_attributes(self.made[position].attributes.text(_KEY))
        stage, branch = (int(said.get(key, "-1")) for key in ("ipu_stage", "ipu_branch"))
        return Context(said.get("ipu_phase", ""), stage, branch)

    def settled(self, value: Value, user: Instruction, here: Context) -> int:
        """Return the position of a value, made if it is not there yet."""
        if isinstance(value, int):
            return value
        if isinstance(value, Made):
            parts = [self.settled(part, user, here) for part in value.parts]
            shape = TupleShape(tuple(self.made[at].shape for at in parts))
            return self.add(f"{user.name}.parts", "tuple", shape, parts, here)
        if isinstance(value, Counter):
            return self.counted(value, here, user)
        if isinstance(value, Lazy):
            return self.hurried(value, user, here)
        if isinstance(value, Token):
            return self.ordered()
        raise _misplaced(user, value)

    def hurried(self, value: Lazy, user: Instruction, here: Context) -> int:
        """Write an op that was put off, and those that it reads."""
        key = (id(value), here)
        found = self._hurried.get(key)
        if found is None:
            operands = [self.settled(v, user, here) for v in value.operands]
            found = self.copied(value.instruction, operands, here)
            self._hurried[key] = found
            self._kept.append(value)
        return found

    def counted(self, counter: Counter, here: Context, user: Instruction) -> int:
        """Return the position of the counter of a place."""
        raise NotImplementedError

    def ordered(self) -> int:
        """Return the position of a token."""
        raise NotImplementedError

    def leaves(self, value: Value, user: Instruction, here: Context) -> list[int]:
        """Return the positions of the arrays that a value consists of; tokens do not count."""
        if isinstance(value, Token):
            return []
        if isinstance(value, Made):
            return [at for part in value.parts for at in self.leaves(part, user, here)]
        position = self.settled(value, user, here)
        shape = self.made[position].shape
        if isinstance(shape, TupleShape):
            return [
                at
                for index in range(len(shape.elements))
                for at in self.leaves(self.part(position, index), user, here)
            ]
        if isinstance(shape, ArrayShape) and shape.element_type.name == "token":
            return []
        return [position]

    def part(self, position: int, index: int) -> int:
        """Write the element of a tuple that some op makes whole."""
        whole = self.made[position]
        shape = whole.shape
        if not isinstance(shape, TupleShape):
            raise TypeError(f"{whole.name} is no tuple")
        return self.add(
            f"{whole.name}.{index}", "get-tuple-element", shape.elements[index], (position,),
            self.where(position), Attributes({"index": index}),
        )  # fmt: skip

    def one_number(self, x: Instruction, value: int) -> int:
        """Return a factor without dimensions; PoplarError E0545 for one that is no number."""
        shape = self.made[value].shape
        if not isinstance(shape, ArrayShape) or not shape.element_type.is_array:
            raise PoplarError("E0545", f"{x.name!r} multiplies by {shape}, which is no number")
        if shape.element_count != 1:
            raise PoplarError(
                "E0545",
                f"{x.name!r} multiplies by {shape}, and not by one number",
                hint="give it a factor of no dimensions",
            )
        return self.scalar(value)

    def scalar(self, value: int) -> int:
        """Return a value of one element without dimensions."""
        x = self.made[value]
        if not isinstance(x.shape, ArrayShape) or not x.shape.dimensions:
            return value
        return self.add(f"{x.name}.one", "reshape", ArrayShape(x.shape.element_type), (value,))

    def spread(self, name: str, shape: ArrayShape, value: int, here: Context = OUTSIDE) -> int:
        """Write an array whose elements are all one number."""
        nothing = Attributes({"dimensions": ()})
        return self.add(name, "broadcast", shape, (value,), here, nothing)

    def zeros(self, shape: ArrayShape, name: str, here: Context) -> int:
        """Write an array of zeros."""
        text = "false" if shape.element_type.name == "pred" else "0"
        zero = self.number(f"{name}.zero", ArrayShape(shape.element_type), text)
        return self.spread(f"{name}.zeros", shape, zero, here) if shape.dimensions else zero

    def number(self, name: str, shape: ArrayShape, text: str) -> int:
        """Write a constant of no dimensions."""
        return self.add(name, "constant", shape, literal=Literal(text))


def added_to(x: Instruction, operands: Sequence[Value]) -> Buffer:
    """Return the accumulator that an AddWithScale adds to.

    Raises PoplarError E0545 where there is none, or an operand is missing.
    """
    buffer = operands[0] if len(operands) == 3 else None
    if not isinstance(buffer, Buffer):
        raise PoplarError(
            "E0545",
            f"{x.name!r} adds to something that is no accumulator, or lacks an operand",
            hint="it takes an accumulator, a gradient and the accumulator's factor",
        )
    return buffer


def nothing_of(x: Instruction) -> Value:
    """Return what an op gives that has no values; PoplarError E0545 for one that has some."""
    if isinstance(x.shape, TupleShape) and not x.shape.elements:
        return Made(())
    if isinstance(x.shape, ArrayShape) and x.shape.element_type.name == "token":
        return Token()
    raise PoplarError(
        "E0545",
        f"{x.name!r} ({x.attributes.text('custom_call_target')}) is {x.shape}, and gives nothing",
        hint="it is () or token[]",
    )


def marked(attributes: Attributes, marks: dict[str, str]) -> Attributes:
    """Return attributes with marks in place of what places ops in Graphcore's way."""
    kept = {key: value for key, value in attributes.items() if key not in _DROPPED}
    said = read_frontend_attributes(attributes.text(_KEY))
    words = {key: text for key, text in said.items() if not key.startswith(_CONFIGURES)}
    words = marks | words
    kept.pop(_KEY, None)
    if words:
        kept[_KEY] = frontend_attributes_text(words)
    return Attributes(kept, attributes.called)


def _misplaced(user: Instruction, value: Value) -> PoplarError:
    if isinstance(value, Sunk):
        return PoplarError(
            "E0545",
            f"{user.name!r} ({user.opcode}) reads the accumulated {value.name!r} outside of an "
            "update: it is there only when all micro-batches are through",
            hint="read it in the computation of the ResourceUpdate call",
        )
    return PoplarError(
        "E0545",
        f"{user.name!r} ({user.opcode}) reads an accumulator that is still being filled",
        hint="take it through a GradientAccumulatorSink and the ResourceUpdate call",
    )
