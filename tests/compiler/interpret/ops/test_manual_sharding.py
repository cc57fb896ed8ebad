"""Borders of manually sharded regions: every device its block, and whole values after them."""

import numpy as np
import pytest

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.interpret.participants import (
    evaluate_everywhere,
    evaluate_participants,
    participants_of,
)
from hloipu_compiler.ir.graph import Module
from hloipu_runtime.errors import UnsupportedError, UsageError
from tests.support.arrays import f32
from tests.support.shardings import BY_AXES, BY_TILES, X, gspmd, numbered, shardy


def owners(module: Module) -> list[list[int]]:
    """Return, for blocks told apart, which device's number stands in each."""
    (whole,) = evaluate_everywhere(module, X)
    rows = [i for i in range(16) if i == 0 or (whole[i] != whole[i - 1]).any()]
    columns = [j for j in range(8) if j == 0 or (whole[:, j] != whole[:, j - 1]).any()]
    return [[int(x) for x in row] for row in whole[np.ix_(rows, columns)]]


@pytest.mark.parametrize(("sharding", "block", "wanted"), BY_AXES)
def test_owners_of_blocks_by_axes(sharding: str, block: str, wanted: list[list[int]]) -> None:
    """The blocks of a dimension are told apart by its axes, the first one major."""
    assert owners(shardy(numbered(block), sharding, block)) == wanted


def test_device_ids_of_a_mesh() -> None:
    """A mesh may list its devices in another order."""
    mesh = 'mesh = #sdy.mesh<["a"=2, "b"=2], device_ids=[3, 1, 0, 2]>'
    module = shardy(numbered("f32[8,4]"), '[{"a"}, {"b"}]', "f32[8,4]", mesh=mesh)
    assert participants_of(module) == (1, 4)
    assert owners(module) == [[3, 1], [0, 2]]


@pytest.mark.parametrize(("sharding", "block", "wanted"), BY_TILES)
def test_owners_of_blocks_by_tiles(sharding: str, block: str, wanted: list[list[int]]) -> None:
    """The same for the tiles of GSPMD's shardings."""
    assert owners(gspmd(numbered(block), sharding, block)) == wanted


def test_tiles_beyond_the_manual_ones_stay_whole() -> None:
    """A sharding may split further, for the partitioner: the stated block says how far to go."""
    sharding = "{devices=[4,2]<=[8]}"
    inside = "last_tile_dims={manual, replicated}"
    module = gspmd(
        numbered("f32[8,8]"), sharding, "f32[8,8]", f"{{devices=[1,1,2,4]<=[8] {inside}}}"
    )
    assert owners(module) == [[0], [4]]


def test_blocks_and_collectives() -> None:
    """Row blocks summed over one axis, by columns of the other: all devices end alike."""
    inside = (
        "t = f32[8,2] all-reduce(q), channel_id=1, replica_groups={{0,4},{1,5},{2,6},{3,7}}, "
        "use_global_device_ids=true, to_apply=add\n  r = f32[8,2] negate(t)"
    )
    module = shardy(inside, '[{"a"}, {"b"}]', "f32[8,2]")
    assert participants_of(module) == (1, 8)
    total = -(X[:8] + X[8:])
    for (result,) in evaluate_participants(module, [[X]], partitions=8):
        np.testing.assert_array_equal(result, np.concatenate([total, total]))


NESTED = """
HloModule nested, frontend_attributes={xla.sdy.meshes={mesh = #sdy.mesh<["a"=2, "b"=4]>}}

ENTRY e {
  x = f32[4,8] parameter(0)
  y = f32[2,8] custom-call(x), custom_call_target="xla.sdy.GlobalToLocalShape", frontend_attributes={xla.sdy.in_shardings="#sdy.sharding_per_value<[<@mesh, [{\\"a\\", ?}, {?}]>]>",xla.sdy.manual_axes="#sdy<manual_axes{\\"a\\"}>"}
  z = f32[2,2] custom-call(y), custom_call_target="xla.sdy.GlobalToLocalShape", frontend_attributes={xla.sdy.in_shardings="#sdy.sharding_per_value<[<@mesh, [{?}, {\\"b\\", ?}]>]>",xla.sdy.manual_axes="#sdy<manual_axes{\\"b\\"}>"}
  i = u32[] partition-id()
  n = f32[] convert(i)
  d = f32[2,2] broadcast(n), dimensions={}
  u = f32[2,2] add(z, d)
  v = f32[2,8] custom-call(u), custom_call_target="xla.sdy.LocalToGlobalShape", frontend_attributes={xla.sdy.manual_axes="#sdy<manual_axes{\\"b\\"}>",xla.sdy.out_shardings="#sdy.sharding_per_value<[<@mesh, [{?}, {\\"b\\", ?}]>]>"}
  ROOT w = f32[4,8] custom-call(v), custom_call_target="xla.sdy.LocalToGlobalShape", frontend_attributes={xla.sdy.manual_axes="#sdy<manual_axes{\\"a\\"}>",xla.sdy.out_shardings="#sdy.sharding_per_value<[<@mesh, [{\\"a\\", ?}, {?}]>]>"}
}
"""  # noqa: E501


def test_region_in_a_region() -> None:
    """Inner borders cut and join along their own axes, within the outer block."""
    numbers = np.repeat(np.repeat(np.arange(8).reshape(2, 4), 2, axis=0), 2, axis=1)
    x = X[:4]
    for (result,) in evaluate_participants(parse(NESTED), [[x]], partitions=8):
        np.testing.assert_array_equal(result, x + numbers)


def test_alone() -> None:
    """Shapes that are not split need nobody; split ones are refused with too few participants."""
    whole = shardy("r = f32[16,8] negate(q)", "[{}, {}]", "f32[16,8]")
    (result,) = evaluate_participants(whole, [[X]])[0]
    np.testing.assert_array_equal(result, -X)
    split = shardy("r = f32[8,2] negate(q)", '[{"a"}, {"b"}]', "f32[8,2]")
    with pytest.raises(UsageError) as caught:
        evaluate_participants(split, [[X]], partitions=4)
    assert caught.value.code == "E3104"


def test_no_elements() -> None:
    """Blocks of nothing make nothing."""
    module = shardy("r = f32[0,2] negate(q)", '[{"a"}, {"b"}]', "f32[0,2]", whole="f32[0,8]")
    assert evaluate_everywhere(module, f32(np.zeros((0, 8))))[0].shape == (0, 8)


@pytest.mark.parametrize(
    ("sharding", "block", "said"),
    [
        ('[{"a"}, {"c"}]', "f32[8,2]", "no axis 'c'"),
        ('[{"a"}, {"b"}', "f32[8,2]", "was expected"),
        ('[{"a"}, {}]', "f32[8,2]", "1 shards where there are 4 blocks"),
        ('[{"a"}, {"b"}]', "f32[7,2]", "has no blocks"),
        ('[{"a"}, {"b":(3)2}]', "f32[8,4]", "has no part"),
    ],
)
def test_what_cannot_be_followed(sharding: str, block: str, said: str) -> None:
    """Unreadable shardings and blocks of other sizes are typed errors."""
    module = shardy(f"r = {block} negate(q)", sharding, block)
    with pytest.raises(UnsupportedError, match=said) as caught:
        evaluate_participants(module, [[X]], partitions=8)
    assert caught.value.code == "E0462"


def test_shapes_tell_how_many_take_part_where_no_group_is_written() -> None:
    gathered = "e {\n a = u4[4,2] parameter(0)\n b = u4[4,16] all-gather(a), dimensions={1}\n}\n"
    assert participants_of(parse(gathered)) == (8, 1)
    reduced = (
        "HloModule m\nadd { x = f32[] parameter(0)\n y = f32[] parameter(1)\n"
        " ROOT s = f32[] add(x, y) }\nENTRY e { a = f32[12] parameter(0)\n"
        " ROOT b = f32[4] reduce-scatter(a), dimensions={0}, to_apply=add }\n"
    )
    assert participants_of(parse(reduced)) == (3, 1)
