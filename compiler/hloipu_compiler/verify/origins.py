"""`origin=`: one original array for each leaf of the instruction's shape, nested alike.

Only the nesting is read here. Source: openxla/xla `xla/service/hlo_verifier.cc`
(VerifyOriginalValue) and `xla/hlo/ir/hlo_original_value.cc`.
"""

import re

from hloipu_compiler.ir.graph import Module
from hloipu_compiler.ir.shapes import leaves
from hloipu_compiler.verify.places import attribute_span
from hloipu_compiler.verify.survey import Place, Report

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[(){},]|\[[^\]]*\]', re.S)
KEYS = ("origin", "original_value")


def check_origin(module: Module, place: Place, report: Report) -> None:
    """Report an origin whose leaves are not those of the shape."""
    instruction = place.instruction
    for key in KEYS:
        raw = instruction.attributes.get(key)
        if not isinstance(raw, str) or "synthetic_call" in raw:
            continue
        paths = origin_indices(raw)
        wanted = {path for path, _ in leaves(instruction.shape)}
        if paths is not None and paths != wanted:
            report.add(
                "E0334",
                f"the {key} of {instruction.name} has {len(paths)} leaves",
                attribute_span(module, instruction, key),
                expected=f"the {len(wanted)} leaves of {instruction.shape}",
            )


def origin_indices(raw: str) -> set[tuple[int, ...]] | None:
    """Return the index paths of the leaves in an origin's text; None where it is not one."""
    text = raw.strip()
    if not (text.startswith("{") and text.endswith("}")):
        return None
    paths: set[tuple[int, ...]] = set()
    path: list[int] = []
    braces = 0
    for match in _TOKEN.finditer(text, 1, len(text) - 1):
        token = match.group()
        if token == "{":
            if braces == 0:
                paths.add(tuple(path))
            braces += 1
        elif token == "}":
            braces -= 1
        elif braces:
            continue
        elif token == "(":
            path.append(0)
        elif token == "," and path:
            path[-1] += 1
        elif token == ")":
            if not path:
                return None
            path.pop()
    return paths
