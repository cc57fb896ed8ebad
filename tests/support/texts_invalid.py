"""Invalid texts: written by hand, one for each kind of mistake, and made by mutating valid rows.

`UNPARSABLE` is meant to be refused by XLA's parser, `UNVERIFIABLE` by its HLO verifier. What is
expected of each comes from XLA when the texts are used, not from here.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

from tests.support.texts_ops import all_rows
from tests.support.texts_rows import COMPUTATIONS, TEXTS, Row
from tests.support.texts_valid import sections


def _entries(name: str) -> Iterator[str]:
    """Yield a module for each line of a file: the last statement of its entry."""
    before: list[str] = []
    is_open = False
    for line in (TEXTS / name).read_text(encoding="utf-8").splitlines():
        if line.startswith(">"):
            before = [*(before if is_open else []), line.removeprefix(">")]
        elif line and not line.startswith("#"):
            statements = "".join(f"  {x.strip()}\n" for x in (*before, line) if x)
            yield f"HloModule m\n\nENTRY e {{\n{statements}}}\n"
        is_open = line.startswith(">")


UNPARSABLE = [
    "",
    " ",
    "\n",
    "\ufeffHloModule m ENTRY e { ROOT p = f32[] parameter(0) }",
    "HloModule m\x00 ENTRY e { ROOT p = f32[] parameter(0) }",
    *sections("unparsable.hlo"),
    *_entries("unparsable.rows"),
]
"""Refused by the parser, nearly all."""
UNVERIFIABLE = sections("unverifiable.hlo")
"""Parsed, and refused by the verifier, nearly all."""

_INTEGER = re.compile(r"(?<![\w.])-?\d+(?![\w.])")
_SHAPE = re.compile(r"\b(pred|[subfc]\d+|bf16)\[([\d,]*)\]")


def _retyped(shape: str) -> str:
    """Return a shape with the first element type changed."""
    return _SHAPE.sub(lambda m: f"{'s32' if m[1] != 's32' else 'f32'}[{m[2]}]", shape, count=1)


def _resized(shape: str) -> str:
    """Return a shape with the last size of its first array changed, or a scalar made a vector."""
    return _SHAPE.sub(
        lambda m: f"{m[1]}[{','.join([*m[2].split(',')[:-1], '7'])}]" if m[2] else f"{m[1]}[7]",
        shape, count=1,
    )  # fmt: skip


def _ranked(shape: str) -> str:
    """Return a shape with one dimension more."""
    return _SHAPE.sub(lambda m: f"{m[1]}[{m[2] + ',' if m[2] else ''}2]", shape, count=1)


def _plain(shape: str) -> str:
    return re.sub(r"\{[^}]*\}", "", shape)


def mutations(row: Row) -> Iterator[tuple[str, str]]:
    """Yield (kind of mutation, text) of a row: shapes, operands, attributes, computations."""
    for kind, change in (("type", _retyped), ("size", _resized), ("rank", _ranked)):
        yield f"result {kind}", replace(row, shape=change(_plain(row.shape))).text()
        for at, operand in enumerate(row.operands):
            operands = (*row.operands[:at], change(_plain(operand)), *row.operands[at + 1 :])
            yield f"operand {kind}", replace(row, operands=operands).text()
    yield "result tuple", replace(row, shape=f"({row.shape})").text()
    if row.operands:
        yield "operand missing", replace(row, operands=row.operands[:-1]).text()
        yield "operand extra", replace(row, operands=(*row.operands, row.operands[-1])).text()
        tupled = (f"({row.operands[0]})", *row.operands[1:])
        yield "operand tuple", replace(row, operands=tupled).text()
    yield "attribute unknown", replace(row, attributes=(*row.attributes, "of_tomorrow=1")).text()
    for at, attribute in enumerate(row.attributes):
        before, after = row.attributes[:at], row.attributes[at + 1 :]
        yield "attribute missing", replace(row, attributes=(*before, *after)).text()
        yield "attribute twice", replace(row, attributes=(*row.attributes, attribute)).text()
        for changed in _changed_values(attribute):
            yield "attribute value", replace(row, attributes=(*before, changed, *after)).text()


def _changed_values(attribute: str) -> Iterator[str]:
    key, _, value = attribute.partition("=")
    if key in ("metadata", "backend_config", "frontend_attributes", "statistics", "origin"):
        return
    numbers = list(_INTEGER.finditer(value))
    for number in numbers[:6]:
        for other in ("-1", "99", "0", "1"):
            if other != number[0]:
                yield f"{key}={value[: number.start()]}{other}{value[number.end() :]}"
    if value.startswith("{") and numbers:
        yield f"{key}={{}}"
        yield f"{key}={value[:-1]},0}}"
    if value in COMPUTATIONS:
        for other in ("add_s32", "negate_f32", "pair_f32", "lt_f32", "sine_2x3", "no_parameters"):
            yield f"{key}={other}"
    if value in ("true", "false"):
        yield f"{key}={'false' if value == 'true' else 'true'}"


def invalid_texts() -> list[str]:
    """Return the hand-written invalid texts and every distinct mutation of every row."""
    mutated = dict.fromkeys(text for row in all_rows() for _, text in mutations(row))
    return UNPARSABLE + UNVERIFIABLE + list(mutated)
