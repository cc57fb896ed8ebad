from hloipu_compiler.analysis.summary import summarise
from hloipu_compiler.hlo.parse import parse

FUSED = """HloModule m, input_output_alias={ {0}: (1, {}, may-alias) }
f { a = f32[100] parameter(0)
  b = f32[100] add(a, a), metadata={source_file="/x/model.py" source_line=3}
  ROOT c = f32[100] exponential(b), metadata={source_file="/x/model.py" source_line=4} }
ENTRY e { p = f32[100] parameter(0), metadata={op_name="params[\\"w\\"]"}
  q = f32[10] parameter(1)
  r = f32[100] fusion(p), kind=kLoop, calls=f, metadata={source_file="/x/model.py" source_line=4}
  ROOT t = (f32[10], f32[100]) tuple(q, r) }
"""


def test_lines_inside_a_fusion_move_no_bytes_of_their_own() -> None:
    rows = {row.source: row.cost for row in summarise(parse(FUSED)).source_lines}
    assert set(rows) == {"model.py:3", "model.py:4"}
    assert rows["model.py:3"] == (100, 0, 0, 0)
    assert rows["model.py:4"] == (0, 100, 400, 400)


def test_parameters_say_their_path_and_their_role() -> None:
    rows = summarise(parse(FUSED)).parameters
    assert [(row.number, row.path, row.role, row.bytes) for row in rows] == [
        (0, 'params["w"]', "", 400),
        (1, "", "state", 40),
    ]


def test_the_largest_tensors_are_each_named_once_where_they_are_made() -> None:
    """What a called computation takes as its parameter is not a second tensor."""
    names = [(row.computation, row.name) for row in summarise(parse(FUSED)).largest]
    assert sorted(names[:4]) == [("e", "p"), ("e", "r"), ("f", "b"), ("f", "c")]
    assert ("f", "a") not in names
