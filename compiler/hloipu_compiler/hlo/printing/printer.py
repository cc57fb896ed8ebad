"""Print modules, computations and instructions as HLO text, in linear time.

In the full form `parse(print_module(m)) == m`; the short form loses metadata, tables, and the names
of what async sugar hides.
XLA's parser reads every form. Source: openxla/xla `xla/hlo/ir/hlo_module.cc`,
`hlo_computation.cc`, `hlo_instruction.cc`.

In the canonical form names are positions. Two modules with one canonical text are the same program.
Metadata, backend configurations, names and stack tables do not count; layouts, shardings and
frontend attributes do.
"""

from collections.abc import Iterable, Mapping

from hloipu_compiler.analysis.call_graph import call_counts
from hloipu_compiler.hlo.printing.attribute_text import value_text
from hloipu_compiler.hlo.printing.print_options import (
    CANONICAL,
    FULL,
    SHORT,
    Form,
    Layouts,
    PrintOptions,
    ShapePrinter,
)
from hloipu_compiler.hlo.syntax.strings import quote
from hloipu_compiler.ir.attribute_kinds import INSTRUCTION_KINDS, MODULE_KINDS
from hloipu_compiler.ir.attribute_kinds import AttributeKind as K
from hloipu_compiler.ir.attributes import Attributes, Value
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.literals import Literal
from hloipu_compiler.ir.ops import OPS
from hloipu_compiler.ir.shapes import ArrayShape, Shape, TupleShape
from hloipu_runtime.element_types import ELEMENT_TYPES

Sugar = Mapping[str, Instruction]
"""The one instruction of each computation that async sugar hides, by the computation's name."""

NO_SUGAR: Sugar = {}


def async_sugar(module: Module) -> Sugar:
    """Return the computations that sugar can hide: wrapped once, around one plain instruction."""
    calls = call_counts(module)
    wrapped_by_computation: dict[str, Instruction] = {}
    for computation in module.computations:
        for start in computation.instructions:
            if start.opcode != "async-start" or len(start.attributes.called) != 1:
                continue
            name = start.attributes.called[0]
            wrapped = module.computation.get(name)
            if wrapped is not None and calls[name] == 1 and _is_plain(wrapped, start):
                wrapped_by_computation[name] = wrapped.instructions[wrapped.root]
    return wrapped_by_computation


def _is_plain(wrapped: Computation, start: Instruction) -> bool:
    """Whether reading the sugar back gives this computation again, names apart."""
    root = wrapped.instructions[wrapped.root]
    shape = start.shape
    return (
        isinstance(shape, TupleShape)
        and len(shape.elements) > 1
        and shape.elements[1] == root.shape
        and len(wrapped.instructions) == len(root.operands) + 1 == len(start.operands) + 1
        and root.operands == wrapped.parameters
        and root.literal is None
        and root.opcode in OPS
        and f"{root.opcode}-start" not in OPS
        and start.attributes.text("async_execution_thread", "main") == wrapped.execution_thread
    )


def starts_of(computation: Computation) -> Mapping[str, Instruction]:
    """Return, for each async instruction by name, the `async-start` of its chain."""
    start_by_name: dict[str, Instruction] = {}
    for instruction in computation.instructions:
        if instruction.opcode == "async-start":
            start_by_name[instruction.name] = instruction
        elif instruction.opcode in ("async-update", "async-done") and instruction.operands:
            start = start_by_name.get(computation.instructions[instruction.operands[0]].name)
            if start is not None:
                start_by_name[instruction.name] = start
    return start_by_name


def sugared(
    instruction: Instruction, start: Instruction, sugar: Sugar
) -> tuple[str, Attributes] | None:
    """Return the opcode and attributes that stand for an async instruction; None to print as is."""
    called = start.attributes.called
    root = sugar.get(called[0]) if called else None
    if root is None:
        return None
    opcode = root.opcode + instruction.opcode.removeprefix("async")
    remaining = {k: v for k, v in instruction.attributes.items() if k != "calls"}
    if instruction is not start:
        return opcode, Attributes(remaining)
    return opcode, Attributes({**root.attributes, **remaining}, root.attributes.called)


__all__ = [
    "CANONICAL", "FULL", "SHORT", "Form", "Layouts", "PrintOptions", "print_computation",
    "print_module",
]  # fmt: skip

_KEYWORDS = frozenset(
    "true false inf nan HloModule ENTRY ROOT FileNames FunctionNames FileLocations StackFrames "
    "maximal replicated manual last_tile_dim_replicate shard_as shard_like unknown "
    "unreduced".split()
)
_RESERVED = _KEYWORDS | ELEMENT_TYPES.keys()
"""Words that XLA's lexer does not take for a name without `%`."""


def print_module(module: Module, options: PrintOptions = FULL) -> str:
    """Return the text of a whole module, with a line end after the last brace."""
    if options.form is Form.CANONICAL:
        module = canonical_module(module)
    printer = Printer(options, async_sugar(module) if options.shows_async_sugar else NO_SUGAR)
    blocks = [f"HloModule {module.name}{printer.header_attributes(module)}"]
    if options.shows_metadata and module.stack_tables:
        blocks.append(module.stack_tables.strip())
    for position, computation in enumerate(module.computations):
        if computation.name not in printer.sugar:
            blocks.append(printer.computation(computation, position == module.entry_position))
    return "\n\n".join(blocks) + "\n"


def print_computation(
    computation: Computation, options: PrintOptions = FULL, *, is_entry: bool = False
) -> str:
    """Return the text of one computation, without a line end."""
    return Printer(options).computation(computation, is_entry)


def statement_text(
    name: str, shape: str, opcode: str, inside: str, attributes: str = "",
    metadata: str = "", backend_config: str = "",
) -> str:  # fmt: skip
    """Return one statement from the texts of its parts; an attribute list begins with `, `."""
    text = f"{name} = {shape} {opcode}({inside}){attributes}"
    if metadata:
        text += f", metadata={metadata}"
    if backend_config:
        text += f", backend_config={backend_config}"
    return text


def computation_text(title: str, statements: Iterable[str], thread: str) -> str:
    """Return a computation from its title, up to the brace, and its statements."""
    end = "}" if thread == "main" else f"}}, execution_thread={quote(thread)}"
    return "\n".join([f"{title}{{", *(f"  {text}" for text in statements), end])


class Printer:
    """The memos of one print: equal shapes and attribute lists are written once and reused."""

    def __init__(self, options: PrintOptions, sugar: Sugar = NO_SUGAR) -> None:
        self.options = options
        self.sugar = sugar
        self._starts: Mapping[str, Instruction] = {}
        self.shapes = ShapePrinter(options.shown_layouts, options.comment_interval)
        self._attributes: dict[Attributes, str] = {}
        self._shows_metadata = options.shows_metadata
        self._shows_backend_config = options.shows_backend_config
        self._percent = "%" if options.shows_percent else ""

    def name(self, name: str) -> str:
        """Return a name of an instruction or a computation, with `%` where it needs one."""
        return f"%{name}" if self._percent or name in _RESERVED else name

    def header_attributes(self, module: Module) -> str:
        """Return the list of the header's attributes; not empty, it begins with `, `."""
        return "".join(
            f", {key}={value_text(key, kind, value, self.shapes.text, self.name)}"
            for key, value in module.attributes.items()
            for kind in (MODULE_KINDS.get(key),)
        )

    def computation(self, computation: Computation, is_entry: bool) -> str:
        """Return the text of one computation."""
        names = {i: self.name(op.name) for i, op in enumerate(computation.instructions)}
        self._starts = starts_of(computation) if self.sugar else {}
        statements = [self.instruction(op, names, computation) for op in computation.instructions]
        statements[computation.root] = f"ROOT {statements[computation.root]}"
        title = f"{'ENTRY ' if is_entry else ''}{self._title(computation)}"
        return computation_text(title, statements, computation.execution_thread)

    def _title(self, computation: Computation) -> str:
        name = self.name(computation.name)
        if not self.options.shows_signatures:
            return f"{name} "
        bare = self.shapes.without_layouts
        parameters = [computation.instructions[i] for i in computation.parameters]
        signature = ", ".join(f"{p.name}: {bare(p.shape)}" for p in parameters)
        result = bare(computation.instructions[computation.root].shape)
        return f"{name} ({signature}) -> {result} "

    def instruction(
        self, instruction: Instruction, names: dict[int, str], computation: Computation
    ) -> str:
        """Return one statement, without `ROOT`."""
        if instruction.literal is not None:
            inside = self.literal(instruction.literal, instruction.shape)
        elif instruction.parameter_number >= 0:
            inside = str(instruction.parameter_number)
        else:
            inside = self._operands(instruction.operands, names, computation)
        name, shape = self.name(instruction.name), self.shapes.text(instruction.shape)
        opcode, attributes = instruction.opcode, instruction.attributes
        start = self._starts.get(instruction.name) if self._starts else None
        if start is not None:
            opcode, attributes = sugared(instruction, start, self.sugar) or (opcode, attributes)
        return statement_text(
            name, shape, opcode, inside,
            self.attribute_list(attributes) if attributes else "",
            instruction.metadata if self._shows_metadata else "",
            instruction.backend_config if self._shows_backend_config else "",
        )  # fmt: skip

    def _operands(
        self, operands: tuple[int, ...], names: dict[int, str], computation: Computation
    ) -> str:
        texts = [names[i] for i in operands]
        if self.options.operand_shapes:
            shapes = [self.shapes.text(computation.instructions[i].shape) for i in operands]
            texts = [f"{shape} {name}" for shape, name in zip(shapes, texts, strict=True)]
        interval = self.options.comment_interval
        if interval and len(texts) > interval:
            for i in range(interval, len(texts), interval):
                texts[i] = f"/*index={i}*/{texts[i]}"
        return ", ".join(texts)

    def attribute_list(self, attributes: Attributes) -> str:
        """Return an instruction's attribute list; not empty, it begins with `, `."""
        known = self._attributes.get(attributes)
        if known is None:
            items = attributes
            if self.options.form is Form.CANONICAL:
                items = canonical_attributes(attributes)
            known = "".join(f", {key}={self._value(key, value)}" for key, value in items.items())
            self._attributes[attributes] = known
        return known

    def _value(self, key: str, value: Value) -> str:
        return value_text(key, INSTRUCTION_KINDS.get(key), value, self.shapes.text, self.name)

    def literal(self, literal: Literal, shape: Shape) -> str:
        """Return what stands between a constant's parentheses."""
        most = self.options.largest_constant
        if most is not None and (not isinstance(shape, ArrayShape) or shape.element_count > most):
            return "{...}"
        if literal.array is not None:
            from hloipu_compiler.hlo.literals.text import literal_text  # brings numpy

            return literal_text(literal.array, shape)
        # A `//` comment would swallow the parenthesis.
        return f"{literal.text}\n" if "//" in literal.text else literal.text


_DEFAULTS: dict[str, frozenset[Value]] = {
    "feature_group_count": frozenset({1}), "batch_group_count": frozenset({1}),
    "is_stable": frozenset({False}), "indices_are_sorted": frozenset({False}),
    "unique_indices": frozenset({False}), "use_global_device_ids": frozenset({False}),
    "constrain_layout": frozenset({False}), "custom_call_has_side_effect": frozenset({False}),
    "is_host_transfer": frozenset({False}), "is_composite": frozenset({False}),
    "is_reverse": frozenset({False}), "lhs_batch_dims": frozenset({()}),
    "rhs_batch_dims": frozenset({()}), "lhs_contracting_dims": frozenset({()}),
    "rhs_contracting_dims": frozenset({()}), "operand_batching_dims": frozenset({()}),
    "start_indices_batching_dims": frozenset({()}), "input_batching_dims": frozenset({()}),
    "scatter_indices_batching_dims": frozenset({()}),
    "operand_precision": frozenset({("default",), ("default", "default")}),
    "api_version": frozenset({"API_VERSION_ORIGINAL", "API_VERSION_UNSPECIFIED"}),
    "schedule": frozenset({"SCHEDULE_NONE"}),
    "is_scheduled": frozenset({False}), "replica_count": frozenset({1}),
    "num_partitions": frozenset({1}), "alias_passthrough_params": frozenset({False}),
    "allow_spmd_sharding_propagation_to_parameters": frozenset({(False,)}),
    "allow_spmd_sharding_propagation_to_output": frozenset({(False,)}),
}  # fmt: skip
"""Values that mean what leaving the attribute out means."""


def canonical_attributes(attributes: Attributes) -> Attributes:
    """Return the attributes sorted by name, without those that say their default."""
    stated = {
        key: value
        for key, value in sorted(attributes.items())
        if value not in _DEFAULTS.get(key, ())
    }
    return Attributes(stated, attributes.called)


def canonical_module(module: Module) -> Module:
    """Return the module with names by position: `v7`, `p7` (parameters), `c2` (computations)."""
    names = {c.name: f"c{i}" for i, c in enumerate(module.computations)}
    first = 0
    computations = []
    for computation in module.computations:
        computations.append(_renamed(computation, names, first))
        first += len(computation.instructions)
    attributes = canonical_attributes(_with_names(module.attributes, MODULE_KINDS, names, {}))
    return Module("m", tuple(computations), module.entry_position, attributes)


def _renamed(computation: Computation, names: dict[str, str], first: int) -> Computation:
    instruction_names = {
        op.name: f"{'p' if op.parameter_number >= 0 else 'v'}{first + i}"
        for i, op in enumerate(computation.instructions)
    }
    memo: dict[Attributes, Attributes] = {}
    instructions = tuple(
        op._replace(
            name=instruction_names[op.name],
            attributes=_remembered(op, names, instruction_names, memo),
        )
        for op in computation.instructions
    )
    return Computation(
        names[computation.name], instructions, computation.root, computation.execution_thread
    )


def _remembered(
    instruction: Instruction,
    names: dict[str, str],
    instruction_names: dict[str, str],
    memo: dict[Attributes, Attributes],
) -> Attributes:
    attributes = instruction.attributes
    if not attributes.called and "control-predecessors" not in attributes:
        return attributes
    known = memo.get(attributes)
    if known is None:
        known = memo[attributes] = _with_names(
            attributes, INSTRUCTION_KINDS, names, instruction_names
        )
    return known


def _with_names(
    attributes: Attributes,
    kinds: dict[str, K],
    names: dict[str, str],
    instruction_names: dict[str, str],
) -> Attributes:
    values: dict[str, Value] = {}
    for key, value in attributes.items():
        kind = kinds.get(key)
        if kind is K.COMPUTATION and isinstance(value, str):
            values[key] = names.get(value, value)
        elif kind is K.COMPUTATIONS and isinstance(value, tuple):
            values[key] = tuple(names.get(str(v), str(v)) for v in value)
        elif kind is K.INSTRUCTIONS and isinstance(value, tuple):
            values[key] = tuple(instruction_names.get(str(v), str(v)) for v in value)
        else:
            values[key] = value
    return Attributes(values, tuple(names.get(c, c) for c in attributes.called))
