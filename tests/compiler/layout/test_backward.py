"""What fusions that reduce wish: rows whole where there are enough of them."""

import pytest

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.layout.backward import region_demands
from hloipu_runtime.machine.load import load_machine

GC200 = load_machine("gc200")
TEXT = """\
HloModule m

sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

rows {
  x = f32[R,C] parameter(0)
  g = f32[C] parameter(1)
  zero = f32[] constant(0)
  s = f32[R] reduce(x, zero), dimensions={1}, to_apply=sum
  b = f32[R,C] broadcast(s), dimensions={0}
  h = f32[R,C] broadcast(g), dimensions={1}
  d = f32[R,C] divide(x, b)
  ROOT y = f32[R,C] multiply(d, h)
}

ENTRY e {
  x = f32[R,C] parameter(0)
  g = f32[C] parameter(1)
  ROOT f = f32[R,C] fusion(x, g), kind=kInput, calls=rows
}
"""


@pytest.mark.parametrize(("rows", "columns", "count"), [(4096, 512, 1), (16, 131072, 0)])
def test_rows_are_wished_whole_where_they_are_many(rows: int, columns: int, count: int) -> None:
    text = TEXT.replace("R,C", f"{rows},{columns}").replace("[R]", f"[{rows}]")
    module = parse(text.replace("[C]", f"[{columns}]"))
    root = module.entry.instructions[module.entry.root]
    preferences = list(region_demands(GC200, module, module.entry, root))
    assert len(preferences) == count
    for position, preference in preferences:
        assert position == 0
        assert preference.born.spans[0].axis >= 0
        assert preference.born.spans[1].axis < 0
        assert preference.user == "f"
