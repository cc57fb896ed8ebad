"""Shardings in all syntaxes become axes of one mesh, and XLA's tile assignments again."""

import pytest

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.partition.spmd.axes import to_tiles
from hloipu_compiler.partition.spmd.reading import partitioned_already, stated_shardings
from hloipu_compiler.verify.verifier import verify
from hloipu_runtime.errors import UnsupportedError

LAST = "last_tile_dim_replicate"


def stated_texts(module_text: str, name: str = "p") -> list[str]:
    module = parse(module_text)
    verify(module)
    stated = stated_shardings(module)
    entry = module.entry
    found = stated.shardings[entry.name, entry.position[name]]
    return [str(to_tiles(s, stated.axes)) for s in found if s is not None]


def parameter_text(sharding: str, shape: str = "f32[8,8]", more: str = "") -> str:
    return f"""HloModule m
ENTRY e {{
  p = {shape} parameter(0), sharding={sharding}
  {more}
  ROOT r = {shape} copy(p)
}}"""


PRINTED_ALIKE = [
    "{devices=[2,4]<=[8]}",
    f"{{devices=[2,1,4]<=[8] {LAST}}}",
    "{devices=[4,2]<=[2,4]T(1,0)}",
    f"{{devices=[4,1,2]<=[2,4]T(1,0) {LAST}}}",
    "{devices=[4,3]<=[3,4]T(1,0)}",
    "{devices=[1,6]<=[6]}",
    f"{{devices=[2,2,2]<=[2,2,2]T(1,0,2) {LAST}}}",
    "{replicated}",
    "{manual}",
    "{maximal device=3}",
    "{devices=[1,1,2,4]<=[8] last_tile_dims={manual, replicated}}",
    "{devices=[2,1,4]<=[8] last_tile_dims={unreduced}}",
    "{devices=[2,2]3,1,0,2}",
    "{unreduced}",
]
SAID_OTHERWISE = {
    "{devices=[2,2]0,1,2,3}": "{devices=[2,2]<=[4]}",
    "{devices=[2,4]0,1,2,3,4,5,6,7}": "{devices=[2,4]<=[8]}",
    "{devices=[4,2]0,4,1,5,2,6,3,7}": "{devices=[4,2]<=[2,4]T(1,0)}",
    f"{{devices=[2,1,2]1,0,3,2 {LAST}}}": f"{{devices=[2,1,2]<=[4] {LAST}}}",
    f"{{devices=[2,2,1]<=[4] {LAST}}}": "{devices=[2,2]<=[4]}",
    f"{{devices=[1,1,4]<=[4] {LAST}}}": "{replicated}",
    "{devices=[1,2,2,2]<=[8] last_tile_dims={replicated, manual}}": (
        "{devices=[1,2,2,2]<=[2,2,2]T(0,2,1) last_tile_dims={manual, replicated}}"
    ),
    "{mesh['a'=2,'b'=4], [{'b':(1)2}, {'a'}]}": (f"{{devices=[2,2,2]<=[2,2,2]T(1,0,2) {LAST}}}"),
    "{mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)), [{'a'}, {'b'}]}": (
        "{devices=[2,4]<=[4,2]T(1,0)}"
    ),
    "{unknown shard_as 1}": "{replicated}",
}


@pytest.mark.parametrize(
    ("text", "printed"), [*((t, t) for t in PRINTED_ALIKE), *SAID_OTHERWISE.items()]
)
def test_a_sharding_is_printed_again(text: str, printed: str) -> None:
    whole = {
        "{replicated}",
        "{manual}",
        "{unreduced}",
        "{maximal device=3}",
        "{unknown shard_as 1}",
    }
    more = "q = f32[8,8] copy(p), sharding={devices=[2,4]<=[8]}" if text in whole else ""
    shape = "f32[12,12]" if "3]" in text or "6]" in text else "f32[8,8]"
    assert stated_texts(parameter_text(text, shape, more)) == [printed]
    assert stated_texts(parameter_text(printed, shape, more)) == [printed]


SDY = """HloModule m, frontend_attributes={{xla.sdy.meshes={{mesh = #sdy.mesh<{mesh}>}}}}
ENTRY e {{
  p = f32[8,8] parameter(0), sharding={{replicated}}, frontend_attributes={{xla.sdy.sharding="{text}"}}
  ROOT r = f32[8,8] copy(p)
}}"""  # noqa: E501
AXES = '["a"=2, "b"=4]'
SHARDY = [
    (AXES, '<@mesh, [{"a"}, {"b", ?}]>', "{devices=[2,4]<=[8]}"),
    (AXES, '<@mesh, [{"b", "a"}, {}]>', "{devices=[8,1]<=[2,4]T(1,0)}"),
    (AXES, '<@mesh, [{"b":(2)2}, {}]>', f"{{devices=[2,1,4]<=[4,2]T(1,0) {LAST}}}"),
    (AXES, '<@mesh, [{"a"}p1, {}]>', f"{{devices=[2,1,4]<=[8] {LAST}}}"),
    (AXES, '<@mesh, [{"a"}, {}], replicated={"b"}>', f"{{devices=[2,1,4]<=[8] {LAST}}}"),
    (
        AXES,
        '<@mesh, [{"a"}, {}], unreduced={"b"}>',
        "{devices=[2,1,4]<=[8] last_tile_dims={unreduced}}",
    ),
    (
        '["a"=2, "b"=2], device_ids=[3, 1, 0, 2]',
        '<@mesh, [{"b"}, {"a"}]>',
        "{devices=[2,2]3,0,1,2}",
    ),
    (
        '["a"=2, "b"=3], device_ids=[0, 3, 1, 4, 2, 5]',
        '<@mesh, [{"a"}, {"b"}]>',
        "{devices=[2,3]0,3,1,4,2,5}",
    ),
    (
        '["a"=4, "b"=2]>, unused = #sdy.mesh<["c"=3, "d"=2], device_ids=[5, 2, 0, 1, 3, 4]',
        '<@mesh, [{"b"}, {"a"}]>',
        "{devices=[2,4]<=[4,2]T(1,0)}",
    ),
    (
        '["a"=4, "b"=2]>, unused = #sdy.mesh<["c"=8], device_ids=[7, 2, 0, 1, 3, 6, 5, 4]',
        '<@mesh, [{"b"}, {"a"}]>',
        "{devices=[2,4]<=[4,2]T(1,0)}",
    ),
    (
        '["a"=2, "b"=2]',
        '<mesh<["x"=4]>, [{"x":(2)2}, {}]>',
        f"{{devices=[2,1,2]<=[2,2]T(1,0) {LAST}}}",
    ),
]


@pytest.mark.parametrize(("mesh", "text", "printed"), SHARDY)
@pytest.mark.parametrize("quote", ['\\"', '\\\\\\"'])
def test_shardys_words_win_over_tiles(mesh: str, text: str, printed: str, quote: str) -> None:
    escaped = f"#sdy.sharding{text}".replace('"', quote)
    assert stated_texts(SDY.format(mesh=mesh, text=escaped)) == [printed]


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("{devices=[2,3]<=[6]}", "{devices=[3,2]<=[6]}"),
        ("{devices=[2,2]<=[4]}", "{devices=[1,2]<=[2]}"),
    ],
)
def test_shardings_without_a_common_mesh_are_refused(a: str, b: str) -> None:
    more = f"q = f32[8,8] copy(p), sharding={b}"
    with pytest.raises(UnsupportedError) as refused:
        stated_texts(parameter_text(a, more=more))
    assert refused.value.code == "E0476"


WRONG = {
    "garbage": (AXES, "garbage"),
    "no such axis": (AXES, '<@mesh, [{"c"}, {}]>'),
    "no such mesh": (AXES, '<@other, [{"a"}, {}]>'),
    "an axis twice": (AXES, '<@mesh, [{"a"}, {"a"}]>'),
    "a part twice": (AXES, '<@mesh, [{"b":(1)2}, {"b":(1)2}]>'),
    "one dimension too few": (AXES, '<@mesh, [{"a"}]>'),
    "no part of the axis": (AXES, '<@mesh, [{"b":(1)3}, {}]>'),
    "an axis of none": ('["a"=0]', '<@mesh, [{"a"}, {}]>'),
    "a huge axis": ('["a"=99999999999]', '<@mesh, [{"a"}, {}]>'),
    "devices twice": ('["a"=2, "b"=2], device_ids=[0, 1, 1, 7]', '<@mesh, [{"a"}, {}]>'),
    "no mesh": ("", "<@mesh, [{}, {}]"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_words_are_refused(case: str) -> None:
    mesh, text = WRONG[case]
    escaped = f"#sdy.sharding{text}".replace('"', '\\"')
    with pytest.raises(UnsupportedError) as refused:
        stated_texts(SDY.format(mesh=mesh, text=escaped))
    assert refused.value.code == "E0476"


PARTITIONED = {
    "ENTRY main_spmd { ROOT p = f32[] parameter(0) }": "its entry is named main_spmd",
    "ENTRY e { ROOT p = u32[] partition-id() }": "it has the partition-id p",
    "ENTRY e { ROOT p = f32[] parameter(0) }": "",
}


@pytest.mark.parametrize("text", PARTITIONED)
def test_text_that_is_partitioned_already_is_known(text: str) -> None:
    assert partitioned_already(parse(f"HloModule m\n{text}")) == PARTITIONED[text]
    if PARTITIONED[text]:
        header = "HloModule m, frontend_attributes={xla.sdy.meshes={mesh = #sdy.mesh<[]>}}"
        assert partitioned_already(parse(f"{header}\n{text}")) == ""
