"""Which line of a stack is shown: the user's innermost one."""

import pytest

from hloipu_compiler.analysis.source_lines import SourceLines
from hloipu_compiler.hlo.parse import parse

_TEXT = """HloModule m

FileNames
1 "/home/me/{own}"
2 "/home/me/venv/lib/python3.11/site-packages/keras/layers/dense.py"
3 "/usr/lib/python3/dist-packages/torch/nn/modules/linear.py"

FunctionNames
1 "step"

FileLocations
1 {{file_name_id=1 function_name_id=1 line=7 end_line=0 column=0 end_column=0}}
2 {{file_name_id=2 function_name_id=1 line=8 end_line=0 column=0 end_column=0}}
3 {{file_name_id=3 function_name_id=1 line=9 end_line=0 column=0 end_column=0}}

StackFrames
1 {{file_location_id=1 parent_frame_id=1}}
2 {{file_location_id=2 parent_frame_id=2}}
3 {{file_location_id=3 parent_frame_id=3}}

ENTRY e {{
  ROOT a = f32[] parameter(0), metadata={{op_name="a" source_file="x.py" stack_frame_id=3}}
}}
"""


@pytest.mark.parametrize(
    ("own", "line"),
    [("train.py", "train.py:7"), ("lib/python3.11/site-packages/a.py", "linear.py:9")],
)
def test_lines_of_libraries_give_way_to_the_users(own: str, line: str) -> None:
    module = parse(_TEXT.format(own=own))
    assert SourceLines(module).line(module.entry.instructions[0]) == line
