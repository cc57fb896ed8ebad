"""Scalar computations as expressions: reducers, comparators, combiners, mapped functions."""

from hloipu_compiler.errors import CodegenError
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.ops import OPS, Trait
from hloipu_compiler.ir.shapes import ArrayShape, TupleShape
from hloipu_compiler.lowering.core.scalars import scalar_text
from hloipu_runtime.codelets.core.constants import number_node, text_node
from hloipu_runtime.codelets.core.expression_form import Expression, Node

FORWARDED = frozenset(
    "copy reshape broadcast bitcast transpose reverse slice opt-barrier add-dependency".split()
)
"""Ops that hand a scalar on as it is."""


def expression_of(module: Module, name: str) -> Expression:
    """Return a computation on scalars as an expression; CodegenError E0471 where it is none."""
    return _Writer(module).whole(module.computation[name])


class _Writer:
    """Collects nodes; numbers of nodes are those of an expression whose operands are known."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.nodes: list[Node] = []
        self.operand_types: list[str] = []

    def whole(self, computation: Computation) -> Expression:
        types = [_type(computation.instructions[position]) for position in computation.parameters]
        self.operand_types = types
        results = self.inline(computation, [(n,) for n in range(len(types))])
        return Expression(tuple(types), tuple(self.nodes), results)

    def add(self, node: Node) -> int:
        self.nodes.append(node)
        return len(self.operand_types) + len(self.nodes) - 1

    def inline(self, computation: Computation, arguments: list[tuple[int, ...]]) -> tuple[int, ...]:
        """Write the nodes of a computation and return the numbers of its results."""
        known: list[tuple[int, ...]] = []
        for instruction in computation.instructions:
            operands = [known[i] for i in instruction.operands]
            if instruction.parameter_number >= 0:
                known.append(arguments[instruction.parameter_number])
            elif instruction.opcode in ("call", "fusion"):
                inner = self.module.computation[instruction.attributes.called[0]]
                known.append(self.inline(inner, operands))
            elif instruction.opcode == "conditional":
                known.append(self._conditional(instruction, operands))
            elif instruction.opcode == "get-tuple-element":
                known.append((operands[0][instruction.attributes.integer("index")],))
            elif instruction.opcode == "tuple":
                known.append(tuple(n for numbers in operands for n in numbers))
            elif instruction.opcode in FORWARDED:
                known.append(operands[0])
            else:
                known.append((self._node(instruction, tuple(n for (n,) in operands)),))
        return known[computation.root]

    def _node(self, instruction: Instruction, arguments: tuple[int, ...]) -> int:
        if instruction.opcode == "constant":
            return self.add(text_node(scalar_text(instruction), _type(instruction)))
        op = OPS.get(instruction.opcode)
        if op is None or (
            Trait.ELEMENTWISE not in op.traits and instruction.opcode != "bitcast-convert"
        ):
            raise CodegenError(
                "E0471",
                f"{instruction.name!r}: {instruction.opcode!r} inside a computation on elements "
                "has no codelet",
                hint="rewrite the computation with elementwise ops",
            )
        return self.add(
            Node(instruction.opcode, arguments, _type(instruction), node_parameters(instruction))
        )

    def _conditional(
        self, instruction: Instruction, operands: list[tuple[int, ...]]
    ) -> tuple[int, ...]:
        """Compute all branches and select."""
        names = instruction.attributes.called
        branches = [
            self.inline(self.module.computation[name], [argument])
            for name, argument in zip(names, operands[1:], strict=True)
        ]
        (selector,) = operands[0]
        results = branches[-1]
        is_predicate = self._type_of(selector) == "pred"
        order = [0] if is_predicate else list(range(len(branches) - 2, -1, -1))
        for number in order:
            chosen = selector if is_predicate else self._equals(selector, number)
            results = tuple(
                self.add(Node("select", (chosen, a, b), self._type_of(a)))
                for a, b in zip(branches[number], results, strict=True)
            )
        return results

    def _equals(self, selector: int, number: int) -> int:
        constant = self.add(number_node(number, "s32"))
        return self.add(Node("compare", (selector, constant), "pred", (("direction", "EQ"),)))

    def _type_of(self, number: int) -> str:
        count = len(self.operand_types)
        if number < count:
            return self.operand_types[number]
        return self.nodes[number - count].element_type


def node_parameters(instruction: Instruction) -> tuple[tuple[str, str | int], ...]:
    """Return the attributes that an elementwise op's meaning depends on."""
    if instruction.opcode == "compare":
        order = instruction.attributes.text("type")
        direction: tuple[tuple[str, str | int], ...] = (
            ("direction", instruction.attributes.text("direction")),
        )
        return (*direction, ("type", order)) if order else direction
    if instruction.opcode == "reduce-precision":
        return (
            ("exponent_bits", instruction.attributes.integer("exponent_bits")),
            ("mantissa_bits", instruction.attributes.integer("mantissa_bits")),
        )
    return ()


def _type(instruction: Instruction) -> str:
    if isinstance(instruction.shape, ArrayShape) and not instruction.shape.dimensions:
        return instruction.shape.element_type.name
    kind = "a tuple" if isinstance(instruction.shape, TupleShape) else str(instruction.shape)
    raise CodegenError("E0471", f"{instruction.name!r}: {kind} inside a computation on elements")
