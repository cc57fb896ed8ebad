"""Modules as networkx graphs and back: nothing is lost, edits are read, and faults name nodes."""

import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import pytest

from hloipu_compiler.errors import GraphError, InvalidHloError, ParseError, VerifyError
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.hlo.printing.printer import print_module
from hloipu_compiler.hlo.syntax.limits import Limits
from hloipu_compiler.ir.graph import Module
from hloipu_runtime.errors import LimitError
from tests.support.texts_valid import OLD_DIALECTS, sections, valid_texts
from tools.fuzz_programs.program import generate

Graph = Any
SAMPLES = sorted((Path(__file__).resolve().parents[3] / "hlo_samples").glob("*.hlo"))


def through_graphml(graph: Graph) -> Graph:
    file = io.BytesIO()
    nx.write_graphml(graph, file)
    file.seek(0)
    return nx.read_graphml(file)


def through_json(graph: Graph) -> Graph:
    record = json.loads(json.dumps(nx.node_link_data(graph, edges="edges")))
    return nx.node_link_graph(record, edges="edges")


def faults_of_round_trip(text: str, *ways: Callable[[Graph], Graph]) -> list[str]:
    """Return in which ways a text's module does not come back from its graph byte for byte."""
    module = parse(text)
    printed, graph = print_module(module), module.to_networkx()
    modules = {"graph": Module.from_networkx(graph, verify=False)}
    for way in ways:
        modules[way.__name__] = Module.from_networkx(way(graph), verify=False)
    return [
        name
        for name, back in modules.items()
        if print_module(back) != printed or back.without_places() != module.without_places()
    ]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_samples_come_back(sample: Path) -> None:
    assert faults_of_round_trip(sample.read_text(encoding="utf-8"), through_json) == []


def test_texts_come_back_from_graphs_and_files() -> None:
    given = [*valid_texts(), *OLD_DIALECTS, *sections("unverifiable.hlo")]
    texts = [text for text in given if is_read(text)]
    assert len(texts) > 600
    for text in texts:
        assert faults_of_round_trip(text, through_graphml, through_json) == [], text


def is_read(text: str) -> bool:
    try:
        parse(text)
    except InvalidHloError:
        return False
    return True


@pytest.mark.thinned(4)
@pytest.mark.parametrize("first", range(0, 200, 25))
def test_fuzzed_programs_come_back(first: int) -> None:
    for number in range(first, first + 25):
        assert faults_of_round_trip(generate(3, number).text) == [], number


def test_a_zoo_dump_comes_back(zoo_file: Path) -> None:
    text = zoo_file.read_text(encoding="utf-8")
    assert faults_of_round_trip(text, through_graphml, through_json) == []


# A string that looks like slots and brackets, an operand twice, calls of both forms, a thread.
TABLES = """FileNames
1 "/a.py"

FunctionNames
1 "main"

FileLocations
1 {file_name_id=1 function_name_id=1 line=7 end_line=7 column=1 end_column=1}

StackFrames
1 {file_location_id=1 parent_frame_id=1}"""
TEXT = r"""HloModule m, input_output_alias={ {}: (0, {}, may-alias) }, replica_count=2

TABLES

%one (x: f32[4]) -> f32[4] {
  %x = f32[4]{0} parameter(0)
  ROOT %n = f32[4]{0} negate(%x)
}

%two (x: f32[4]) -> f32[4] {
  %x = f32[4]{0} parameter(0)
  ROOT %s = f32[4]{0} sine(%x), frontend_attributes={a="{, to_apply={}",calls={},b='{'}
}

%three (x: f32[4]) -> f32[4] {
  ROOT %x = f32[4]{0} parameter(0)
}, execution_thread="an \"other\""

ENTRY %e (p: f32[4], i: s32[]) -> f32[4] {
  %p = f32[4]{0} parameter(0), sharding={replicated}
  %i = s32[] parameter(1)
  %k = f32[4]{0} constant({1, 2, -0, nan})
  %d = f32[4]{0} add(%p, %p), control-predecessors={%k, %i}, metadata={op_name="d"}
  %c = f32[4]{0} custom-call(%d, %k), custom_call_target="t, calls={}", called_computations={}
  %b = f32[4]{0} conditional(%i, %c, %d), branch_computations={%two, %one}
  ROOT %f = f32[4]{0} call(%b), to_apply=%three, backend_config={"x":"calls={}"}
}
""".replace("TABLES", TABLES)


def test_what_the_graph_says() -> None:
    graph = parse(TEXT).to_networkx()
    assert graph.graph == {
        "name": "m", "entry": "e", "stack_tables": TABLES,
        "attributes": "input_output_alias={ {}: (0, {}, may-alias) }, replica_count=2",
    }  # fmt: skip
    assert graph.nodes["e/d"] == {
        "computation": "e", "name": "d", "number": 8, "opcode": "add", "shape": "f32[4]{0}",
        "attributes": "control-predecessors={}", "metadata": '{op_name="d"}',
    }  # fmt: skip
    assert graph.nodes["e/k"]["literal"] == "{1, 2, -0, nan}"
    assert (graph.nodes["e/i"]["parameter_number"], graph.nodes["e/f"]["root"]) == (1, True)
    assert graph.nodes["three/x"]["execution_thread"] == 'an "other"'
    assert graph.nodes["e/f"]["attributes"] == "to_apply={}"
    into = sorted((a, *edge.values()) for a, _, edge in graph.in_edges("e/d", data=True))
    assert into == [
        ("e/i", "control", 1), ("e/k", "control", 0), ("e/p", "operand", 0), ("e/p", "operand", 1),
    ]  # fmt: skip
    calls = [e for e in graph.in_edges("e/b", data=True) if e[2]["kind"] == "call"]
    assert sorted(calls, key=lambda e: e[2]["number"]) == [
        ("two/s", "e/b", {"kind": "call", "attribute": "branch_computations", "number": 0}),
        ("one/n", "e/b", {"kind": "call", "attribute": "branch_computations", "number": 1}),
    ]
    assert nx.is_directed_acyclic_graph(graph)
    assert "two/s" in nx.ancestors(graph, "e/f")


def test_the_hardest_text_comes_back() -> None:
    assert faults_of_round_trip(TEXT, through_graphml, through_json) == []


def test_nodes_may_be_renamed_and_stand_in_any_order() -> None:
    module = parse(TEXT)
    graph = module.to_networkx()
    for seed in range(5):
        ids = list(range(len(graph)))
        random.Random(seed).shuffle(ids)
        other = nx.relabel_nodes(graph, dict(zip(graph, ids, strict=True)))
        mixed = nx.MultiDiGraph(**other.graph)
        mixed.add_nodes_from((i, other.nodes[i]) for i in sorted(other))
        mixed.add_edges_from(other.edges(data=True))
        assert print_module(Module.from_networkx(mixed, verify=False)) == print_module(module)


def test_without_numbers_there_is_a_topological_order() -> None:
    module = parse(SAMPLES[0].read_text(encoding="utf-8"))
    graph = module.to_networkx()
    for node in graph:
        del graph.nodes[node]["number"]
    back = Module.from_networkx(graph)
    assert back.instruction_count == module.instruction_count
    assert {c.name: set(c.position) for c in back.computations} == {
        c.name: set(c.position) for c in module.computations
    }


# ---- edits ---------------------------------------------------------------------------------------

SMALL = """HloModule s

f {
  x = f32[4]{0} parameter(0)
  ROOT n = f32[4]{0} negate(x)
}

ENTRY e {
  p = f32[4]{0} parameter(0)
  q = f32[4]{0} parameter(1)
  a = f32[4]{0} add(p, q)
  b = f32[4]{0} sine(a)
  ROOT c = f32[4]{0} call(b), to_apply=f
}
"""


@pytest.fixture
def graph() -> Graph:
    return parse(SMALL).to_networkx()


def entry_of(graph: Graph) -> list[str]:
    """Return the entry's lines without names' percent signs."""
    lines = print_module(Module.from_networkx(graph)).replace("%", "").split("\n")
    return [x.strip() for x in lines[lines.index("ENTRY " + " ".join(signature(lines))) + 1 : -2]]


def signature(lines: list[str]) -> list[str]:
    return next(x for x in lines if x.startswith("ENTRY")).split()[1:]


def test_a_node_put_between_stands_right_after_its_operand(graph: Graph) -> None:
    graph.add_node("new", computation="e", name="t", opcode="tanh", shape="f32[4]{0}")
    graph.add_edge("e/p", "new", kind="operand", number=0)
    graph.remove_edge("e/p", "e/a")
    graph.add_edge("new", "e/a", kind="operand", number=0)
    assert entry_of(graph)[1:4] == [
        "t = f32[4]{0} tanh(p)", "q = f32[4]{0} parameter(1)", "a = f32[4]{0} add(t, q)",
    ]  # fmt: skip


def test_rewired_operands_against_their_numbers(graph: Graph) -> None:
    graph.remove_edge("e/q", "e/a")
    graph.remove_edge("e/b", "e/c")
    graph.remove_edge("e/a", "e/b")
    graph.add_edge("e/q", "e/b", kind="operand", number=0)
    graph.add_edge("e/b", "e/a", kind="operand", number=1)
    graph.add_edge("e/a", "e/c", kind="operand", number=0)
    assert [line.split()[0] for line in entry_of(graph)] == ["p", "q", "b", "a", "ROOT"]


def test_another_root_and_a_node_removed(graph: Graph) -> None:
    graph.remove_node("e/c")
    graph.nodes["e/b"]["root"] = True
    assert entry_of(graph)[-1] == "ROOT b = f32[4]{0} sine(a)"


def test_another_computation_called_by_an_edge_or_by_text(graph: Graph) -> None:
    graph.add_node("y", computation="g", name="y", opcode="parameter", parameter_number=0,
                   shape="f32[4]{0}", root=True)  # fmt: skip
    graph.remove_edge("f/n", "e/c")
    for node in ("f/x", "f/n"):
        graph.remove_node(node)
    by_text = graph.copy()
    graph.add_edge("y", "e/c", kind="call", attribute="to_apply")
    by_text.nodes["e/c"]["attributes"] = "to_apply=g"
    for edited in (graph, by_text):
        assert entry_of(edited)[-1] == "ROOT c = f32[4]{0} call(b), to_apply=g"


def test_control_edges_come_and_go(graph: Graph) -> None:
    graph.add_edge("e/b", "e/q", kind="control")
    graph.remove_edge("e/q", "e/a")
    graph.add_edge("e/p", "e/a", kind="operand", number=1)
    assert entry_of(graph)[3] == "q = f32[4]{0} parameter(1), control-predecessors={b}"
    again = Module.from_networkx(graph).to_networkx()
    again.remove_edge("e/b", "e/q")
    assert "control-predecessors" not in print_module(Module.from_networkx(again))


# ---- faults --------------------------------------------------------------------------------------


def cycle(graph: Graph) -> None:
    graph.remove_edge("e/p", "e/a")
    graph.add_edge("e/b", "e/a", kind="operand", number=0)


def recursion(graph: Graph) -> None:
    graph.add_node("r", computation="f", name="r", opcode="call", shape="f32[4]")
    graph.add_edge("f/x", "r", kind="operand", number=0)
    graph.add_edge("f/n", "r", kind="call", attribute="to_apply")


def at(node: str, **changes: object) -> Callable[[Graph], None]:
    return lambda graph: graph.nodes[node].update(changes)


def without(node: str, key: str) -> Callable[[Graph], None]:
    return lambda graph: graph.nodes[node].pop(key)


def linked(source: str, target: str, **edge: object) -> Callable[[Graph], None]:
    return lambda graph: graph.add_edge(source, target, **edge)


def header(**changes: object) -> Callable[[Graph], None]:
    return lambda graph: graph.graph.update(changes)


FAULTS: list[tuple[Callable[[Graph], object], type[InvalidHloError], str, str]] = [
    (header(entry="none"), GraphError, "E0180", "the graph's 'entry' is 'none'"),
    (header(attributes=3), GraphError, "E0180", "the graph's 'attributes' is 3"),
    (without("e/a", "name"), GraphError, "E0181", "node 'e/a': there is no 'name'"),
    (at("e/a", opcode=7), GraphError, "E0181", "node 'e/a': 'opcode' is 7"),
    (at("e/a", name="a b"), GraphError, "E0181", "node 'e/a': 'name' is 'a b'"),
    (at("f/x", computation=""), GraphError, "E0181", "node 'f/x': 'computation' is ''"),
    (at("e/a", attributes='x="}{", sharding={'), GraphError, "E0181", "node 'e/a': 'attributes'"),
    (at("e/a", shape=None), GraphError, "E0181", "node 'e/a': 'shape' is None"),
    (at("e/a", number=1.5), GraphError, "E0181", "node 'e/a': 'number' is 1.5"),
    (at("e/a", root="yes"), GraphError, "E0181", "node 'e/a': 'root' is 'yes'"),
    (at("e/a", root=True), GraphError, "E0181", "has as its roots: 'e/a', 'e/c'"),
    (without("e/c", "root"), GraphError, "E0181", "computation 'e' has as its roots: none"),
    (at("e/a", literal="1"), GraphError, "E0181", "node 'e/a': it has more than one of"),
    (linked("e/p", "e/b"), GraphError, "E0182", "'e/b': the edge from 'e/p' has the kind None"),
    (linked("e/p", "e/b", kind="operand"), GraphError, "E0182", "has the number None"),
    (linked("e/p", "e/b", kind="operand", number=0), GraphError, "E0182", "the numbers 0, 0"),
    (lambda g: g.remove_node("e/p"), GraphError, "E0182", "'e/a': its edges of kind 'operand'"),
    (linked("f/x", "e/b", kind="control"), GraphError, "E0182", "comes from computation 'f'"),
    (linked("f/n", "e/b", kind="call"), GraphError, "E0182", "calls by the attribute None"),
    (cycle, GraphError, "E0183", "'e/a' -> 'e/b' -> 'e/a'"),
    (lambda g: g.remove_edge("f/n", "e/c"), GraphError, "E0184", "node 'e/c': no edge says what"),
    (linked("f/n", "e/c", kind="call", attribute="to_apply", number=1), GraphError, "E0184",
     "node 'e/c': 2 edges say what to_apply= calls"),
    (at("e/c", attributes="to_apply=f"), ParseError, "E0125", "node 'e/c': to_apply= is written"),
    (at("e/a", opcode="addd"), ParseError, "E0130", "node 'e/a': unknown opcode addd"),
    (at("e/a", name="p"), ParseError, "E0160", "node 'e/a': instruction p is defined twice"),
    (at("e/q", parameter_number=0), ParseError, "E0166", "node 'e/q': parameter number 0"),
    (recursion, ParseError, "E0170", "computation f calls itself"),
    (at("e/a", shape="f32[5]"), VerifyError, "E0301", "node 'e/a': "),
]  # fmt: skip


@pytest.mark.parametrize(
    ("edit", "error", "code", "message"),
    FAULTS,
    ids=[f"{code}-{n}" for n, (*_, code, _) in enumerate(FAULTS)],
)
def test_faults_name_the_node(
    graph: Graph, edit: Callable[[Graph], None], error: type[InvalidHloError], code: str,
    message: str,
) -> None:  # fmt: skip
    edit(graph)
    with pytest.raises(error) as caught:
        Module.from_networkx(graph)
    fault = next(x for x in caught.value.faults if x.code == code)
    assert message in fault.message
    assert fault.expected or error is not GraphError


def test_all_faults_of_a_graph_are_said_at_once(graph: Graph) -> None:
    at("e/a", number=-1)(graph)
    without("e/b", "opcode")(graph)
    with pytest.raises(GraphError) as caught:
        Module.from_networkx(graph)
    assert [x.message.partition(":")[0] for x in caught.value.faults] == [
        "node 'e/a'", "node 'e/b'",
    ]  # fmt: skip


def test_what_is_no_directed_graph_is_refused(graph: Graph) -> None:
    for given in (graph.to_undirected(), None, nx.MultiDiGraph()):
        with pytest.raises(GraphError) as caught:
            Module.from_networkx(given)
        assert caught.value.code == "E0180"


def test_limits_hold(graph: Graph) -> None:
    with pytest.raises(LimitError):
        Module.from_networkx(graph, limits=Limits(instructions=3))
