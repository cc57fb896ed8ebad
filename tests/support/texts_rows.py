"""One-line descriptions of instructions, and the modules that they stand for.

A row is a statement whose operands are shapes: `f32[2] add(f32[2], f32[2])`. Each operand becomes a
parameter, or a constant where a number follows its shape. Each computation that the attributes name
is taken from `COMPUTATIONS`, or made after its name: `add.f32`, `less.f32.s32` with the types that
are compared and those that go along, `assign.f32` for the second of two scalars.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

TEXTS = Path(__file__).with_name("texts")


def _library() -> dict[str, str]:
    text = (TEXTS / "computations.hlo").read_text(encoding="utf-8").partition("\n\n")[2]
    bodies = [body + "\n" for body in text.rstrip("\n").split("\n\n")]
    return {body.partition(" ")[0]: body for body in bodies}


COMPUTATIONS: Mapping[str, str] = _library()
_SPLIT = re.compile(r"^(?P<shape>.*?)\s*(?P<opcode>[a-z][a-z0-9-]*)\((?P<rest>.*)$", re.DOTALL)
_NUMBER = re.compile(r"(\w+\[[\d,]*\]) ([-\w.]+)")
_MADE = re.compile(r"(?:to_apply|select|scatter)=([a-z][a-z0-9-]*)\.(\w+(?:\.\w+)*)")
_COMPARED = {"less": "LT", "more": "GT", "at-least": "GE", "equal": "EQ"}


@dataclass(frozen=True, slots=True)
class Row:
    """A row taken apart: result shape, opcode, operand shapes, attributes, `key=value` each."""

    shape: str
    opcode: str
    operands: tuple[str, ...]
    attributes: tuple[str, ...] = ()
    argument: str = ""
    """What stands in the parentheses of `parameter` and `constant` in place of operands."""
    header: str = ""

    def text(self) -> str:
        """Return the module that the row stands for."""
        raw = self.opcode in ("constant", "parameter")
        names = [] if raw else [f"x{i}" for i in range(len(self.operands))]
        lines = [f"  {n} = {s}" for n, s in zip(names, self._given(), strict=False)]
        inside = self.argument if raw else ", ".join(names)
        tail = "".join(f", {a}" for a in self.attributes)
        shape = f"{self.shape} " if self.shape else ""
        lines.append(f"  ROOT r = {shape}{self.opcode}({inside}){tail}")
        called = [body for name, body in COMPUTATIONS.items() if _names(name, tail)]
        called.extend(computations_made(tail))
        header = f"HloModule row{', ' if self.header else ''}{self.header}\n\n"
        return header + "\n".join(called) + "\nENTRY main {\n" + "\n".join(lines) + "\n}\n"

    def _given(self) -> Iterator[str]:
        """Yield where each operand comes from: the next parameter, or a number."""
        parameters = 0
        for operand in self.operands:
            if number := _NUMBER.fullmatch(operand):
                yield f"{number[1]} constant({number[2]})"
            else:
                yield f"{operand} parameter({parameters})"
                parameters += 1


def computations_made(attributes: str) -> Iterator[str]:
    """Yield the computations that attributes call after what they do, each once."""
    for name, types in dict.fromkeys(_MADE.findall(attributes)):
        kinds = types.split(".")
        lines = [f"  p{n} = {kinds[n // 2]}[] parameter({n})" for n in range(2 * len(kinds))]
        if name == "assign":
            lines[1] = f"  ROOT {lines[1].strip()}"
        elif name in _COMPARED:
            lines.append(f"  ROOT r = pred[] compare(p0, p1), direction={_COMPARED[name]}")
        else:
            lines.append(f"  ROOT r = {kinds[0]}[] {name}(p0, p1)")
        yield f"{name}.{types} {{\n" + "\n".join(lines) + "\n}\n"


def _names(name: str, tail: str) -> bool:
    return re.search(rf"[=,{{ %]{name}(?![\w.-])", tail) is not None


def split_top(text: str) -> list[str]:
    """Split at commas that stand outside of all brackets and quotes."""
    parts, depth, start, quoted = [], 0, 0, False
    for at, c in enumerate(text):
        if c == '"' and text[at - 1 : at] != "\\":
            quoted = not quoted
        elif quoted:
            continue
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
        elif c == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    parts.append(text[start:])
    return [p.strip() for p in parts if p.strip()]


def row(text: str) -> Row:
    """Take a line `shape opcode(operand shapes), attributes` apart; `@header` may follow."""
    text, _, header = text.partition(" @")
    matched = _SPLIT.match(text)
    if matched is None:
        raise ValueError(f"not a row: {text}")
    rest, depth, end = matched["rest"], 1, 0
    for end, c in enumerate(rest):  # noqa: B007 (the place where it stops)
        depth += (c == "(") - (c == ")")
        if depth == 0:
            break
    inside, tail = rest[:end], rest[end + 1 :]
    raw = matched["opcode"] in ("constant", "parameter")
    operands = () if raw else tuple(split_top(inside))
    attributes = tuple(split_top(tail.lstrip(", ")))
    return Row(
        matched["shape"], matched["opcode"], operands, attributes, inside if raw else "", header
    )


def rows(table: str) -> list[Row]:
    """Read a table of rows, one to a line; `#` starts a remark, blank lines are skipped."""
    lines = (line.strip() for line in table.splitlines())
    return [row(line) for line in lines if line and not line.startswith("#")]
