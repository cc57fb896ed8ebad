"""Logical form of a proved program: nodes over values, and last uses."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from hloipu_runtime.codelets.core.codelet import Codelet
from hloipu_runtime.codelets.ops.move import Transpose
from hloipu_runtime.program import steps as s
from hloipu_runtime.program.collective import Collective
from hloipu_runtime.program.program import Array, Program
from hloipu_runtime.program.proof.exchanges import is_plain_copy
from hloipu_runtime.simulate.functional.loop_turns import with_small_together
from hloipu_runtime.simulate.functional.nodes import Collapsed, Node
from hloipu_runtime.simulate.functional.row_chains import with_row_chains
from hloipu_runtime.simulate.functional.whole_sorts import with_whole_sorts


def collapse(program: Program) -> Collapsed:
    """Return the logical form of a program's body."""
    initial = frozenset(port.initial for port in program.state)
    final = frozenset(port.final for port in program.state)
    return _block(program, program.body, "body", initial, final)


def _block(
    program: Program,
    body: s.Sequence,
    place: str,
    given: frozenset[s.ValueId],
    results: frozenset[s.ValueId],
) -> Collapsed:
    """Collapse one sequence: `given` are its own values from the start, `results` outlive it."""
    constants = dict(program.constants.values())
    nodes = list(_nodes(program, body, place))
    # What puts rare codelets together is loaded where there are such: it loads all about them.
    kinds = {type(node.what).__name__ for node in nodes}
    if "Scatter" in kinds:
        from hloipu_runtime.simulate.functional.whole_scatters import with_whole_scatters

        nodes = with_whole_scatters(nodes, program.values, results)
    nodes = _merged(program, nodes, results, constants)
    nodes = with_whole_sorts(nodes, program.values, results)
    if "Twiddle" in kinds:
        from hloipu_runtime.simulate.functional.whole_transforms import with_whole_transforms

        nodes = with_whole_transforms(nodes, program.values, results)
    nodes = with_row_chains(nodes, program.values, results, constants)
    nodes = with_small_together(nodes, program.values)
    own = set(given)
    for node in nodes:
        own.update(node.writes)
    last: dict[s.ValueId, int] = {}
    for number, node in enumerate(nodes):
        for value in (*node.writes, *node.reads):
            last[value] = number
    dying: dict[int, list[s.ValueId]] = {}
    for value, number in last.items():
        if value in own and value not in results:
            dying.setdefault(number, []).append(value)
    finished = tuple(
        replace(node, frees=tuple(v for v in dying.get(number, ()) if v in node.reads))
        for number, node in enumerate(nodes)
    )
    outside = frozenset(v for node in nodes for v in node.reads if v not in own)
    return Collapsed(finished, outside | (results - own))


def _nodes(program: Program, step: s.Step, place: str) -> Iterator[Node]:
    match step:
        case s.Sequence():
            for number, inner in enumerate(step.steps):
                yield from _nodes(program, inner, f"{place}/{number}")
        case s.ComputeSet():
            for group in step.groups:
                yield Node(group.codelet, place, group.reads, group.writes)
        case s.Exchange():
            for definition in step.definitions:
                if not is_plain_copy(definition, program.values[definition.value].shape):
                    reads = _unique(piece.value for piece in definition.pieces)
                    reads += () if definition.base is None else (definition.base,)
                    yield Node(definition, place, _unique(reads), (definition.value,))
        case s.StreamIn():
            yield Node(step, place, (), (step.value,))
        case s.StreamOut():
            yield Node(step, place, (step.value,), ())
        case Collective():
            reads = _unique(moved.value for moved in step.inputs)
            yield Node(step, place, reads, tuple(moved.value for moved in step.outputs))
        case s.Parallel():
            for number, branch in enumerate(step.branches):
                yield from _nodes(program, branch, f"{place}|{number}")
        case s.Call():
            yield _call(program, step, place)
        case s.Repeat():
            following = frozenset(item.following for item in step.carried)
            turns = frozenset(item.turn for item in step.carried)
            body = _block(program, step.body, f"{place}/repeat", turns, following)
            yield _loop(step, place, (body,), turns)
        case s.Pipeline():
            yield from _nodes(program, step.as_repeat(), place)
        case s.RepeatWhile():
            turns = frozenset(item.turn for item in step.carried)
            kept = frozenset({step.predicate_value})
            condition = _block(program, step.condition, f"{place}/condition", frozenset(), kept)
            following = frozenset(item.following for item in step.carried)
            body = _block(program, step.body, f"{place}/while", turns, following)
            yield _loop(step, place, (condition, body), turns)
        case s.If() | s.Switch():
            yield _choice(program, step, place)
        case _:
            pass


def _unique(values: Iterable[s.ValueId]) -> tuple[s.ValueId, ...]:
    return tuple(dict.fromkeys(values))


def _loop(
    step: s.Repeat | s.RepeatWhile,
    place: str,
    blocks: tuple[Collapsed, ...],
    turns: frozenset[s.ValueId],
) -> Node:
    initial = tuple(item.initial for item in step.carried)
    outside = sorted(frozenset().union(*(block.outside for block in blocks)) - turns)
    if isinstance(step, s.RepeatWhile):
        outside = [v for v in outside if v != step.predicate_value]
    final = tuple(item.final for item in step.carried)
    following = _unique(i.following for i in step.carried if i.following not in outside)
    return Node(step, place, _unique((*initial, *outside)), final, (), blocks, (following,))


def _call(program: Program, step: s.Call, place: str) -> Node:
    arguments = frozenset(item.inner for item in step.arguments)
    results = frozenset(item.inner for item in step.results)
    body = program.functions[step.function]
    block = _block(program, body, s.function_path(step.function), arguments, results)
    outside = sorted(block.outside - arguments)
    reads = _unique((*(item.outer for item in step.arguments), *outside))
    left = _unique(i.inner for i in step.results if i.inner not in outside)
    return Node(step, place, reads, tuple(i.outer for i in step.results), (), (block,), (left,))


def _choice(program: Program, step: s.If | s.Switch, place: str) -> Node:
    selector = step.predicate_value if isinstance(step, s.If) else step.index_value
    blocks = []
    for number, branch in enumerate(step.branches):
        kept = frozenset(item.branch_values[number] for item in step.merged)
        blocks.append(_block(program, branch, f"{place}?{number}", frozenset(), kept))
    reads = [selector, *sorted(frozenset[s.ValueId]().union(*(block.outside for block in blocks)))]
    left = tuple(
        tuple(
            item.branch_values[number]
            for item in step.merged
            if item.branch_values[number] not in block.outside
        )
        for number, block in enumerate(blocks)
    )
    writes = tuple(item.value for item in step.merged)
    return Node(step, place, _unique(reads), writes, (), tuple(blocks), left)


def _merged(
    program: Program,
    nodes: list[Node],
    results: frozenset[s.ValueId],
    constants: dict[s.ValueId, Array],
) -> list[Node]:
    """Put partial results and their combination together where a codelet knows the whole form.

    Likewise a result and its transpose.

    Exact sums partials tile by tile, this sums in one go: the same up to reassociation.
    """
    readers: dict[s.ValueId, int] = {}
    for node in nodes:
        for value in node.reads:
            readers[value] = readers.get(value, 0) + 1
    node_by_value = {
        node.writes[0]: n for n, node in enumerate(nodes) if isinstance(node.what, Codelet)
    }
    dropped: set[int] = set()
    for number in range(len(nodes)):
        while (
            joined := _joined(program, nodes, number, node_by_value, readers, results, constants)
        ) is not None:
            nodes[number], origin = joined
            dropped.add(origin)
    return [node for n, node in enumerate(nodes) if n not in dropped]


def _joined(
    program: Program,
    nodes: list[Node],
    number: int,
    node_by_value: dict[s.ValueId, int],
    readers: dict[s.ValueId, int],
    results: frozenset[s.ValueId],
    constants: dict[s.ValueId, Array],
) -> tuple[Node, int] | None:
    """Return a node joined with the one that makes its partials, and the number of that one."""
    node = nodes[number]
    if not isinstance(node.what, Codelet) or not node.reads:
        return None
    origin = node_by_value.get(node.reads[0])
    if origin is None:
        return None
    source = nodes[origin]
    partials = source.writes
    if node.reads[: len(partials)] != partials or not isinstance(source.what, Codelet):
        return None
    if any(readers[v] != 1 or v in results for v in partials):
        return None
    if isinstance(node.what, Transpose):
        ranks = [len(program.values[v].shape) for v in source.reads]
        turned = source.what.transposed(node.what.permutation, ranks)
        if turned is None:
            return None
        return replace(
            node, what=turned[0], reads=tuple(source.reads[n] for n in turned[1])
        ), origin
    others = node.reads[len(partials) :]
    whole = source.what.combined_with(node.what, [constants.get(v) for v in others])
    if whole is None:
        return None
    codelet, taken = whole
    return replace(node, what=codelet, reads=(*source.reads, *others[:taken])), origin
