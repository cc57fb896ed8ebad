import re

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.hlo.printing.dot_text import dot_module, dot_quoted

TEXT = """
HloModule m
f { x = f32[] parameter(0)  ROOT n = f32[] negate(x) }
ENTRY e {
  p = f32[] parameter(0)
  c = f32[] call(p), to_apply=f
  s = f32[] add(c, c), control-predecessors={p}
  ROOT t = (f32[], f32[]) tuple(s, p)
}
"""


def test_clusters_nodes_and_edges() -> None:
    text = dot_module(parse(TEXT))
    assert text.count("subgraph cluster_") == 2
    assert 'label="ENTRY e"' in text
    assert re.findall(r"n1_\d -> n1_\d;", text) == [
        "n1_0 -> n1_1;",
        "n1_1 -> n1_2;",
        "n1_2 -> n1_3;",
        "n1_0 -> n1_3;",
    ]
    assert "n1_0 -> n1_2 [style=dotted];" in text
    assert "n0_1 -> n1_1 [style=dashed" in text


def test_labels_are_escaped() -> None:
    assert dot_quoted('a"\\\n\x07') == '"a\\"\\\\\\n?"'


def test_the_cap_leaves_no_loose_ends() -> None:
    text = dot_module(parse(TEXT), most_nodes=4)
    nodes = set(re.findall(r"(n\d_\d) \[label", text))
    assert len(nodes) == 4
    assert {n for edge in re.findall(r"(n\d_\d) -> (n\d_\d)", text) for n in edge} <= nodes
    assert "6 instructions, the first 4 shown" in text
