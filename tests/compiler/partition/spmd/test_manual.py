"""Manual regions in programs that are divided: values, meetings of the whole mesh, refusals."""

import re
from collections import Counter

import numpy as np
import pytest

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.interpret.participants import evaluate_participants
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.ir.ops import COLLECTIVES
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_compiler.verify.verifier import verify
from hloipu_runtime.errors import UnsupportedError
from tests.support.blocks import check_on_devices
from tests.support.shardings import BY_AXES, X, numbered, shardy

HEADER = (
    'HloModule m, frontend_attributes={xla.sdy.meshes={other = #sdy.mesh<["b"=2, "a"=4]>, '
    'mesh = #sdy.mesh<["a"=2, "b"=4]>}}\nadd { p = f32[] parameter(0)  q = f32[] parameter(1)  '
    'ROOT s = f32[] add(p, q) }\n'
)  # fmt: skip
GROUPS = "replica_groups={{0,4},{1,5},{2,6},{3,7}}, use_global_device_ids=true"
ROWS_OF_A = "{{0,1,2,3},{4,5,6,7}}"


def quoted(axes: str) -> str:
    return re.sub(r"\b([ab])\b", r'\\"\1\\"', axes)


def parameter(shape: str, sharding: str) -> str:
    stated = f'xla.sdy.sharding="#sdy.sharding<@mesh, [{quoted(sharding)}]>"'
    return f"{shape} parameter(0), frontend_attributes={{{stated}}}"


def border(side: str, axes: str, sharding: str) -> str:
    """Return the attributes of a call at a border."""
    target = {"in": "GlobalToLocal", "out": "LocalToGlobal"}[side]
    return (
        f'custom_call_target="xla.sdy.{target}Shape", custom_call_has_side_effect=true, '
        f'frontend_attributes={{xla.sdy.{side}_shardings="#sdy.sharding_per_value<[<@mesh, '
        f'[{quoted(sharding)}]>]>",xla.sdy.manual_axes="#sdy<manual_axes{{{quoted(axes)}}}>"}}'
    )


GSPMD = "last_tile_dims={manual, replicated}"
CASES: dict[str, tuple[str, dict[str, int]]] = {
    "all axes, with meetings and places": (
        f"x = {parameter('f32[8,16]', '{}, {}')}\n"
        f"  l = f32[4,4] custom-call(x), {border('in', 'a, b', '{a}, {b}')}\n"
        "  g = f32[4,16] all-gather(l), channel_id=1, dimensions={1}, "
        f"replica_groups={ROWS_OF_A}, use_global_device_ids=true\n"
        "  p = f32[4,16] collective-permute(g), channel_id=1, "
        "source_target_pairs={{0,4},{4,0},{1,5},{5,1},{2,6},{6,2},{3,7},{7,3}}\n"
        "  s = f32[4,4] slice(p), slice={[0:4], [3:15:3]}\n"
        "  i = u32[] partition-id()\n  f = f32[] convert(i)\n"
        "  w = f32[4,4] broadcast(f), dimensions={}\n  m = f32[4,4] multiply(s, w)\n"
        f"  ROOT r = f32[8,16] custom-call(m), {border('out', 'a, b', '{a}, {b}')}",
        {"all-gather": 1, "collective-permute": 1},
    ),
    "one axis, the other divides what is inside": (
        f"x = {parameter('f32[8,16]', '{b}, {a}')}\n"
        f"  l = f32[8,8] custom-call(x), {border('in', 'a', '{?}, {a, ?}')}\n"
        "  n = f32[8,8] negate(l)\n  z = f32[] constant(0)\n"
        "  t = f32[8] reduce(n, z), dimensions={1}, to_apply=add\n"
        f"  s = f32[8] all-reduce(t), channel_id=1, {GROUPS}, to_apply=add\n"
        "  ROOT r = f32[8] custom-call(s), " + border("out", "a", "{?}"),
        {"all-reduce": 1},
    ),
    "what is whole outside is not taken for divided": (
        f"x = {parameter('f32[8,16]', '{a, ?}, {}')}\n"
        f"  l = f32[4,16] custom-call(x), {border('in', 'a', '{a, ?}, {?}')}\n"
        f"  g = f32[8,16] all-gather(l), channel_id=1, dimensions={{0}}, {GROUPS}\n"
        f"  w = f32[8,16] custom-call(g), {border('out', 'a', '{?}, {?}')}\n"
        "  v = f32[8,16] sine(w)\n  ROOT r = f32[8,32] concatenate(x, v), dimensions={1}",
        {},
    ),
    "blocks of blocks that do not divide": (
        f"x = {parameter('f32[6,16]', '{a, b, ?}, {}')}\n"
        f"  l = f32[3,16] custom-call(x), {border('in', 'a', '{a, ?}, {?}')}\n"
        "  n = f32[3,16] negate(l)\n"
        f"  ROOT r = f32[6,16] custom-call(n), {border('out', 'a', '{a, ?}, {?}')}",
        {},
    ),
    "one axis, groups of its own devices alone": (
        f"x = {parameter('f32[8,16]', '{b}, {a}')}\n"
        f"  l = f32[8,8] custom-call(x), {border('in', 'a', '{?}, {a, ?}')}\n"
        "  s = f32[8,8] all-reduce(l), channel_id=1, replica_groups={{0,1}}, "
        "use_global_device_ids=true, to_apply=add\n"
        "  ROOT r = f32[8,8] custom-call(s), " + border("out", "a", "{?}, {?}"),
        {"all-reduce": 1},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_region_computes_as_on_whole_values(case: str) -> None:
    body, meetings = CASES[case]
    module = parse(f"{HEADER}ENTRY e {{\n  {body}\n}}")
    verify(module)
    given = module.entry.instructions[module.entry.parameters[0]].shape
    assert isinstance(given, ArrayShape)
    x = np.random.default_rng(0).standard_normal(given.dimensions).astype(np.float32)
    expected = [x[:, :8] + x[:, 8:]]
    if "alone" not in case:
        expected = evaluate_participants(module, [[x]], partitions=8)[0]
    local = check_on_devices(module, [x], expected)
    assert local.attributes.integer("num_partitions") == 8
    kinds = Counter(x.opcode for x in local.entry.instructions if x.opcode in COLLECTIVES)
    assert {k: n for k, n in kinds.items() if k in meetings} == meetings


@pytest.mark.parametrize(
    ("sharding", "block"), [row[:2] for row in BY_AXES if sum(map(len, row[2])) == 8]
)
def test_each_device_has_the_block_of_its_place(sharding: str, block: str) -> None:
    module = shardy(numbered(block), sharding, block)
    verify(module)
    expected = evaluate_participants(module, [[X]], partitions=8)[0]
    check_on_devices(module, [X], expected)


def gspmd(inner: str) -> Module:
    module = parse(
        "HloModule m\nadd { p = f32[] parameter(0)  q = f32[] parameter(1)  "
        f"ROOT s = f32[] add(p, q) }}\nENTRY e {{\n  {inner}\n}}"
    )
    verify(module)
    return module


def test_a_region_in_words_of_gspmd() -> None:
    module = gspmd(
        "x = f32[8,16] parameter(0), sharding={devices=[4,2]<=[2,4]T(1,0)}\n"
        '  c = f32[8,16] custom-call(x), custom_call_target="Sharding", '
        "sharding={devices=[1,2,4]<=[8] last_tile_dim_replicate}\n"
        '  l = f32[8,8] custom-call(c), custom_call_target="SPMDFullToShardShape", '
        f"sharding={{devices=[1,1,2,4]<=[8] {GSPMD}}}\n"
        f"  s = f32[8,8] all-reduce(l), channel_id=1, {GROUPS}, to_apply=add\n"
        '  d = f32[8,8] custom-call(s), custom_call_target="Sharding", '
        f"sharding={{devices=[1,1,2,4]<=[8] {GSPMD}}}\n"
        '  ROOT r = f32[8,8] custom-call(d), custom_call_target="SPMDShardToFullShape", '
        "sharding={replicated}"
    )
    x = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
    check_on_devices(module, [x], [x[:, :8] + x[:, 8:]])


def test_a_region_in_words_of_gspmd_gives_what_is_divided_later() -> None:
    open_ones = 'backend_config="unspecified_dims=[0,1]"'
    rows = "sharding={devices=[2,1,4]<=[8] last_tile_dim_replicate}"
    inner = f"sharding={{devices=[1,1,2,4]<=[8] {GSPMD}}}"
    module = gspmd(
        f"x = f32[8,16] parameter(0), {rows}\n"
        f'  c = f32[8,16] custom-call(x), custom_call_target="Sharding", {rows}, {open_ones}\n'
        f'  l = f32[4,16] custom-call(c), custom_call_target="SPMDFullToShardShape", {inner}, '
        f"{open_ones}\n  g = f32[8,16] all-gather(l), channel_id=1, dimensions={{0}}, {GROUPS}\n"
        f'  d = f32[8,16] custom-call(g), custom_call_target="Sharding", {inner}, {open_ones}\n'
        '  w = f32[8,16] custom-call(d), custom_call_target="SPMDShardToFullShape", '
        f"sharding={{replicated}}, {open_ones}\n"
        "  v = f32[8,16] negate(w)\n  ROOT r = f32[8,32] concatenate(x, v), dimensions={1}"
    )
    x = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
    check_on_devices(module, [x], [np.concatenate([x, -x], 1)])


def test_a_block_is_not_made_of_the_whole_outside() -> None:
    """What the whole was before the border is divided as the block inside is to be."""
    module = gspmd(
        "x = f32[8] parameter(0), sharding={devices=[8]<=[8]}\n"
        "  c = f32[8] copy(x), sharding={devices=[4,2]<=[8] last_tile_dim_replicate}\n"
        '  l = f32[2] custom-call(c), custom_call_target="SPMDFullToShardShape", '
        f"sharding={{devices=[1,4,2]<=[8] {GSPMD}}}\n"
        "  d = f32[2] negate(l), sharding={devices=[2,4]<=[4,2]T(1,0) last_tile_dims={manual}}\n"
        '  ROOT r = f32[8] custom-call(d), custom_call_target="SPMDShardToFullShape", '
        "sharding={devices=[8]<=[8]}"
    )
    x = np.arange(8, dtype=np.float32)
    check_on_devices(module, [x], [-x])


REFUSED = {
    "a place outside of regions": (
        f"x = {parameter('f32[8,16]', '{b}, {a}')}\n"
        f"  l = f32[8,8] custom-call(x), {border('in', 'a', '{?}, {a, ?}')}\n"
        f"  o = f32[8,16] custom-call(l), {border('out', 'a', '{?}, {a, ?}')}\n"
        "  i = u32[] partition-id()\n  f = f32[] convert(i)\n"
        "  w = f32[8,16] broadcast(f), dimensions={}\n  ROOT m = f32[8,16] multiply(o, w)"
    ),
    "manual axes minor to others": (
        f"x = {parameter('f32[8,16]', '{}, {b, a}')}\n"
        f"  l = f32[8,8] custom-call(x), {border('in', 'a', '{?}, {b, a}')}\n"
        f"  ROOT o = f32[8,16] custom-call(l), {border('out', 'a', '{?}, {a, ?}')}"
    ),
    "what a Python function divides": (
        f"x = {parameter('f32[8,16]', '{b}, {a}')}\n"
        '  ROOT l = f32[8,16] custom-call(x), custom_call_target="CustomSPMDPartitioning"'
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_device_alone_can_do_is_refused(case: str) -> None:
    module = parse(f"{HEADER}ENTRY e {{\n  {REFUSED[case]}\n}}")
    with pytest.raises(UnsupportedError) as refused:
        check_on_devices(module, [], [])
    assert refused.value.code == "E0479"
    assert refused.value.span is not None
