"""A module as Graphviz DOT text: one cluster per computation, edges from operand to user.

The text is linear in what it shows; beyond a cap the rest is counted in a note, since no layout
program draws more.
"""

from hloipu_compiler.hlo.printing.print_options import Layouts, ShapePrinter
from hloipu_compiler.ir.graph import Computation, Instruction, Module, control_predecessors
from hloipu_compiler.ir.ops import OPS, Trait

MOST_NODES = 5000
LONGEST_LABEL = 120

_FILLS: tuple[tuple[Trait, str], ...] = (
    (Trait.COLLECTIVE, "#f4b183"),
    (Trait.CALLER, "#ffe699"),
    (Trait.APPLIER, "#c5b0e6"),
    (Trait.SIDE_EFFECT, "#f8a5a5"),
    (Trait.ELEMENTWISE, "#d9ead3"),
    (Trait.DATA_MOVEMENT, "#d0e0f0"),
)


def dot_module(module: Module, *, most_nodes: int = MOST_NODES) -> str:
    """Return the DOT text of a whole module; dashed edges lead to called computations."""
    lines = _opening(module.name)
    left = most_nodes
    shown: list[int] = []
    for number, computation in enumerate(module.computations):
        if left <= 0:
            break
        is_entry = number == module.entry_position
        lines += _cluster(computation, number, left, is_entry=is_entry)
        shown.append(min(left, len(computation.instructions)))
        left -= shown[-1]
    lines += _calls(module, shown)
    if sum(shown) < module.instruction_count:
        note = f"{module.instruction_count} instructions, the first {sum(shown)} shown"
        lines.append(f"  note [shape=note label={dot_quoted(note)}];")
    return "\n".join([*lines, "}", ""])


def dot_quoted(text: str) -> str:
    """Return text as a DOT string; line ends become DOT's own."""
    printable = "".join(c if c.isprintable() or c == "\n" else "?" for c in text)
    return '"' + printable.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _opening(name: str) -> list[str]:
    return [
        f"digraph {dot_quoted(name)} {{",
        "  rankdir=TB;",
        "  compound=true;",
        '  node [shape=box style="rounded,filled" fillcolor=white fontname=Helvetica fontsize=10];',
    ]


def _cluster(computation: Computation, number: int, most: int, *, is_entry: bool) -> list[str]:
    title = f"ENTRY {computation.name}" if is_entry else computation.name
    lines = [f"  subgraph cluster_{number} {{", f"    label={dot_quoted(title)};"]
    shapes = ShapePrinter(Layouts.NONE, 0)
    instructions = computation.instructions[:most]
    for position, instruction in enumerate(instructions):
        style = _style(instruction, is_root=position == computation.root)
        label = dot_quoted(_label(instruction, shapes.text(instruction.shape)))
        lines.append(f"    n{number}_{position} [label={label}{style}];")
    lines.append("  }")
    for position, instruction in enumerate(instructions):
        for operand in dict.fromkeys(instruction.operands):
            if operand < most:
                lines.append(f"  n{number}_{operand} -> n{number}_{position};")
        for name in control_predecessors(instruction):
            before = computation.position.get(name, most)
            if before < most:
                lines.append(f"  n{number}_{before} -> n{number}_{position} [style=dotted];")
    return lines


def _label(instruction: Instruction, shape: str) -> str:
    parts = [f"{instruction.opcode} {instruction.name}", shape]
    if instruction.literal is not None and instruction.literal.text:
        parts.append(instruction.literal.text[: LONGEST_LABEL // 2])
    return "\n".join(
        part if len(part) <= LONGEST_LABEL else f"{part[: LONGEST_LABEL - 1]}…" for part in parts
    )


def _style(instruction: Instruction, *, is_root: bool) -> str:
    op = OPS.get(instruction.opcode)
    fill = next((color for trait, color in _FILLS if op and trait in op.traits), "")
    root = " penwidth=2.5" if is_root else ""
    return f'{root} fillcolor="{fill}"' if fill else root


def _calls(module: Module, shown: list[int]) -> list[str]:
    """Return the edges from a called computation's root to its caller, where both are shown."""
    numbers = {c.name: i for i, c in enumerate(module.computations)}
    lines = []
    for number, count in enumerate(shown):
        caller = module.computations[number]
        for position, instruction in enumerate(caller.instructions[:count]):
            for name in instruction.attributes.called:
                callee = numbers.get(name, len(shown))
                if callee >= len(shown) or module.computations[callee].root >= shown[callee]:
                    continue
                lines.append(
                    f"  n{callee}_{module.computations[callee].root} -> n{number}_{position} "
                    f"[style=dashed ltail=cluster_{callee} constraint=false];"
                )
    return lines
