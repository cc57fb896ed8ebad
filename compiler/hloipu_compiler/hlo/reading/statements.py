"""Statements: one instruction each, values parsed, names not yet resolved.

Both ways of reading end here. The line lexer hands over the texts of a printed line, the grammar
hands over stretches; shapes and attribute lists are read once per distinct text of one parse.
"""

from enum import IntEnum
from typing import NamedTuple

from hloipu_compiler.hlo.attributes.attribute_rules import check_attribute_rules, normalised
from hloipu_compiler.hlo.attributes.attribute_values import read_value
from hloipu_compiler.hlo.attributes.metadata import check_metadata
from hloipu_compiler.hlo.attributes.raw_checks import check_raw
from hloipu_compiler.hlo.attributes.shape_text import ShapeReader
from hloipu_compiler.hlo.syntax.limits import Limits
from hloipu_compiler.hlo.syntax.records import SyntaxStatement
from hloipu_compiler.hlo.syntax.text_fault import TextFault
from hloipu_compiler.ir.attribute_kinds import COMPUTATION_KINDS, INSTRUCTION_KINDS, AttributeKind
from hloipu_compiler.ir.attributes import NO_ATTRIBUTES, Attributes, Raw, Value
from hloipu_compiler.ir.literals import Literal
from hloipu_compiler.ir.ops import COMMON_ATTRIBUTES, LEGACY, OPS, Op
from hloipu_compiler.ir.shapes import Shape
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.nearest import Suggestions

KEPT_ASIDE = frozenset({"metadata", "backend_config"})
"""Attributes that differ on nearly every line; they stay text and outside of attribute lists."""


class Form(IntEnum):
    """Amount of work to make an instruction of a statement."""

    PLAIN = 0
    PARAMETER = 1
    CONSTANT = 2
    SPECIAL = 3
    """Checked or rewritten by `special_forms.py`."""


class AttributeFault(NamedTuple):
    """Something wrong with an attribute list; `key` is "" where the whole statement is meant."""

    key: str
    fault: TextFault


@dataclass(frozen=True, slots=True)
class Prepared:
    """An opcode with its attribute list, read and checked; shared by all equal statements."""

    opcode: str
    attributes: Attributes
    form: Form
    fewest: int
    most: int
    faults: tuple[AttributeFault, ...] = ()


class Statement(NamedTuple):
    """One instruction of the text."""

    name: str
    is_root: bool
    shape: Shape | None
    prepared: Prepared
    inside: str
    """What stands between the parentheses, where the line lexer read the statement."""
    metadata: str
    backend_config: str
    start: int
    end: int
    syntax: SyntaxStatement | None = None
    """Where the grammar read the statement: the stretches of all its parts."""


_MOST_FAULTS = 20
"""Of one attribute list."""
_CALLING = frozenset(key for key, kind in INSTRUCTION_KINDS.items() if kind in COMPUTATION_KINDS)
PAIRS = tuple[tuple[str, str], ...]
_ANY = 1 << 62
_SUGAR = ("-start", "-update", "-done")
_SPECIAL = frozenset({
    "tuple", "conditional", "custom-call", "reduce", "reduce-window", "scatter", "sort", "scan",
    "async-start", "async-update", "async-done", "cross-replica-sum", "tuple-select",
    "generate-token", "trace", "infeed", "outfeed", "send", "send-done", "recv", "recv-done",
    "dynamic-slice", "dynamic-update-slice", "host-compute", "collective-permute",
    "collective-permute-start",
})  # fmt: skip


class StatementReader:
    """Reads shapes and attribute lists of one text, each distinct one once."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.shapes = ShapeReader(limits)
        self._prepared: dict[tuple[str, PAIRS], Prepared] = {}
        self._values: dict[tuple[str, str], Value] = {}
        self.suggestions = Suggestions()
        self.literals: dict[tuple[str, Shape], Literal] = {}
        """Short literals that were found right."""

    def prepare(self, opcode: str, pairs: PAIRS) -> Prepared:
        """Read and check an attribute list; what is wrong with it is in its `faults`."""
        known = self._prepared.get((opcode, pairs))
        if known is None:
            known = self._prepare(opcode, pairs)
            self._prepared[opcode, pairs] = known
        return known

    def value(self, key: str, text: str, kind: AttributeKind | None) -> Value:
        """Read one value; TextFault where it is not of its kind."""
        known = self._values.get((key, text))
        if known is None:
            if kind is None:
                known = Raw(text)
            else:
                known = normalised(key, read_value(kind, text, self.shapes))
                check_raw(key, text)
            self._values[key, text] = known
        return known

    def check_aside(self, key: str, text: str) -> None:
        """Check metadata or a backend_config, which stay text; TextFault where XLA refuses it."""
        if key == "metadata":
            check_metadata(text)

    def _prepare(self, opcode: str, pairs: PAIRS) -> Prepared:
        opcode, pairs = modern_attributes(opcode, pairs)
        op = OPS.get(opcode)
        sugar_of = OPS.get(wrapped_opcode(opcode)) if is_sugar(opcode) else None
        if op is None and sugar_of is None:
            return Prepared(
                opcode, NO_ATTRIBUTES, Form.SPECIAL, 0, _ANY, (self._unknown_opcode(opcode),)
            )
        values: dict[str, Value] = {}
        faults: list[AttributeFault] = []
        called: list[str] = []
        for key, text in pairs:
            if len(faults) >= _MOST_FAULTS:
                break
            kind = INSTRUCTION_KINDS.get(key)
            if key in values:
                faults.append(AttributeFault(key, TextFault("E0125", f"{key}= is written twice")))
                continue
            if kind is not None and not _allows(op, sugar_of, opcode, key):
                faults.append(self._unexpected(opcode, op or sugar_of, key))
                continue
            try:
                value = self.value(key, text, kind)
            except TextFault as fault:
                faults.append(AttributeFault(key, fault))
                value = Raw(text)
            values[key] = value
            if key in _CALLING:
                called += [value] if isinstance(value, str) else value  # type: ignore[arg-type]
        if op is not None:
            faults += self._missing(op, values)
        if not faults:
            faults += [
                AttributeFault(*key_and_fault)
                for key_and_fault in check_attribute_rules(opcode, values, self.suggestions)
            ]
        attributes = Attributes(values, tuple(called)) if values else NO_ATTRIBUTES
        return _prepared(opcode, op, attributes, tuple(faults))

    def _unknown_opcode(self, opcode: str) -> AttributeFault:
        shown = opcode if len(opcode) <= 64 else f"{opcode[:61]}…"
        hint = self.suggestions.hint(opcode, OPS)
        fault = TextFault("E0130", f"unknown opcode {shown}", expected="an HLO opcode", hint=hint)
        return AttributeFault("", fault)

    def _unexpected(self, opcode: str, op: Op | None, key: str) -> AttributeFault:
        allowed = sorted(op.attributes) if op else []
        listed = ", ".join(f"{name}=" for name in allowed) or "no attributes of its own"
        hint = self.suggestions.hint(key, allowed, "=") or f"{opcode} takes {listed}"
        return AttributeFault(key, TextFault("E0126", f"{opcode} takes no {key}=", hint=hint))

    def _missing(self, op: Op, values: dict[str, Value]) -> list[AttributeFault]:
        faults = []
        required = op.required | _GATHER if op.name == "gather" else op.required
        for key in sorted(required - values.keys()):
            unknown = [k for k in values if k not in INSTRUCTION_KINDS]
            hint = self.suggestions.hint(key, unknown, "=") and f"{key}= is the right spelling"
            fault = TextFault(
                "E0127",
                f"{op.name} needs {key}=",
                expected=f"{key}= with {INSTRUCTION_KINDS[key].value}",
                hint=hint,
            )
            faults.append(AttributeFault("", fault))
        return faults


_NATIVE = frozenset({"all-gather", "all-reduce", "collective-permute", "copy", "recv", "send"})
"""These have starts and dones of their own, and no updates."""


def is_sugar(opcode: str) -> bool:
    """Whether an opcode is an existing one with -start, -update or -done after it."""
    wrapped = wrapped_opcode(opcode)
    return (
        opcode not in OPS
        and wrapped in OPS
        and wrapped not in _NATIVE
        and wrapped not in LEGACY
        and not wrapped.startswith("async-")
    )


def wrapped_opcode(opcode: str) -> str:
    """Return X of the sugar `X-start`, `X-update`, `X-done`, or '' where it is no such sugar."""
    for ending in _SUGAR:
        if opcode.endswith(ending):
            return opcode.removesuffix(ending)
    return ""


def _needs_look(opcode: str, attributes: Attributes) -> bool:
    if opcode == "broadcast" and "dimensions" not in attributes:
        return True
    return "control-predecessors" in attributes or "parameter_replication" in attributes


def _prepared(
    opcode: str, op: Op | None, attributes: Attributes, faults: tuple[AttributeFault, ...]
) -> Prepared:
    if op is None or opcode in _SPECIAL or faults or _needs_look(opcode, attributes):
        form = Form.SPECIAL
    elif opcode == "parameter":
        form = Form.PARAMETER
    else:
        form = Form.CONSTANT if opcode == "constant" else Form.PLAIN
    fewest = op.fewest_operands if op else 0
    most = _ANY if op is None or op.most_operands is None else op.most_operands
    return Prepared(opcode, attributes, form, fewest, most, faults)


ASYNC_KEYS = frozenset({"async_execution_thread", "output_to_operand_aliasing", "calls"})
"""What belongs to an asynchronous pair and not to the operation that it wraps."""


def _allows(op: Op | None, sugar_of: Op | None, opcode: str, key: str) -> bool:
    if key in COMMON_ATTRIBUTES:
        return True
    if op is not None:
        return key in op.required or key in op.optional
    if key in ASYNC_KEYS:
        return True
    return sugar_of is not None and opcode.endswith("-start") and key in sugar_of.attributes


_GATHER = frozenset({"offset_dims", "collapsed_slice_dims", "start_index_map", "slice_sizes"})
"""Required of a gather today; optional in the table because dumps of 2018 name them otherwise."""


COMPARISONS = {
    "less-than": "LT", "greater-than": "GT", "equal-to": "EQ", "not-equal-to": "NE",
    "less-than-or-equal-to": "LE", "greater-than-or-equal-to": "GE",
}  # fmt: skip
"""Opcodes until March 2019."""

_OPCODES = {"all-reduce-scatter": "reduce-scatter", "generate-token": "after-all"}
_RENAMED = {
    "output_window_dims": "offset_dims",
    "elided_window_dims": "collapsed_slice_dims",
    "gather_dims_to_operand_dims": "start_index_map",
    "window_bounds": "slice_sizes",
    "all_reduce_id": "channel_id",
    "thread_name": "async_execution_thread",
    "original_value": "origin",
}
_DROPPED = frozenset({"outer_dimension_partitions", "async_group_id", "barrier"})
_OLD_KEYS = _RENAMED.keys() | _DROPPED | {"is_cross_program_prefetch"}


def modern_attributes(opcode: str, pairs: PAIRS) -> tuple[str, PAIRS]:
    """Return today's opcode and attributes for those of an older dump.

    Rewrites that add instructions are in `legacy_forms.py`, those of literals in
    `hlo/literals/values.py`. Dates: history of openxla/xla `hlo_parser.cc`.
    """
    if opcode in COMPARISONS and not any(key == "direction" for key, _ in pairs):
        return "compare", (("direction", COMPARISONS[opcode]), *pairs)
    opcode = _OPCODES.get(opcode, opcode)
    if not any(key in _OLD_KEYS for key, _ in pairs):
        return opcode, pairs
    modern = []
    for key, value in pairs:
        if key == "is_cross_program_prefetch":
            modern += [("cross_program_prefetch_index", "0")] if value == "true" else []
        elif key not in _DROPPED:
            modern.append((_RENAMED.get(key, key), value))
    return opcode, tuple(modern)
