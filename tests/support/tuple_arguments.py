"""Steps whose entry takes one tuple, as TensorFlow and PyTorch/XLA print them, from JAX's texts."""

import re

_PARAMETER = re.compile(r"^(\s+)(%?[\w.-]+) = (\S+) parameter\((\d+)\)(.*)$")
_ALIAS = re.compile(r"(\{[0-9, ]*\}): \((\d+), \{\}")


def taking_a_tuple(text: str) -> str:
    """Return HLO text whose entry takes what it took in one tuple."""
    head, entry = text.split("\nENTRY ", 1)
    first, rest = head.split("\n", 1)
    first = _ALIAS.sub(
        r"\1: (0, {\2}", re.sub(r", entry_computation_layout=\{\(.*\)->.*\}", "", first)
    )
    shapes: dict[int, str] = {}
    lines = []
    for line in entry.splitlines():
        found = _PARAMETER.match(line)
        if found:
            space, name, shape, number, after = found.groups()
            shapes[int(number)] = shape
            after = re.sub(r", metadata=\{.*\}", "", after)
            line = f"{space}{name} = {shape} get-tuple-element(every), index={number}{after}"
        lines.append(line)
    whole = ", ".join(shapes[n] for n in sorted(shapes))
    lines.insert(1, f"  every = ({whole}) parameter(0)")
    lines[0] = "main {"
    return "\n".join([first, rest, "ENTRY " + "\n".join(lines)])
