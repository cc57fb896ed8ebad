"""Old dialects come out in today's form."""

import pytest

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.ir.attributes import ReplicaGroups
from hloipu_compiler.ir.graph import Instruction


def _root(lines: str) -> Instruction:
    entry = parse(f"HloModule m\nENTRY e {{\n{lines}\n}}\n").entry
    return entry.instructions[entry.root]


PQ = "p = f32[4] parameter(0)\nq = f32[4] parameter(1)\n"


@pytest.mark.parametrize(
    ("opcode", "direction"),
    [("less-than", "LT"), ("greater-than-or-equal-to", "GE"), ("not-equal-to", "NE")],
)
def test_comparison_opcodes(opcode: str, direction: str) -> None:
    """Six opcodes became compare."""
    root = _root(PQ + f"ROOT r = pred[4] {opcode}(p, q)")
    assert (root.opcode, root.attributes["direction"]) == ("compare", direction)


def test_gather_names() -> None:
    """The attributes of gather had other names until August 2018."""
    root = _root(
        "x = f32[3,5] parameter(0)\ni = s32[2] parameter(1)\n"
        "ROOT g = f32[2,5] gather(x, i), output_window_dims={1}, elided_window_dims={0}, "
        "gather_dims_to_operand_dims={0}, index_vector_dim=1, window_bounds={1,5}"
    )
    assert root.attributes["offset_dims"] == (1,)
    assert root.attributes["slice_sizes"] == (1, 5)


def test_cross_replica_sum() -> None:
    """It had group ids per replica and no reducer."""
    module = parse(
        f"HloModule m\nENTRY e {{\n{PQ}ROOT r = f32[4] cross-replica-sum(p), "
        "replica_group_ids={0,0,1,1}\n}\n"
    )
    root = module.entry.instructions[module.entry.root]
    assert root.opcode == "all-reduce"
    assert root.attributes.replica_groups() == ReplicaGroups(((0, 1), (2, 3)))
    reducer = module.computation[root.attributes.text("to_apply")]
    assert reducer.instructions[reducer.root].opcode == "add"


def test_sort_without_comparator() -> None:
    """It sorted ascending by the first operand, along the last dimension."""
    module = parse(f"HloModule m\nENTRY e {{\n{PQ}ROOT s = (f32[4], f32[4]) sort(p, q)\n}}\n")
    root = module.entry.instructions[module.entry.root]
    comparator = module.computation[root.attributes.text("to_apply")]
    assert root.attributes["dimensions"] == (0,)
    assert len(comparator.parameters) == 4
    assert comparator.instructions[comparator.root].attributes["direction"] == "LT"


def test_tokens_are_added() -> None:
    """Infeed, outfeed, send and recv had no token before June 2018."""
    module = parse(
        "HloModule m\nENTRY e {\ni = f32[4] infeed()\no = () outfeed(i)\n"
        "s = (f32[4], u32[]) send(i), channel_id=1\nd = () send-done(s), channel_id=1\n"
        "r = (f32[4], u32[]) recv(), channel_id=2\n"
        "ROOT x = f32[4] recv-done(r), channel_id=2\n}\n"
    )
    entry = module.entry
    assert entry["i"].opcode == "get-tuple-element"
    assert str(entry.instructions[entry["i"].operands[0]].shape) == "(f32[4], token[])"
    assert str(entry["o"].shape) == "token[]"
    assert str(entry["s"].shape) == "(f32[4], u32[], token[])"
    assert str(entry["x"].shape) == "f32[4]"
    assert entry.instructions[entry.root].name == "x"


def test_tuple_select() -> None:
    """Select on tuples is done for each element."""
    root = _root(
        "c = pred[] parameter(0)\na = (f32[4], s32[]) parameter(1)\n"
        "b = (f32[4], s32[]) parameter(2)\nROOT t = (f32[4], s32[]) tuple-select(c, a, b)"
    )
    assert root.opcode == "tuple"
    assert len(root.operands) == 2


@pytest.mark.parametrize("word", ["f32", "token", "s4", "maximal", "unreduced", "replicated"])
def test_names_that_became_reserved(word: str) -> None:
    """A name is what stands where a name stands."""
    assert _root(f"{word} = f32[4] parameter(0)\nROOT n = f32[4] negate({word})").operands == (0,)


def test_small_rewrites() -> None:
    """Attributes that were renamed or dropped."""
    root = _root(
        PQ + 'ROOT c = f32[4] custom-call(p), custom_call_target="x", '
        "api_version=API_VERSION_UNSPECIFIED, outer_dimension_partitions={0,2}"
    )
    assert "outer_dimension_partitions" not in root.attributes
    assert _root("ROOT t = token[] generate-token()").opcode == "after-all"
