"""Modules with a manually sharded region around some statements, in both dialects."""

import numpy as np

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.ir.graph import Module
from tests.support.collectives import ADD

MESH = 'mesh = #sdy.mesh<["a"=2, "b"=4]>'


def shardy(
    inside: str, sharding: str, block: str, *, mesh: str = MESH, whole: str = "f32[16,8]"
) -> Module:
    """Return a module that computes `inside`, on blocks `q`, and joins `r` again."""
    quoted = sharding.replace('"', '\\"')
    axes = '#sdy<manual_axes{\\"a\\", \\"b\\"}>'
    value = f"#sdy.sharding_per_value<[<@mesh, {quoted}>]>"
    return parse(f"""
HloModule m, frontend_attributes={{xla.sdy.meshes={{{mesh}}}}}

{ADD}

ENTRY e {{
  p = {whole} parameter(0)
  q = {block} custom-call(p), custom_call_target="xla.sdy.GlobalToLocalShape", frontend_attributes={{xla.sdy.in_shardings="{value}",xla.sdy.manual_axes="{axes}"}}
  {inside}
  ROOT s = {whole} custom-call(r), custom_call_target="xla.sdy.LocalToGlobalShape", frontend_attributes={{xla.sdy.manual_axes="{axes}",xla.sdy.out_shardings="{value}"}}
}}
""")  # noqa: E501


def gspmd(inside: str, sharding: str, block: str, manual: str = "{manual}") -> Module:
    """Return the same in GSPMD's words."""
    return parse(f"""
HloModule m

ENTRY e {{
  p = f32[16,8] parameter(0)
  p.1 = f32[16,8] custom-call(p), custom_call_target="Sharding", sharding={sharding}
  q = {block} custom-call(p.1), custom_call_target="SPMDFullToShardShape", sharding={manual}
  {inside}
  r.1 = {block} custom-call(r), custom_call_target="Sharding", sharding={manual}
  ROOT s = f32[16,8] custom-call(r.1), custom_call_target="SPMDShardToFullShape", sharding={sharding}
}}
""")  # noqa: E501


X = np.arange(128, dtype=np.float32).reshape(16, 8)


def numbered(block: str) -> str:
    """Return statements by which every device fills its block with its own number."""
    return (
        "i = u32[] partition-id()\n  n = f32[] convert(i)\n  "
        f"r = {block} broadcast(n), dimensions={{}}"
    )


BY_AXES = [
    ('[{"a"}, {"b"}]', "f32[8,2]", [[0, 1, 2, 3], [4, 5, 6, 7]]),
    ('[{"b"}, {"a"}]', "f32[4,4]", [[0, 4], [1, 5], [2, 6], [3, 7]]),
    ('[{"a", "b"}, {}]', "f32[2,8]", [[i] for i in range(8)]),
    ('[{}, {"b", "a"}]', "f32[16,1]", [[0, 4, 1, 5, 2, 6, 3, 7]]),
    ('[{"b":(1)2, ?}p1, {"b":(2)2}]', "f32[8,4]", [[0, 1], [2, 3]]),
    ('[{"b":(2)2}, {"a"}], replicated={"b":(1)2}', "f32[8,4]", [[0, 4], [1, 5]]),
    ("[{}, {}]", "f32[16,8]", [[0]]),
]
"""Sharding of f32[16,8], block, and the device that owns each block."""

BY_TILES = [
    ("{devices=[2,4]<=[8]}", "f32[8,2]", [[0, 1, 2, 3], [4, 5, 6, 7]]),
    ("{devices=[4,2]<=[2,4]T(1,0)}", "f32[4,4]", [[0, 4], [1, 5], [2, 6], [3, 7]]),
    ("{devices=[2,1,4]<=[8] last_tile_dim_replicate}", "f32[8,8]", [[0], [4]]),
    ("{devices=[2,2]3,1,0,2}", "f32[8,4]", [[3, 1], [0, 2]]),
    ("{mesh['a'=2,'b'=4], [{'b'}, {'a'}]}", "f32[4,4]", [[0, 4], [1, 5], [2, 6], [3, 7]]),
]
"""The same in GSPMD's words."""
