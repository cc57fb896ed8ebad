"""One computation from its statements: operands resolved to positions, instructions made."""

import re
from collections.abc import Sequence
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING

from hloipu_compiler.errors import Note
from hloipu_compiler.hlo.lexer import Piece
from hloipu_compiler.hlo.limits import TextLimitError, check_limit
from hloipu_compiler.hlo.line_lexer import NAME, SHAPE
from hloipu_compiler.hlo.literal_values import check_literal
from hloipu_compiler.hlo.special_forms import add_special
from hloipu_compiler.hlo.statements import KEPT_ASIDE, Form, Prepared, Statement
from hloipu_compiler.hlo.syntax import Stretch, SyntaxAttribute, SyntaxCall, SyntaxOperand, SyntaxStatement
from hloipu_compiler.hlo.text_fault import TextFault
from hloipu_compiler.inference.faults import ShapeFault
from hloipu_compiler.ir.attributes import NO_ATTRIBUTES
from hloipu_compiler.ir.graph import Computation, Instruction
from hloipu_compiler.ir.literals import Literal
from hloipu_compiler.ir.ops import NEEDS_SHAPE
from hloipu_compiler.ir.shapes import Shape, TupleShape, compatible

if TYPE_CHECKING:
    from hloipu_compiler.hlo.build import ModuleBuilder

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

    # ---- printed statements ---------------------------------------------------------------------

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
        try:
            return tuple([at[name] for name in names])
        except KeyError:
            self.module.report(None, "", "")
            raise

    def _shaped_operands(self, inside: str) -> tuple[int, ...]:
        """Resolve `shape name, …` and compare each shape with the operand's own."""
        found = []
        end = 0
        read, memo = self.module.reader.shapes.read, self.module.reader.shapes.memo
        for match in iter(_shaped.scanner(inside).match, None):  # type: ignore[attr-defined]
            text, name = match.groups()
            position = self.at.get(name)
            if position is None:
                break
            try:
                shape = memo.get(text) or read(text)
            except TextFault:
                break
            own = self.instructions[position].shape
            if shape is not own and not compatible(shape, own):
                break
            found.append(position)
            end = match.end()
        if end != len(inside) or inside.endswith(", "):
            self.module.report(None, "", "")
        return tuple(found)

    # ---- statements that the grammar has read ---------------------------------------------------

    def add_syntax(self, syntax: SyntaxStatement) -> None:
        """Add one statement; what is wrong with it is reported."""
        module = self.module
        check_limit(module.limits, "nesting", syntax.depth, syntax.where.start)
        module.count(1, syntax.where.start)
        if syntax.name.startswith("__") and not syntax.name.startswith("__xla_"):
            hint = "names that begin with two underscores are XLA's own"
            module.report(syntax.name_at, "E0128", f"illegal name {syntax.name}", hint=hint)
        name = syntax.name or module.unique_name(syntax.call.opcode.text)
        try:
            statement = self._read(name, syntax.is_root, syntax.shape, syntax.call, syntax)
            position = FAILED
            if statement is not None:
                position = self._add_statement(statement, syntax.call)
        except TextLimitError as error:
            raise error.placed(syntax.where.start) from None
        if position == FAILED:
            self.at.setdefault(name, FAILED)
        if syntax.is_root:
            self._set_root(name, syntax)
        self._last = name

    def _add_statement(self, statement: Statement, call: SyntaxCall) -> int:
        """Resolve operands and make the instruction; return its position or FAILED."""
        module, prepared = self.module, statement.prepared
        opcode_at = Stretch(call.opcode.start, call.opcode.end)
        operands = [self._operand(operand) for operand in call.operands]
        if FAILED in operands or prepared.faults:
            return FAILED
        if not prepared.fewest <= len(operands) <= prepared.most:
            module.report(opcode_at, "E0131", _wrong_count(prepared, len(operands)))
            return FAILED
        before = len(module.faults)
        inside = call.inside
        number, literal, shape = -1, None, statement.shape
        if shape is None and prepared.opcode in NEEDS_SHAPE:
            message = f"{prepared.opcode} must say the shape of its result"
            hint = f"write it before the opcode: f32[2,3] {prepared.opcode}(…)"
            module.report(opcode_at, "E0132", message, hint=hint)
            return FAILED
        if prepared.form is Form.SPECIAL:
            return add_special(self, statement, tuple(operands))
        if inside is not None and inside.type == "INT":
            number = self._parameter_number(inside.text, len(self.instructions), inside)
        elif inside is not None and shape is not None:
            literal = self._literal(inside.text, shape, inside)
        elif prepared.opcode in ("parameter", "constant"):
            what = "its number" if prepared.opcode == "parameter" else "its value"
            module.report(opcode_at, "E0133", f"{prepared.opcode} needs {what} in parentheses")
        if len(module.faults) > before:
            return FAILED
        if shape is None:
            shape = self.infer(statement, prepared, tuple(operands))
            if shape is None:
                return FAILED
        return self.add(
            statement, shape, tuple(operands), literal=literal, parameter_number=number
        )

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
            return infer_shape(
                prepared.opcode, shapes, prepared.attributes, None,
                lambda name: known[name].program_shape,
            )  # fmt: skip
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
        """Return the literal of a constant and the number of a parameter with special attributes."""
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
            found = [a.value for a in statement.syntax.attributes if a.key == key]
            where = found[0] if found else self.opcode_at(statement)
        self.module.report(where, code, message)

    def opcode_at(self, statement: Statement) -> Stretch | None:
        """Return where the opcode stands; None on the fast path."""
        if statement.syntax is None:
            return None
        opcode = statement.syntax.call.opcode
        return Stretch(opcode.start, opcode.end)

    def _read(
        self,
        name: str,
        is_root: bool,
        shape_at: Stretch | None,
        call: SyntaxCall,
        syntax: SyntaxStatement,
    ) -> Statement | None:
        """Read shape and attributes; None where the shape is wrong."""
        module = self.module
        shape = None
        if shape_at is not None:
            shape = module.read_shape(shape_at)
            if shape is None:
                return None
        pairs, aside = [], {"metadata": "", "backend_config": ""}
        for attribute in syntax.attributes if call is syntax.call else ():
            value = self._attribute_text(attribute)
            if attribute.key in KEPT_ASIDE:
                self._check_aside(attribute, value, twice=bool(aside[attribute.key]))
                aside[attribute.key] = value
            else:
                pairs.append((attribute.key, value))
        prepared = module.reader.prepare(call.opcode.text, tuple(pairs))
        for key, fault in prepared.faults:
            self._report_attribute(syntax, call, key, fault)
        where = syntax.where if call is syntax.call else Stretch(call.opcode.start, call.end)
        return Statement(
            name, is_root, shape, prepared, "", aside["metadata"], aside["backend_config"],
            *where, syntax,
        )  # fmt: skip

    def _attribute_text(self, attribute: SyntaxAttribute) -> str:
        """Return a value's text; computations written in place get a name of their own."""
        if attribute.callees is None:
            return self.module.source.text[slice(*attribute.value)]
        names = [c.name or self._inline(c.statements, c.where) for c in attribute.callees]
        if self.module.source.text.startswith("{", attribute.value.start) and (
            attribute.key in ("branch_computations", "called_computations")
        ):
            return f"{{{', '.join(names)}}}"
        return names[0]

    def _inline(self, statements: tuple[SyntaxStatement, ...], where: Stretch) -> str:
        name = self.module.unique_name("_")
        builder = ComputationBuilder(self.module, name)
        for statement in statements:
            builder.add_syntax(statement)
        self.module.add_computation(builder.finish("main", *where))
        return name

    def _check_aside(self, attribute: SyntaxAttribute, value: str, *, twice: bool) -> None:
        if twice:
            at = Stretch(attribute.key_at, attribute.key_at + len(attribute.key))
            self.module.report(at, "E0125", f"{attribute.key}= is written twice")
        try:
            self.module.reader.check_aside(attribute.key, value)
        except TextFault as fault:
            self.module.report_text(fault, attribute.value)

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

    def _report_undefined(self, operand: SyntaxOperand) -> None:
        close = get_close_matches(operand.name, self.at, 1) if len(self.at) < 20_000 else []
        hint = f"did you mean {close[0]}?" if close else ""
        self.module.report(
            operand.where, "E0129", f"{operand.name} is not defined in {self.name}",
            expected="the name of an earlier instruction", hint=hint,
        )  # fmt: skip

    def _report_attribute(
        self, syntax: SyntaxStatement, call: SyntaxCall, key: str, fault: TextFault
    ) -> None:
        where = Stretch(call.opcode.start, call.opcode.end)
        found = [a for a in syntax.attributes if a.key == key]
        if not found or key == "":
            self.module.report(
                where, fault.code, fault.message, expected=fault.expected, hint=fault.hint
            )
        elif fault.code in ("E0125", "E0126"):
            at = found[-1].key_at
            self.module.report(
                Stretch(at, at + len(key)), fault.code, fault.message, hint=fault.hint
            )
        else:
            self.module.report_text(fault, found[0].value)

    def _operand(self, operand: SyntaxOperand) -> int:
        """Return the position of an operand, made first if it is written in place."""
        declared = None
        module = self.module
        if operand.shape is not None:
            declared = module.read_shape(operand.shape)
            if declared is None:
                return FAILED
        if operand.call is not None:
            return self._nested(operand, operand.call)
        position = self.at.get(operand.name)
        if position is None and self._invent and declared is not None:
            position = self._invented(operand, declared)
        if position is None:
            self._report_undefined(operand)
            return FAILED
        if position == FAILED:
            return FAILED
        for index in operand.indices:
            position = self._element(position, index.text, Stretch(index.start, index.end))
            if position == FAILED:
                return FAILED
        own = self.instructions[position].shape
        if declared is not None and not compatible(declared, own):
            message = f"the operand is declared {declared}, but {operand.name} is {own}"
            module.report(operand.shape, "E0134", message)
            return FAILED
        return position

    def _nested(self, operand: SyntaxOperand, call: SyntaxCall) -> int:
        """Make the instruction that stands in an operand's place."""
        name = self.module.unique_name(call.opcode.text)
        at = Stretch(call.opcode.start, call.opcode.end)
        syntax = SyntaxStatement(name, at, False, operand.shape, call, (), operand.where, 0)
        statement = self._read(name, False, operand.shape, call, syntax)
        self.module.count(1, operand.where.start)
        return FAILED if statement is None else self._add_statement(statement, call)

    def _invented(self, operand: SyntaxOperand, shape: Shape) -> int:
        """Make a parameter of an unknown operand of a text that is one instruction."""
        number = len(self._parameters)
        position = len(self.instructions)
        self._parameters[number] = self.at[operand.name] = position
        self.instructions.append(
            Instruction(
                operand.name, "parameter", shape, parameter_number=number,
                start=operand.where.start, end=operand.where.end,
            )
        )  # fmt: skip
        return position

    def _element(self, position: int, index: str, where: Stretch) -> int:
        """Make the get-tuple-element that `name#index` stands for."""
        shape = self.instructions[position].shape
        size = len(shape.elements) if isinstance(shape, TupleShape) else 0
        if len(index) > 9 or not 0 <= int(index) < size or not isinstance(shape, TupleShape):
            message = f"there is no element {index} in {shape}"
            self.module.report(where, "E0135", message, expected=f"an index below {size}")
            return FAILED
        name = self.module.unique_name("get-tuple-element")
        prepared = self.module.reader.prepare("get-tuple-element", (("index", index),))
        self.at[name] = len(self.instructions)
        self.instructions.append(
            Instruction(
                name, "get-tuple-element", shape.elements[int(index)], (position,),
                prepared.attributes, start=where.start, end=where.end,
            )
        )  # fmt: skip
        return len(self.instructions) - 1

    # ---- checks that both ways share ------------------------------------------------------------

    def _parameter_number(self, text: str, position: int, piece: Stretch | Piece | None = None) -> int:
        where = Stretch(piece.start, piece.end) if piece is not None else None
        number = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1
        if number < 0:
            self.module.report(where, "E0165", f"{text} is no parameter number", expected="0, 1, …")
        elif number in self._parameters:
            other = self.instructions[self._parameters[number]].name
            message = f"parameter number {number} is taken by {other}"
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


def _wrong_count(prepared: Prepared, count: int) -> str:
    fewest, most = prepared.fewest, prepared.most
    if fewest == most:
        wanted = f"{fewest} operand{'s' if fewest != 1 else ''}"
    elif count < fewest:
        wanted = f"at least {fewest}"
    else:
        wanted = f"at most {most}"
    return f"{prepared.opcode} takes {wanted}, but has {count}"
