"""`simplify-algebra`: each rule, on a case where it applies and on one where a bit would differ."""

import pytest

from tests.support.passes import SUM, entry, opcodes, passed, root

RUN = "simplify-algebra,eliminate-dead-code"


def left(body: str, before: str = "") -> list[str]:
    """Return the opcodes that are left of an entry."""
    return opcodes(passed(entry(body, before), RUN))


@pytest.mark.parametrize(
    ("shape", "op", "expected"),
    [
        ("f32[2,3]", "f32[2,3] reshape(p)", []),
        ("f32[2,3]", "f32[2,3] transpose(p), dimensions={0,1}", []),
        ("f32[1,3]", "f32[3,1] transpose(p), dimensions={1,0}", ["reshape"]),
        ("f32[2,3]", "f32[3,2] transpose(p), dimensions={1,0}", ["transpose"]),
        ("f32[2,3]", "f32[2,3] broadcast(p), dimensions={0,1}", []),
        ("f32[2,3]", "f32[2,1,3] broadcast(p), dimensions={0,2}", ["reshape"]),
        ("f32[2,3]", "f32[2,3] slice(p), slice={[0:2], [0:3]}", []),
        ("f32[2,3]", "f32[2,2] slice(p), slice={[0:2], [0:3:2]}", ["slice"]),
        ("f32[1,3]", "f32[1,3] reverse(p), dimensions={0}", []),
        ("f32[2,3]", "f32[2,3] reverse(p), dimensions={0}", ["reverse"]),
        ("f32[2,3]", "f32[2,3] copy(p)", []),
        ("f32[2,3]", "f32[2,3] concatenate(p), dimensions={0}", []),
        ("f32[2,3]", "f32[4,3] concatenate(p, p), dimensions={0}", ["concatenate"]),
        ("f32[2,3]", "f32[2,3] convert(p)", []),
        ("f32[2,3]", "f32[2,3] bitcast-convert(p)", []),
        ("f32[2,3]", "s32[] get-dimension-size(p), dimensions={1}", ["constant"]),
        ("s32[4]", "s32[4] maximum(p, p)", []),
        ("s32[4]", "s32[4] and(p, p)", []),
        ("pred[4]", "pred[4] or(p, p)", []),
    ],
)
def test_one_op_on_a_parameter(shape: str, op: str, expected: list[str]) -> None:
    assert left(f"  p = {shape} parameter(0)\n  ROOT r = {op}") == expected


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("f32[6] reshape(p)", "f32[3,2] reshape(a)", ["reshape"]),
        ("f32[6] reshape(p)", "f32[2,3] reshape(a)", []),
        ("f32[3,2] transpose(p), dimensions={1,0}", "f32[2,3] transpose(a), dimensions={1,0}", []),
        ("f32[2,3,4] broadcast(p), dimensions={0,1}",
         "f32[4,2,3,5] broadcast(a), dimensions={1,2,0}", ["broadcast"]),
        ("f32[2,3,4] broadcast(p), dimensions={0,1}",
         "f32[5,2,3,4] broadcast(a), dimensions={1,2,3}", ["broadcast"]),
        ("f32[2,2] slice(p), slice={[0:2], [0:3:2]}", "f32[1,1] slice(a), slice={[1:2], [1:2]}",
         ["slice"]),
        ("f32[2,3] reverse(p), dimensions={0,1}", "f32[2,3] reverse(a), dimensions={1,0}", []),
        ("f32[2,3] negate(p)", "f32[2,3] negate(a)", []),
        ("f64[2,3] convert(p)", "f32[2,3] convert(a)", []),
        ("f16[2,3] convert(p)", "f32[2,3] convert(a)", ["convert", "convert"]),
        ("s32[2,3] convert(p)", "f32[2,3] convert(a)", ["convert", "convert"]),
        ("c64[2,3] complex(p, q)", "f32[2,3] real(a)", []),
        ("c64[2,3] complex(q, p)", "f32[2,3] imag(a)", []),
        ("f32[4,3] concatenate(q, p), dimensions={0}", "f32[2,3] slice(a), slice={[2:4], [0:3]}",
         []),
        ("f32[4,3] concatenate(q, p), dimensions={0}", "f32[1,2] slice(a), slice={[3:4], [1:3]}",
         ["slice"]),
        ("f32[4,3] concatenate(q, p), dimensions={0}", "f32[2,3] slice(a), slice={[1:3], [0:3]}",
         ["concatenate", "slice"]),
    ],
)  # fmt: skip
def test_two_ops_in_a_row(first: str, second: str, expected: list[str]) -> None:
    body = f"  p = f32[2,3] parameter(0)\n  q = f32[2,3] parameter(1)\n  a = {first}\n" + (
        f"  ROOT r = {second}"
    )
    assert left(body) == expected


@pytest.mark.parametrize(
    ("kind", "op", "constant", "goes"),
    [
        ("f32", "multiply", "1", True),
        ("f32", "multiply", "0", False),
        ("c64", "multiply", "(1, 0)", False),
        ("f32", "divide", "1", True),
        ("s32", "add", "0", True),
        ("f32", "add", "-0.0", True),
        ("f32", "add", "0", False),
        ("f32", "subtract", "0", True),
        ("f32", "subtract", "-0.0", False),
        ("s32", "subtract", "0", True),
        ("u8", "and", "255", True),
        ("s8", "and", "-1", True),
        ("s8", "and", "1", False),
        ("u8", "or", "0", True),
        ("s32", "xor", "0", True),
        ("s32", "xor", "-1", False),
        ("s32", "shift-left", "0", True),
        ("u32", "shift-right-logical", "0", True),
        ("s32", "shift-right-arithmetic", "1", False),
    ],
)
def test_a_constant_that_changes_nothing(kind: str, op: str, constant: str, goes: bool) -> None:
    body = (
        f"  p = {kind}[4] parameter(0)\n  c = {kind}[] constant({constant})\n"
        f"  b = {kind}[4] broadcast(c), dimensions={{}}\n  ROOT r = {kind}[4] {op}(p, b)"
    )
    assert (left(body) == []) is goes


def test_select_with_a_known_predicate() -> None:
    body = "  p = f32[2] parameter(0)\n  q = f32[2] parameter(1)\n  t = pred[] constant({})\n" + (
        "  b = pred[2] broadcast(t), dimensions={{}}\n  ROOT r = f32[2] select(b, p, q)"
    )
    for word, number in (("true", 0), ("false", 1)):
        after = passed(entry(body.format(word)), RUN)
        assert root(after).parameter_number == number


def test_dynamic_slices_at_constants_are_clamped() -> None:
    body = "  p = f32[4,4] parameter(0)\n  a = s32[] constant(3)\n  b = s32[] constant(-5)\n" + (
        "  ROOT r = f32[2,1] dynamic-slice(p, a, b), dynamic_slice_sizes={2,1}"
    )
    after = passed(entry(body), RUN)
    assert opcodes(after) == ["slice"]
    assert root(after).attributes["slice"] == ((2, 4, 1), (0, 1, 1))


def test_updates_of_everything_and_of_nothing() -> None:
    body = "  p = f32[4] parameter(0)\n  u = f32[{0}] parameter(1)\n  i = s32[] parameter(2)\n" + (
        "  ROOT r = f32[4] dynamic-update-slice(p, u, i)"
    )
    assert root(passed(entry(body.format(4)), RUN)).name == "u"
    assert root(passed(entry(body.format(0)), RUN)).name == "p"
    assert left(body.format(3)) == ["dynamic-update-slice"]


def test_pads_of_nothing() -> None:
    body = "  p = f32[4] parameter(0)\n  z = f32[] constant(0)\n" + (
        "  ROOT r = f32[{1}] pad(p, z), padding={0}"
    )
    assert left(body.format("0_0", 4)) == []
    assert left(body.format("1_0", 5)) == ["constant", "pad"]


def test_slices_without_elements_stay_in_range() -> None:
    body = (
        "  p = f32[2,9] parameter(0)\n  a = f32[2,3] slice(p), slice={[0:2], [0:9:3]}\n"
        "  ROOT r = f32[2,0] slice(a), slice={[0:2], [3:3:2]}"
    )
    assert left(body) == ["slice"]


def test_reductions_of_no_element_and_of_one() -> None:
    body = "  p = f32[{0}] parameter(0)\n  z = f32[] parameter(1)\n" + (
        "  ROOT r = f32[{1}] reduce(p, z), dimensions={{1}}, to_apply=sum"
    )
    assert left(body.format("3,0", "3"), SUM) == ["broadcast"]
    assert left(body.format("3,1", "3"), SUM) == ["broadcast", "reshape", "add"]
    assert left(body.format("3,2", "3"), SUM) == ["reduce"]


def test_sorts_of_one_element() -> None:
    less = "less {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n" + (
        "  ROOT c = pred[] compare(a, b), direction=LT\n}\n"
    )
    body = (
        "  p = f32[{0}] parameter(0)\n  ROOT r = f32[{0}] sort(p), dimensions={{1}}, to_apply=less"
    )
    assert left(body.format("5,1"), less) == []
    assert left(body.format("1,5"), less) == ["sort"]


GATHER = (
    "slice_sizes={1,2}, start_index_map={0,1}, collapsed_slice_dims={0}, offset_dims={0}, "
    "index_vector_dim=0"
)


@pytest.mark.parametrize(
    ("index", "start"), [("1, 2", (1, 2)), ("9, -3", (4, 0)), ("0, 6", (0, 5))]
)
def test_a_gather_at_one_place_is_a_clamped_slice(index: str, start: tuple[int, int]) -> None:
    body = f"  p = f32[5,7] parameter(0)\n  i = s32[2] constant({{{index}}})\n" + (
        f"  ROOT r = f32[2] gather(p, i), {GATHER}"
    )
    after = passed(entry(body), RUN)
    assert opcodes(after) == ["slice", "reshape"]
    given = after.entry.instructions[1].attributes["slice"]
    assert given == ((start[0], start[0] + 1, 1), (start[1], start[1] + 2, 1))


def test_a_gather_at_several_places_stays() -> None:
    body = "  p = f32[5,7] parameter(0)\n  i = s32[2,2] constant({{1,2},{3,4}})\n" + (
        "  ROOT r = f32[2,2] gather(p, i), slice_sizes={1,2}, start_index_map={0,1}, "
        "collapsed_slice_dims={0}, offset_dims={1}, index_vector_dim=1"
    )
    assert left(body) == ["constant", "gather"]


SCATTER = (
    "update_window_dims={0}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0,1}, "
    "index_vector_dim=0, to_apply"
)


@pytest.mark.parametrize(
    ("index", "region", "expected"),
    [
        ("1, 2", "put", ["reshape"]),
        ("1, 2", "sum", ["reshape", "slice", "add"]),
        ("1, 6", "put", None),
        ("-1, 0", "sum", None),
        ("5, 0", "sum", None),
    ],
)
def test_a_scatter_to_one_place(index: str, region: str, expected: list[str] | None) -> None:
    put = "put {\n  a = f32[] parameter(0)\n  ROOT b = f32[] parameter(1)\n}\n"
    body = f"  p = f32[5,7] parameter(0)\n  i = s32[2] constant({{{index}}})\n" + (
        f"  u = f32[2] parameter(1)\n  ROOT r = f32[5,7] scatter(p, i, u), {SCATTER}={region}"
    )
    found = left(body, put + "\n" + SUM)
    if expected is None:
        assert found == []
    else:
        assert found == [*expected, "constant", "constant", "dynamic-update-slice"]


BRANCHES = """f {
  x = f32[2] parameter(0)
  ROOT s = f32[2] sine(x)
}

g {
  x = f32[2] parameter(0)
  ROOT s = f32[2] cosine(x)
}
"""


@pytest.mark.parametrize(("index", "expected"), [("0", "sine"), ("1", "cosine"), ("-7", "cosine")])
def test_branches_that_are_always_taken(index: str, expected: str) -> None:
    body = f"  p = f32[2] parameter(0)\n  i = s32[] constant({index})\n" + (
        "  ROOT r = f32[2] conditional(i, p, p), branch_computations={f, g}"
    )
    assert left(body, BRANCHES) == [expected]


def test_a_true_predicate_takes_the_first_branch() -> None:
    body = "  p = f32[2] parameter(0)\n  i = pred[] constant(true)\n" + (
        "  ROOT r = f32[2] conditional(i, p, p), true_computation=f, false_computation=g"
    )
    assert left(body, BRANCHES) == ["sine"]


def test_loops_that_never_run() -> None:
    loop = """body {
  s = s32[] parameter(0)
  one = s32[] constant(1)
  ROOT r = s32[] add(s, one)
}

below {
  s = s32[] parameter(0)
  n = s32[] constant(3)
  ROOT r = pred[] compare(s, n), direction=LT
}
"""
    body = "  z = s32[] constant({})\n  ROOT w = s32[] while(z), condition=below, body=body"
    assert left(body.format(3), loop) == ["constant"]
    assert left(body.format(2), loop) == ["constant", "while"]
