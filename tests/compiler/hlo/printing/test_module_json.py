import json

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.hlo.printing.module_json import SCHEMA, module_json

TEXT = """
HloModule m, replica_count=2

FileNames
1 "/a.py"

FunctionNames
1 "main"

FileLocations
1 {file_name_id=1 function_name_id=1 line=7 end_line=7 column=1 end_column=1}

StackFrames
1 {file_location_id=1 parent_frame_id=1}

f { x = f32[] parameter(0)  ROOT n = f32[] negate(x), metadata={op_name="neg" stack_frame_id=1} }
ENTRY e {
  k = f32[] constant(nan)
  p = f32[2,3] parameter(0)
  b = f32[2,3] batch-norm-inference(p, p, p, p, p), epsilon=inf, feature_index=1
  t = f32[3,2] transpose(p), dimensions={1,0},
    metadata={op_name="t" source_file="b.py" source_line=3}
  ROOT c = f32[] call(k), to_apply=f, backend_config={"a":1}
}
"""


def test_what_a_module_becomes() -> None:
    found = json.loads(json.dumps(module_json(parse(TEXT)), allow_nan=False))
    assert found["schema"] == SCHEMA
    assert found["attributes"] == {"replica_count": 2}
    assert found["entry"] == "e"
    inner, entry = found["computations"]
    assert inner["instructions"][1]["source"] == "/a.py:7"
    k, p, b, t, c = entry["instructions"]
    assert k["literal"] == "nan"
    assert p["parameter_number"] == 0
    assert b["attributes"] == {"epsilon": "inf", "feature_index": 1}
    assert t == {
        "name": "t",
        "opcode": "transpose",
        "shape": "f32[3,2]",
        "operands": [1],
        "attributes": {"dimensions": [1, 0]},
        "op_name": "t",
        "source": "b.py:3",
    }
    assert (c["calls"], c["backend_config"]) == (["f"], '{"a":1}')
    assert (entry["root"], entry["parameters"]) == (4, [1])
