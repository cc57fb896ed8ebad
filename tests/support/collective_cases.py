"""Collectives of every kind, with every reading of their groups, and several of them together."""

from tests.support.collectives import CROSSED, FLATTENED, P8, PAIRS, R2P4, R4P2, R8

TO_ADD = "to_apply=add"

ONE_OP = [
    # groups of replicas
    ("all-reduce", "f32[8,4]", f"{PAIRS}, {TO_ADD}", R8),
    ("all-reduce", "f32[8,4]", f"{CROSSED}, {TO_ADD}", R8),
    ("all-reduce", "f32[8,4]", f"replica_groups={{}}, {TO_ADD}", R8),
    ("all-reduce", "f32[8,4]", f"replica_groups={{{{0,1,2}},{{7,6,5,4,3}}}}, {TO_ADD}", R8),
    ("all-reduce", "f32[8,4]", f"replica_groups={{{{1,0}}}}, {TO_ADD}", R2P4),
    ("all-gather", "f32[16,4]", f"{PAIRS}, dimensions={{0}}", R8),
    ("all-gather", "f32[8,16]", f"{CROSSED}, dimensions={{1}}", R8),
    ("reduce-scatter", "f32[2,4]", f"{CROSSED}, dimensions={{0}}, {TO_ADD}", R8),
    ("reduce-scatter", "f32[8,2]", f"{PAIRS}, dimensions={{1}}, {TO_ADD}", R8),
    ("all-to-all", "f32[8,4]", f"{CROSSED}, dimensions={{0}}", R8),
    ("all-to-all", "f32[8,4]", f"{PAIRS}, dimensions={{1}}", R8),
    ("collective-permute", "f32[8,4]", "source_target_pairs={{0,1},{1,2},{2,0},{5,7}}", R8),
    ("collective-permute", "f32[8,4]", "source_target_pairs={{0,1},{1,0}}", R2P4),
    # groups of partitions
    ("all-to-all", "f32[8,4]", f"channel_id=1, {CROSSED}, dimensions={{0}}", P8),
    ("all-to-all", "f32[8,4]", "channel_id=1, replica_groups={{3,1},{0,2}}, dimensions={1}", R2P4),
    ("collective-permute", "f32[8,4]",
     "channel_id=1, source_target_pairs={{0,1},{1,2},{2,0},{5,7}}", P8),
    ("collective-permute", "f32[8,4]",
     "channel_id=1, source_target_pairs={{3,0},{1,2},{0,3}}", R2P4),
    # groups of replicas, each with all its partitions
    ("all-reduce", "f32[8,4]", f"channel_id=1, replica_groups={{{{0}},{{1}}}}, {TO_ADD}", R2P4),
    ("all-reduce", "f32[8,4]", f"channel_id=1, replica_groups={{{{0,2}},{{3,1}}}}, {TO_ADD}", R4P2),
    ("all-reduce", "f32[8,4]", f"channel_id=1, replica_groups={{}}, {TO_ADD}", P8),
    ("all-gather", "f32[32,4]", "channel_id=1, replica_groups={{0},{1}}, dimensions={0}", R2P4),
    ("all-gather", "f32[32,4]", "channel_id=1, replica_groups={{0,2},{3,1}}, dimensions={0}", R4P2),
    ("reduce-scatter", "f32[2,4]",
     f"channel_id=1, replica_groups={{{{2,0}},{{1,3}}}}, dimensions={{0}}, {TO_ADD}", R4P2),
    # flattened ids, written as lists, iotas and meshes
    ("all-reduce", "f32[8,4]", f"{FLATTENED}, {CROSSED}, {TO_ADD}", P8),
    ("all-reduce", "f32[8,4]", f"{FLATTENED}, {CROSSED}, {TO_ADD}", R2P4),
    ("all-reduce", "f32[8,4]", f"{FLATTENED}, replica_groups=[2,4]<=[8], {TO_ADD}", P8),
    ("all-gather", "f32[16,4]",
     f"{FLATTENED}, replica_groups=[4,2]<=[2,4]T(1,0), dimensions={{0}}", P8),
    ("all-gather", "f32[32,4]",
     f"{FLATTENED}, replica_groups=[2,4]<=[4,2]T(1,0), dimensions={{0}}", R4P2),
    ("reduce-scatter", "f32[2,4]",
     f"{FLATTENED}, replica_groups=[2,4]<=[8], dimensions={{0}}, {TO_ADD}", R2P4),
    ("all-gather", "f32[16,4]",
     f"{FLATTENED}, replica_groups=mesh['a'=2,'b'=4] {{'a'}}, dimensions={{0}}", P8),
]  # fmt: skip
"""Opcode, shape of the result, attributes, replicas and partitions."""

SEVERAL_OPS = [
    # variadic
    ("q = f32[8,4] negate(p); ROOT r = (f32[8,4], f32[8,4]) all-reduce(p, q), "
     f"{PAIRS}, {TO_ADD}", R8),
    ("q = f32[8,4] negate(p); ROOT r = (f32[16,4], f32[16,4]) all-gather(p, q), "
     f"{PAIRS}, dimensions={{0}}", R8),
    # one operand for each member
    ("q = f32[8,4] negate(p); ROOT r = (f32[8,4], f32[8,4]) all-to-all(p, q), "
     "replica_groups={{1,0},{2,3},{7,4},{6,5}}", R8),
    # ids
    ("i = u32[] replica-id(); f = f32[] convert(i); b = f32[8,4] broadcast(f), dimensions={}; "
     f"ROOT r = f32[8,4] all-reduce(b), {CROSSED}, {TO_ADD}", R8),
    ("i = u32[] partition-id(); f = f32[] convert(i); b = f32[8,4] broadcast(f), dimensions={}; "
     f"ROOT r = f32[8,4] all-reduce(b), {FLATTENED}, replica_groups=[2,4]<=[8], {TO_ADD}", P8),
    # one after another
    (f"s = f32[8,4] all-reduce(p), {PAIRS}, {TO_ADD}; "
     f"g = f32[32,4] all-gather(s), {CROSSED}, dimensions={{0}}; "
     f"ROOT r = f32[8,4] reduce-scatter(g), {CROSSED}, dimensions={{0}}, {TO_ADD}", R8),
]  # fmt: skip
"""Body, replicas and partitions."""

LOOP = """
body { s = (s32[], f32[8,4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[8,4] get-tuple-element(s), index=1
  one = s32[] constant(1)
  n = s32[] add(i, one)
  y = f32[8,4] all-reduce(x), replica_groups={{0,1},{2,3},{4,5},{6,7}}, to_apply=add
  z = f32[8,4] collective-permute(y), source_target_pairs={{0,7},{7,3},{3,2},{5,5}}
  ROOT t = (s32[], f32[8,4]) tuple(n, z) }

below { s.1 = (s32[], f32[8,4]) parameter(0)
  i.1 = s32[] get-tuple-element(s.1), index=0
  limit = s32[] constant(5)
  ROOT c = pred[] compare(i.1, limit), direction=LT }
"""

ROUNDS = (
    "zero = s32[] constant(0); s0 = (s32[], f32[8,4]) tuple(zero, p); "
    "w = (s32[], f32[8,4]) while(s0), condition=below, body=body; "
    "ROOT r = f32[8,4] get-tuple-element(w), index=1"
)
"""The body of a module with `LOOP`: the same collectives meet five times."""
