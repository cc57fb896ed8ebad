"""Builds one computation from its statements."""

import re
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from hloipu_compiler.errors import Note
from hloipu_compiler.hlo.literals.values import check_literal
from hloipu_compiler.hlo.reading.line_lexer import NAME, SHAPE
from hloipu_compiler.hlo.reading.special_forms import add_special
from hloipu_compiler.hlo.reading.statements import Form, Prepared, Statement
from hloipu_compiler.hlo.syntax.lexer import Piece
from hloipu_compiler.hlo.syntax.limits import check_limit
from hloipu_compiler.hlo.syntax.records import Stretch, SyntaxStatement
from hloipu_compiler.hlo.syntax.text_fault import TextFault
from hloipu_compiler.inference.faults import ShapeFault
from hloipu_compiler.ir.graph import Computation, Instruction
from hloipu_compiler.ir.literals import Literal
from hloipu_compiler.ir.shapes import Shape, TupleShape, compatible

if TYPE_CHECKING:
    from hloipu_compiler.hlo.reading.build import ModuleBuilder

_comments = re.compile(r"/\*[^*]*\*/")
_shaped = re.compile(rf"({SHAPE}) %?({NAME})(?:, |$)", re.ASCII)
FAILED = -1
"""Position of a statement that could not be built; what uses it is not reported again."""


class ComputationBuilder:
    """The instructions of one computation so far, and where their names stand."""

    def __init__(
        self, module: "ModuleBuilder", name: str, *, invent_parameters: bool = False
    ) -> None:
        self.module = module
        self.name = name
        self.instructions: list[Instruction] = []
        self.at: dict[str, int] = {}
        self._root = ""
        self._last = ""
        self._invent = invent_parameters
        self._parameters: dict[int, int] = {}
        """Position by parameter number."""

    def add_printed(self, statements: Sequence[Statement]) -> None:
        """Add statements that the line lexer has read."""
        instructions, at = self.instructions, self.at
        append = instructions.append
        make = partial(tuple.__new__, Instruction)
        plain, parameter, constant = Form.PLAIN, Form.PARAMETER, Form.CONSTANT
        position = len(instructions)
        for statement in statements:
            name, root, shape, prepared, inside, metadata, config, start, end, _ = statement
            form = prepared.form
            operands: tuple[int, ...] = ()
            literal, number = None, -1
            if form is plain:
                if inside:
                    operands = self._operands(inside)
                if not prepared.fewest <= len(operands) <= prepared.most:
                    self.module.report(None, "", "")
            elif form is parameter:
                number = self._parameter_number(inside, position)
            elif form is constant:
                literal = self._literal(inside, shape)  # type: ignore[arg-type]
            else:
                if inside and prepared.opcode not in ("parameter", "constant"):
                    operands = self._operands(inside)
                if root:
                    self._set_root(name, None)
                add_special(self, statement, operands)
                position = len(instructions)
                continue
            if at.setdefault(name, position) != position:
                self.module.report(None, "", "")
            if root:
                self._set_root(name, None)
            append(
                make(
                    (
                        name, prepared.opcode, shape, operands, prepared.attributes, metadata,
                        config, literal, number, start, end,
                    )
                )
            )  # fmt: skip
            position += 1
        self._last = statements[-1].name
        self.module.count(len(statements), statements[-1].start)

    def _operands(self, inside: str) -> tuple[int, ...]:
        """Resolve a printed operand list; every name being known proves its form as well."""
        if "*" in inside:
            inside = _comments.sub("", inside)
        if inside[0] == "%":
            names = inside[1:].split(", %")
        elif "[" in inside or "(" in inside:
            return self._shaped_operands(inside)
        else:
            names = inside.split(", ")
        at = self.at
        positions = tuple([at.get(name, FAILED) for name in names])
        if FAILED in positions:  # unknown, or a statement of the grammar's path that had faults
            self.module.report(None, "", "")
        return positions

    def _shaped_operands(self, inside: str) -> tuple[int, ...]:
        """Resolve `shape name, …` and compare each shape with the operand's own."""
        positions = []
        end = 0
        read_shape, memo = self.module.reader.shapes.read, self.module.reader.shapes.memo
        for match in iter(_shaped.scanner(inside).match, None):  # type: ignore[attr-defined]
            text, name = match.groups()
            position = self.at.get(name, FAILED)
            if position == FAILED:
                break
            try:
                shape = memo.get(text) or read_shape(text)
            except TextFault:
                break
            actual = self.instructions[position].shape
            if shape is not actual and not compatible(shape, actual):
                break
            positions.append(position)
            end = match.end()
        if end != len(inside) or inside.endswith(", "):
            self.module.report(None, "", "")
        return tuple(positions)

    def add(
        self,
        statement: Statement,
        shape: Shape,
        operands: tuple[int, ...],
        *,
        literal: Literal | None = None,
        parameter_number: int = -1,
        name: str = "",
        prepared: Prepared | None = None,
    ) -> int:
        """Append an instruction under the statement's name (or another); return its position."""
        position = len(self.instructions)
        name = name or statement.name
        if name in self.at:
            self._report_twice(statement, name)
        self.at[name] = position
        prepared = prepared or statement.prepared
        self.instructions.append(
            Instruction(
                name, prepared.opcode, shape, operands, prepared.attributes, statement.metadata,
                statement.backend_config, literal, parameter_number, statement.start,
                statement.end,
            )
        )  # fmt: skip
        return position

    def infer(
        self, statement: Statement, prepared: Prepared, operands: tuple[int, ...]
    ) -> Shape | None:
        """Infer the shape that a statement leaves out; report where it cannot be."""
        from hloipu_compiler.inference.rules import infer_shape  # most texts never need it

        shapes = tuple(self.instructions[i].shape for i in operands)
        known = self.module.computations
        try:
            shape = infer_shape(
                prepared.opcode, shapes, prepared.attributes, None,
                lambda name: known[name].program_shape,
            )  # fmt: skip
            if isinstance(shape, TupleShape):
                opcode = self.opcode_at(statement)
                at = opcode.start if opcode else None
                check_limit(self.module.limits, "inferred_leaves", shape.leaf_count, at)
            return shape
        except ShapeFault as fault:
            self.module.report(
                self.opcode_at(statement), fault.code, f"no shape is written: {fault.message}",
                expected=fault.expected, hint=fault.hint,
            )  # fmt: skip
        except KeyError as missing:
            message = f"the shape depends on computation {missing.args[0]}, which is not known here"
            self.module.report(self.opcode_at(statement), "E0132", message)
        return None

    def inside(self, statement: Statement, shape: Shape) -> tuple[Literal | None, int]:
        """Return the literal of a constant, the number of a parameter; None and -1 of others."""
        opcode = statement.prepared.opcode
        if opcode not in ("parameter", "constant"):
            return None, -1
        piece = statement.syntax.call.inside if statement.syntax else None
        text = piece.text if piece is not None else statement.inside
        if opcode == "constant":
            return self._literal(text, shape, piece), -1
        return None, self._parameter_number(text, len(self.instructions), piece)

    def report_attribute(self, statement: Statement, key: str, code: str, message: str) -> None:
        """Report a fault at an attribute's value."""
        where = None
        if statement.syntax is not None:
            values = [a.value for a in statement.syntax.attributes if a.key == key]
            where = values[0] if values else self.opcode_at(statement)
        self.module.report(where, code, message)

    def opcode_at(self, statement: Statement) -> Stretch | None:
        """Return where the opcode stands; None on the fast path."""
        if statement.syntax is None:
            return None
        opcode = statement.syntax.call.opcode
        return Stretch(opcode.start, opcode.end)

    def _report_twice(self, statement: Statement, name: str) -> None:
        where = statement.syntax.name_at if statement.syntax else None
        position = self.at[name]
        notes: tuple[Note, ...] = ()
        if position != FAILED:
            before = self.instructions[position]
            span = self.module.source.span(before.start, before.end)
            notes = (Note(span, "it was defined here"),)
        message = f"instruction {name} is defined twice in {self.name}"
        self.module.report(where, "E0160", message, notes=notes)

    def _parameter_number(
        self, text: str, position: int, piece: Stretch | Piece | None = None
    ) -> int:
        where = Stretch(piece.start, piece.end) if piece is not None else None
        number = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1
        if number < 0:
            self.module.report(
                where, "E0165", f"{text} is not a parameter number", expected="0, 1, …"
            )
        elif number in self._parameters:
            owner = self.instructions[self._parameters[number]].name
            message = f"parameter number {number} is taken by {owner}"
            self.module.report(where, "E0166", message)
        else:
            self._parameters[number] = position
        return number

    def _literal(self, text: str, shape: Shape, piece: Stretch | Piece | None = None) -> Literal:
        reader = self.module.reader
        literal = reader.literals.get((text, shape))
        if literal is None:
            try:
                check_limit(self.module.limits, "constant_bytes", len(text))
                check_literal(text, shape)
            except TextFault as fault:
                where = Stretch(piece.start, piece.end) if piece is not None else None
                self.module.report_text(fault, where)
            literal = Literal(text)
            if len(text) < 64:
                reader.literals[text, shape] = literal
        return literal

    def _set_root(self, name: str, syntax: SyntaxStatement | None) -> None:
        if self._root:
            where = syntax and Stretch(syntax.where.start, syntax.where.start + 4)
            message = f"computation {self.name} has two instructions marked ROOT"
            self.module.report(where, "E0167", message)
        self._root = name

    @property
    def root_position(self) -> int:
        """Position of the root: the one marked ROOT, else the last; FAILED where it has faults."""
        return self.at.get(self._root or self._last, FAILED)

    def finish(self, thread: str, start: int, end: int) -> Computation:
        """Check what concerns the whole computation and return it."""
        numbers = self._parameters
        if numbers and max(numbers) != len(numbers) - 1:
            missing = next(i for i in range(len(numbers)) if i not in numbers)
            last = self.instructions[numbers[max(numbers)]]
            where = Stretch(last.start, last.end)
            message = f"computation {self.name} has no parameter number {missing}"
            self.module.report(where, "E0168", message, expected="numbers 0, 1, 2… without a gap")
        return Computation(
            self.name, tuple(self.instructions), self.root_position, thread, start, end
        )
