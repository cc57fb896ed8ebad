"""Builds one computation from the grammar's statements: every form, faults with positions."""

from hloipu_compiler.hlo.reading.build_computation import FAILED, ComputationBuilder
from hloipu_compiler.hlo.reading.special_forms import add_special
from hloipu_compiler.hlo.reading.statements import KEPT_ASIDE, Form, Prepared, Statement
from hloipu_compiler.hlo.syntax.limits import TextLimitError, check_limit
from hloipu_compiler.hlo.syntax.records import (
    Stretch,
    SyntaxAttribute,
    SyntaxCall,
    SyntaxOperand,
    SyntaxStatement,
)
from hloipu_compiler.hlo.syntax.text_fault import TextFault
from hloipu_compiler.ir.graph import Instruction
from hloipu_compiler.ir.ops import NEEDS_SHAPE
from hloipu_compiler.ir.shapes import Shape, TupleShape, compatible


class GrammarComputationBuilder(ComputationBuilder):
    """Adds statements given as stretches of the text; what is wrong with them is reported."""

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
            needed = "its number" if prepared.opcode == "parameter" else "its value"
            module.report(opcode_at, "E0133", f"{prepared.opcode} needs {needed} in parentheses")
        if len(module.faults) > before:
            return FAILED
        if shape is None:
            shape = self.infer(statement, prepared, tuple(operands))
            if shape is None:
                return FAILED
        return self.add(statement, shape, tuple(operands), literal=literal, parameter_number=number)

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
        builder = GrammarComputationBuilder(self.module, name)
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

    def _report_undefined(self, operand: SyntaxOperand) -> None:
        nearest_first = reversed(self.at)
        hint = self.module.reader.suggestions.hint(operand.name, nearest_first)
        self.module.report(
            operand.where, "E0129", f"{operand.name} is not defined in {self.name}",
            expected="the name of an earlier instruction", hint=hint,
        )  # fmt: skip

    def _report_attribute(
        self, syntax: SyntaxStatement, call: SyntaxCall, key: str, fault: TextFault
    ) -> None:
        where = Stretch(call.opcode.start, call.opcode.end)
        attributes = [a for a in syntax.attributes if a.key == key]
        if not attributes or key == "":
            self.module.report(
                where, fault.code, fault.message, expected=fault.expected, hint=fault.hint
            )
        elif fault.code in ("E0125", "E0126"):
            at = attributes[-1].key_at
            self.module.report(
                Stretch(at, at + len(key)), fault.code, fault.message, hint=fault.hint
            )
        else:
            self.module.report_text(fault, attributes[0].value)

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
        actual = self.instructions[position].shape
        if declared is not None and not compatible(declared, actual):
            message = f"the operand is declared {declared}, but {operand.name} is {actual}"
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


def _wrong_count(prepared: Prepared, count: int) -> str:
    fewest, most = prepared.fewest, prepared.most
    if fewest == most:
        wanted = f"{fewest} operand{'s' if fewest != 1 else ''}"
    elif count < fewest:
        wanted = f"at least {fewest}"
    else:
        wanted = f"at most {most}"
    return f"{prepared.opcode} takes {wanted}, but has {count}"
