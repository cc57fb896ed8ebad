import pytest

from hloipu_compiler.hlo.attributes.metadata import OpMetadata
from hloipu_compiler.hlo.attributes.sharding import Sharding, ShardingKind, read_sharding
from hloipu_compiler.hlo.syntax.text_fault import TextFault

# Each is printed back by XLA as it stands.
STABLE = """
{replicated}
{maximal device=3}
{manual}
{unknown}
{devices=[2,2]3,1,2,0}
{devices=[4,2]<=[8]}
{devices=[4,2]<=[2,4]T(1,0)}
{devices=[2,2,2]<=[8] last_tile_dim_replicate}
{devices=[2,1,4]<=[8] last_tile_dims={manual}}
{replicated shard_as 1}
{replicated metadata={op_type="y" op_name="x"}}
{replicated metadata={{op_name="x"}, {op_type="y"}}}
{{replicated}, {maximal device=1}, {manual}, {manual}, {manual}, /*index=5*/{devices=[2]0,1}}
{}
{mesh['a'=2,'b'=4], [{'a'}, {'b', ?}]}
{mesh['a'=2,'b'=4], [{'a'}, {}], replicated={'b'}}
{mesh['a'=2,'b'=4], [{'a'}, {?}], manual={'b'}}
{mesh['a'=4], replicated}
{mesh['a'=4], manual}
{mesh['a'=4], unreduced}
{maximal_mesh[device_id=3]}
{mesh[], replicated}
{mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)), [{'a'}, {'b'}]}
{mesh['a'=2,'b'=2], device_ids=(0,2,1,3), [{'a'}, {'b'}]}
{mesh['a'=8], [{'a':(1)2}, {'a':(2)4}]}
""".strip().splitlines()

REFUSED = """
replicated
{replicated
{foo}
{replicated,}
{{{replicated}}}
{maximal}
{replicated device=0}
{devices=[2,2]0}
{devices=[2]}
{devices=[]0,1}
{devices=[2,2]<=[2,2]}
{devices=[2,2]<=[2,2]T(0)}
{devices=[2,2]0,1,2,3,4}
{devices=[2]<=[4]}
{devices=[2,2]0,1,2,3 last_tile_dims={foo}}
{replicated shard_as}
{replicated metadata={foo="x"}}
{f32[2] devices=[2]0,1}
{mesh['a'=2], [{'b'}, {}]}
{mesh['a'=2], [{'a'}, {'a'}]}
{mesh['a'=2,'a'=2], [{'a'}, {}]}
{mesh['a'=8], [{'a':(1)3}]}
{mesh['a'=8], [{'a':(1)4}, {'a':(2)2}]}
{mesh['a'=2], [{?, 'a'}]}
{mesh['a'=2,'b'=2], device_ids=(0,1,2,2), [{'a'}, {'b'}]}
""".strip().splitlines()


@pytest.mark.parametrize("text", STABLE)
def test_prints_back_what_it_read(text: str) -> None:
    assert str(read_sharding(text)) == text


@pytest.mark.parametrize("text", REFUSED)
def test_refuses(text: str) -> None:
    with pytest.raises(TextFault) as caught:
        read_sharding(text)
    assert 0 <= caught.value.offset <= len(text)


def test_tiles_and_devices() -> None:
    sharding = read_sharding("{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}")
    assert sharding.kind is ShardingKind.TILED
    assert sharding.data_tiles == (4, 1)
    assert sharding.device_count == 8
    # numpy.arange(8).reshape(2, 4).T.flatten()
    assert sharding.devices.devices(8) == (0, 4, 1, 5, 2, 6, 3, 7)


def test_named_tiles_multiply_axes() -> None:
    sharding = read_sharding("{mesh['a'=2,'b'=8], [{'a', 'b':(1)4}, {}]}")
    assert sharding.data_tiles == (8, 1)
    assert sharding.device_count == 16


def test_words_win_in_a_fixed_order() -> None:
    assert read_sharding("{manual replicated}").kind is ShardingKind.REPLICATED


def test_metadata_and_tuples() -> None:
    sharding = read_sharding('{{maximal device=2}, {replicated metadata={op_name="w"}}}')
    assert sharding.elements[0].device == 2
    assert sharding.elements[1] == Sharding(
        ShardingKind.REPLICATED, metadata=(OpMetadata(op_name="w"),)
    )


def test_an_iota_of_many_devices_stays_small() -> None:
    sharding = read_sharding("{devices=[1048576,1024]<=[1073741824]}")
    assert sharding.device_count == 2**30
    with pytest.raises(ValueError, match="too many"):
        sharding.devices.devices(2**30)
