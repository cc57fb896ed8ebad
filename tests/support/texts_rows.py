"""One-line descriptions of instructions, and the modules that they stand for.

A row is a statement whose operands are shapes: `f32[2] add(f32[2], f32[2])`. Each operand becomes a
parameter, and each computation that the attributes name is taken from `COMPUTATIONS`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

_SCALAR_BINARY = "{name} {{\n  a = {t}[] parameter(0)\n  b = {t}[] parameter(1)\n  ROOT r = {o}[] {op}(a, b){attrs}\n}}\n"


def _binary(name: str, element: str, op: str, attributes: str = "") -> str:
    out = "pred" if op == "compare" else element
    return _SCALAR_BINARY.format(name=name, t=element, o=out, op=op, attrs=attributes)


def _library() -> dict[str, str]:
    made = {}
    for element in ("f32", "bf16", "f64", "s32", "u8", "u32", "pred", "c64"):
        made[f"add_{element}"] = _binary(f"add_{element}", element, "add")
    for element in ("f32", "s32"):
        for op in ("maximum", "minimum", "multiply"):
            made[f"{op}_{element}"] = _binary(f"{op}_{element}", element, op)
        for direction in ("LT", "GE", "GT"):
            name = f"{direction.lower()}_{element}"
            made[name] = _binary(name, element, "compare", f", direction={direction}")
    made["and_pred"] = _binary("and_pred", "pred", "and")
    made["lt_f32_s32"] = (
        "lt_f32_s32 {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  c = s32[] parameter(2)\n"
        "  d = s32[] parameter(3)\n  ROOT r = pred[] compare(a, b), direction=LT\n}\n"
    )
    made["pair_f32"] = (
        "pair_f32 {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  c = f32[] parameter(2)\n"
        "  d = f32[] parameter(3)\n  x = f32[] add(a, c)\n  y = f32[] maximum(b, d)\n"
        "  ROOT r = (f32[], f32[]) tuple(x, y)\n}\n"
    )
    made["pair_f32_s32"] = (
        "pair_f32_s32 {\n  a = f32[] parameter(0)\n  b = s32[] parameter(1)\n  c = f32[] parameter(2)\n"
        "  d = s32[] parameter(3)\n  x = f32[] add(a, c)\n  y = s32[] add(b, d)\n"
        "  ROOT r = (f32[], s32[]) tuple(x, y)\n}\n"
    )
    made["negate_f32"] = "negate_f32 {\n  a = f32[] parameter(0)\n  ROOT r = f32[] negate(a)\n}\n"
    for size in ("", "4", "2,3"):
        tag = size.replace(",", "x") or "scalar"
        shape = f"f32[{size}]"
        made[f"sine_{tag}"] = f"sine_{tag} {{\n  a = {shape} parameter(0)\n  ROOT r = {shape} sine(a)\n}}\n"
        made[f"cosine_{tag}"] = f"cosine_{tag} {{\n  a = {shape} parameter(0)\n  ROOT r = {shape} cosine(a)\n}}\n"
    made["sum_two"] = "sum_two {\n  a = f32[4] parameter(0)\n  b = f32[4] parameter(1)\n  ROOT r = f32[4] add(a, b)\n}\n"
    made["two_results"] = (
        "two_results {\n  a = f32[4] parameter(0)\n  n = f32[4] negate(a)\n  s = f32[4] sine(a)\n"
        "  ROOT r = (f32[4], f32[4]) tuple(n, s)\n}\n"
    )
    made["no_parameters"] = "no_parameters {\n  ROOT r = f32[] constant(1)\n}\n"
    made["small_count"] = (
        "small_count {\n  s = (s32[], f32[4]) parameter(0)\n  i = s32[] get-tuple-element(s), index=0\n"
        "  n = s32[] constant(5)\n  ROOT r = pred[] compare(i, n), direction=LT\n}\n"
    )
    made["next_count"] = (
        "next_count {\n  s = (s32[], f32[4]) parameter(0)\n  i = s32[] get-tuple-element(s), index=0\n"
        "  one = s32[] constant(1)\n  j = s32[] add(i, one)\n  x = f32[4] get-tuple-element(s), index=1\n"
        "  y = f32[4] cosine(x)\n  ROOT r = (s32[], f32[4]) tuple(j, y)\n}\n"
    )
    made["below_f32"] = (
        "below_f32 {\n  s = f32[] parameter(0)\n  n = f32[] constant(5)\n  ROOT r = pred[] compare(s, n), direction=LT\n}\n"
    )
    made["sum_scan"] = (
        "sum_scan {\n  x = f32[3] parameter(0)\n  c = f32[3] parameter(1)\n  s = f32[3] add(x, c)\n"
        "  ROOT r = (f32[3], f32[3]) tuple(s, s)\n}\n"
    )
    return made


COMPUTATIONS: Mapping[str, str] = _library()
_SPLIT = re.compile(r"^(?P<shape>.*?)\s*(?P<opcode>[a-z][a-z0-9-]*)\((?P<rest>.*)$", re.DOTALL)


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
        names = [] if raw else [f"p{i}" for i in range(len(self.operands))]
        lines = [f"  {n} = {s} parameter({i})" for i, (n, s) in enumerate(zip(names, self.operands, strict=False))]
        inside = self.argument if raw else ", ".join(names)
        tail = "".join(f", {a}" for a in self.attributes)
        shape = f"{self.shape} " if self.shape else ""
        lines.append(f"  ROOT result = {shape}{self.opcode}({inside}){tail}")
        called = [body for name, body in COMPUTATIONS.items() if _names(name, tail)]
        header = f"HloModule row{', ' if self.header else ''}{self.header}\n\n"
        return header + "\n".join(called) + "\nENTRY main {\n" + "\n".join(lines) + "\n}\n"


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
    return Row(matched["shape"], matched["opcode"], operands, attributes, inside if raw else "", header)


def rows(table: str) -> list[Row]:
    """Read a table of rows, one to a line; `#` starts a remark, blank lines are skipped."""
    lines = (line.strip() for line in table.splitlines())
    return [row(line) for line in lines if line and not line.startswith("#")]
