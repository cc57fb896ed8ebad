"""A graph as HLO text: callees first, each instruction after its operands."""

from collections.abc import Iterator, Mapping, Sequence

from tools.fuzz_blocks.nodes import Node, Region

PLAIN_LISTS = frozenset(
    "dimensions lhs_batch_dims rhs_batch_dims lhs_contracting_dims rhs_contracting_dims "
    "dynamic_slice_sizes".split()
)
"""Settings that are printed as they are; others stand in what is said already."""


def in_order(roots: Sequence[Node]) -> list[Node]:
    """Return all nodes that some need, each after its operands."""
    order: list[Node] = []
    done: set[int] = set()
    stack = [(x, False) for x in reversed(roots)]
    while stack:
        node, ready = stack.pop()
        if ready:
            order.append(node)
        elif id(node) not in done:
            done.add(id(node))
            stack.append((node, True))
            stack.extend((x, False) for x in reversed(node.operands) if id(x) not in done)
    return order


def module_text(name: str, entry: Region, header: str = "") -> str:
    """Return a module; `header`: further attributes of it."""
    names: dict[int, str] = {}
    bodies: dict[str, str] = {}
    for region in _regions(entry):
        body = _body(region, names)
        names[id(region)] = bodies.setdefault(body, f"region_{len(bodies)}")
    said = [f"HloModule {name}{', ' if header else ''}{header}"]
    for body, own in bodies.items():
        said.append(f"ENTRY main {body}" if own == names[id(entry)] else f"{own} {body}")
    return "\n\n".join(said) + "\n"


def _regions(region: Region) -> Iterator[Region]:
    """Yield a computation and all that it calls, callees first."""
    for node in in_order(_roots(region)):
        for _, called in node.called:
            yield from _regions(called)
    yield region


def _roots(region: Region) -> list[Node]:
    return [*region.parameters, region.root]


def _body(region: Region, names: Mapping[int, str]) -> str:
    numbers = {id(x): i for i, x in enumerate(region.parameters)}
    own: dict[int, str] = {}
    lines = []
    for node in in_order(_roots(region)):
        own[id(node)] = f"{node.opcode.replace('-', '_')}.{len(own)}"
        said = _line(node, own, names, numbers)
        lines.append(f"  {'ROOT ' if node is region.root else ''}{own[id(node)]} = {said}")
    return "\n".join(["{", *lines, "}"])


def _line(
    node: Node, own: Mapping[int, str], names: Mapping[int, str], numbers: Mapping[int, int]
) -> str:
    shape = shape_text(node)
    if node.opcode == "parameter":
        return f"{shape} parameter({numbers[id(node)]})"
    if node.opcode == "constant":
        return f"{shape} constant({node.said})"
    operands = ", ".join(own[id(x)] for x in node.operands)
    attributes = [
        f"{k}={{{','.join(map(str, v))}}}" for k, v in node.settings.items() if k in PLAIN_LISTS
    ]
    attributes += [node.said] if node.said else []
    attributes += [f"{k}={names[id(region)]}" for k, region in node.called]
    return ", ".join([f"{shape} {node.opcode}({operands})", *attributes])


def shape_text(node: Node) -> str:
    """Return a node's shape as HLO writes it."""
    if node.parts:
        return "(" + ", ".join(f"{t}[{_listed(n)}]" for t, n in node.parts) + ")"
    return f"{node.type}[{_listed(node.sizes)}]"


def _listed(sizes: Sequence[int]) -> str:
    return ",".join(map(str, sizes))
