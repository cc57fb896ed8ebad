"""Counted loops over stacked arrays, as text: the shapes in which rows are read and written."""

_STATE = "(s32[], f32[2,3], f32[5,3,3], f32[5,2,3])"


def _loop(body: str, *, start: int = 0, trips: int = 5, step: int = 1) -> str:
    """Return a loop that reads `w` and writes `out`; `body` makes %next and %written."""
    return f"""\
HloModule stacked

%condition (s: {_STATE}) -> pred[] {{
  %s = {_STATE} parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %n = s32[] constant({start + trips * step})
  ROOT %goes_on = pred[] compare(%i, %n), direction={"LT" if step > 0 else "GT"}
}}

%body (s: {_STATE}) -> {_STATE} {{
  %s = {_STATE} parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %x = f32[2,3] get-tuple-element(%s), index=1
  %w = f32[5,3,3] get-tuple-element(%s), index=2
  %out = f32[5,2,3] get-tuple-element(%s), index=3
  %zero = s32[] constant(0)
  %one = s32[] constant(1)
{body}
  %step = s32[] constant({step})
  %j = s32[] add(%i, %step)
  ROOT %made = {_STATE} tuple(%j, %next, %w, %written)
}}

ENTRY %main (x: f32[2,3], w: f32[5,3,3], out: f32[5,2,3]) -> {_STATE} {{
  %x = f32[2,3] parameter(0)
  %w = f32[5,3,3] parameter(1)
  %out = f32[5,2,3] parameter(2)
  %start = s32[] constant({start})
  %given = {_STATE} tuple(%start, %x, %w, %out)
  %loop = {_STATE} while(%given), condition=%condition, body=%body
  %count = s32[] get-tuple-element(%loop), index=0
  %y = f32[2,3] get-tuple-element(%loop), index=1
  %same = f32[5,3,3] get-tuple-element(%loop), index=2
  %stack = f32[5,2,3] get-tuple-element(%loop), index=3
  ROOT %result = {_STATE} tuple(%count, %y, %same, %stack)
}}
"""


_TIMES = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"


def _layer(at: str) -> str:
    return f"""\
  %row = f32[1,3,3] dynamic-slice(%w, {at}, %zero, %zero), dynamic_slice_sizes={{1,3,3}}
  %matrix = f32[3,3] reshape(%row)
  %product = f32[2,3] dot(%x, %matrix), {_TIMES}
  %next = f32[2,3] tanh(%product)
"""


def _write(at: str) -> str:
    return f"""\
  %update = f32[1,2,3] reshape(%next)
  %written = f32[5,2,3] dynamic-update-slice(%out, %update, {at}, %zero, %zero)"""


_FROM_LAST = "  %last = s32[] constant(4)\n  %r = s32[] subtract(%last, %i)\n"
_NEGATIVE = """\
  %five = s32[] constant(5)
  %back = s32[] subtract(%i, %five)
  %is_negative = pred[] compare(%back, %zero), direction=LT
  %around = s32[] add(%back, %five)
  %r = s32[] select(%is_negative, %around, %back)
"""
_FROM_TABLE = """\
  %table = s32[5] constant({4, 3, 2, 1, 0})
  %place = s32[1] dynamic-slice(%table, %i), dynamic_slice_sizes={1}
  %r = s32[] reshape(%place)
"""
_OF_COUNTER = """\
  %f = f32[] convert(%i)
  %fs = f32[2,3] broadcast(%f), dimensions={}
  %shifted = f32[2,3] add(%x, %fs)
  %row = f32[1,3,3] dynamic-slice(%w, %i, %zero, %zero), dynamic_slice_sizes={1,3,3}
  %matrix = f32[3,3] reshape(%row)
  %product = f32[2,3] dot(%shifted, %matrix), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %next = f32[2,3] tanh(%product)
"""
_NEIGHBOUR = f"""\
  %row = f32[1,3,3] dynamic-slice(%w, %i, %zero, %zero), dynamic_slice_sizes={{1,3,3}}
  %k = s32[] add(%i, %one)
  %row2 = f32[1,3,3] dynamic-slice(%w, %k, %zero, %zero), dynamic_slice_sizes={{1,3,3}}
  %both = f32[1,3,3] add(%row, %row2)
  %matrix = f32[3,3] reshape(%both)
  %product = f32[2,3] dot(%x, %matrix), {_TIMES}
  %next = f32[2,3] tanh(%product)
"""
_PARTS_OF_ROWS = """\
  %part = f32[1,1,3] dynamic-slice(%w, %i, %one, %zero), dynamic_slice_sizes={1,1,3}
  %vector = f32[3] reshape(%part)
  %vectors = f32[2,3] broadcast(%vector), dimensions={1}
  %next = f32[2,3] multiply(%x, %vectors)
  %old = f32[1,1,3] dynamic-slice(%out, %i, %one, %zero), dynamic_slice_sizes={1,1,3}
  %new = f32[1,1,3] add(%old, %part)
  %half = f32[5,2,3] dynamic-update-slice(%out, %new, %i, %zero, %zero)
  %read = f32[1,2,3] dynamic-slice(%half, %i, %zero, %zero), dynamic_slice_sizes={1,2,3}
  %twice = f32[1,2,3] add(%read, %read)
  %written = f32[5,2,3] dynamic-update-slice(%half, %twice, %i, %zero, %zero)"""
_AXIS_1 = f"""\
  %row = f32[5,1,3] dynamic-slice(%w, %zero, %i, %zero), dynamic_slice_sizes={{5,1,3}}
  %vectors = f32[5,3] reshape(%row)
  %nought = f32[] constant(0.5)
  %mixing = f32[2,5] broadcast(%nought), dimensions={{}}
  %mixed = f32[2,3] dot(%mixing, %vectors), {_TIMES}
  %next = f32[2,3] subtract(%x, %mixed)
  %written = f32[5,2,3] copy(%out)"""

LOOPS = {
    "up": _loop(_layer("%i") + _write("%i")),
    "from the last": _loop(_FROM_LAST + _layer("%r") + _write("%r")),
    "negative indices": _loop(_NEGATIVE + _layer("%r") + _write("%r")),
    "rows from a table": _loop(_FROM_TABLE + _layer("%r") + _write("%r")),
    "counting down": _loop(_layer("%i") + _write("%i"), start=4, step=-1),
    "some rows": _loop(_layer("%i") + _write("%i"), start=1, trips=3),
    "counter as a value": _loop(_OF_COUNTER + _write("%i")),
    "neighbours": _loop(_NEIGHBOUR + _write("%i"), trips=4),
    "parts of rows": _loop(_PARTS_OF_ROWS),
    "axis 1": _loop(_AXIS_1, trips=3),
}
"""Loops that can be split, by what is special about them."""
EVERY_OTHER = _loop(_layer("%i") + _write("%i"), trips=3, step=2)
"""Reads and writes rows 0, 2 and 4: what it writes are no ranges of rows."""
ACCUMULATING = _loop(
    _layer("%i")
    + """\
  %update = f32[1,2,3] reshape(%next)
  %first = f32[1,2,3] dynamic-slice(%out, %zero, %zero, %zero), dynamic_slice_sizes={1,2,3}
  %sum = f32[1,2,3] add(%first, %update)
  %written = f32[5,2,3] dynamic-update-slice(%out, %sum, %zero, %zero, %zero)"""
)
"""Writes row 0 in every trip."""
READ_WHOLE = _loop(
    _layer("%i").replace("%next", "%hidden")
    + f"""\
  %first = f32[1,3,3] slice(%w), slice={{[0:1], [0:3], [0:3]}}
  %shared = f32[3,3] reshape(%first)
  %next = f32[2,3] dot(%hidden, %shared), {_TIMES}
"""
    + _write("%i")
)
"""Reads a row that the counter does not tell, so that each part needs the whole stack."""
