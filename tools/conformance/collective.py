"""Cases of the collectives over eight host devices, as replicas and as partitions."""

from collections.abc import Iterator

from tools.conformance.case import Case, Dimensions, Input, of_one_op, scalar_region, shape_text
from tools.conformance.types import ALL, ARITHMETIC

GROUPS = ("{}", "{{0,1,2,3,4,5,6,7}}", "{{0,1},{2,3},{4,5},{6,7}}", "{{7,0,3,4},{2,1,6,5}}")
SIZES = (8, 8, 2, 4)
SHAPES: tuple[Dimensions, ...] = ((8,), (8, 3), (0, 8), (2, 8, 1, 3, 2))
REPLICAS = ", replica_count=8"


def cases() -> Iterator[Case]:
    """Yield all cases of this family."""
    # Collectives of packed two-bit integers hang XLA:CPU.
    for number, t in enumerate(t for t in ALL if t not in ("s2", "u2")):
        for step, (groups, members) in enumerate(zip(GROUPS, SIZES, strict=True)):
            sizes = SHAPES[(number + step) % len(SHAPES)]
            yield from _of_shape(t, sizes, groups, members)
    for t in ("f32", "s32"):
        for opcode in ("replica-id", "partition-id"):
            yield of_one_op(opcode, [], "u32[]", element_type="u32", variant=t, replicas=8,
                            header=REPLICAS)  # fmt: skip


def _of_shape(t: str, sizes: Dimensions, groups: str, members: int) -> Iterator[Case]:
    x = Input(t, sizes, "moderate")
    tail = f"replica_groups={groups}"
    axis = sizes.index(8)
    many = {"header": REPLICAS, "replicas": 8}
    for combiner in ("add", "maximum") if t in ARITHMETIC[:12] else ():
        region = scalar_region("combine", combiner, t)
        yield of_one_op(
            "all-reduce", [x], x.shape, f"{tail}, to_apply=combine", variant=f"{combiner} {groups}",
            regions=region, terms=members, combiner=combiner,
            summed=(0,) if combiner == "add" else None, **many,  # type: ignore[arg-type]
        )  # fmt: skip
        part = tuple(n // members if d == axis else n for d, n in enumerate(sizes))
        yield of_one_op(
            "reduce-scatter", [x], shape_text(t, part),
            f"{tail}, dimensions={{{axis}}}, to_apply=combine", variant=f"{combiner} {groups}",
            regions=region, terms=members, combiner=combiner,
            summed=(0,) if combiner == "add" else None, **many,  # type: ignore[arg-type]
        )  # fmt: skip
    whole = tuple(n * members if d == axis else n for d, n in enumerate(sizes))
    yield of_one_op("all-gather", [x], shape_text(t, whole), f"{tail}, dimensions={{{axis}}}",
                    variant=groups, **many)  # type: ignore[arg-type]  # fmt: skip
    yield of_one_op("all-to-all", [x], x.shape, f"{tail}, dimensions={{{axis}}}", variant=groups,
                    **many)  # type: ignore[arg-type]  # fmt: skip
    yield of_one_op(
        "collective-permute", [x], x.shape,
        "source_target_pairs={{0,1},{1,2},{2,0},{5,7}}" if members == 8 else
        "source_target_pairs={{0,7},{7,0},{1,6},{6,1},{2,5},{5,2},{3,4},{4,3}}",
        variant=groups, **many,  # type: ignore[arg-type]
    )  # fmt: skip
    yield of_one_op("collective-broadcast", [x], x.shape, tail, variant=groups, **many)  # type: ignore[arg-type]
