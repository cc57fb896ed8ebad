"""Numbers that the counter decides, against the same arithmetic done in numpy."""

import numpy as np
import pytest

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.partition.scans.trip_values import trip_values

TRIPS = np.arange(6)
TEXT = """HloModule body
ENTRY body {{
  s = ({kind}[], s32[3], f32[]) parameter(0)
  i = {kind}[] get-tuple-element(s), index=0
  t = s32[3] get-tuple-element(s), index=1
  f = f32[] get-tuple-element(s), index=2
  two = {kind}[] constant(2)
  three = {kind}[] constant(3)
  small = pred[] compare(i, three), direction=LT
  {value}
  ROOT r = ({kind}[], s32[3], f32[]) tuple(i, t, f)
}}
"""


def values(value: str, kind: str = "s32") -> np.ndarray | None:
    """Return what `v` is in each trip, where that can be told."""
    body = parse(TEXT.format(kind=kind, value=value)).entry
    found = trip_values(body, {0: TRIPS}, {1: np.array([7, 5, 3])}, len(TRIPS))
    return found.get(body.position["v"])


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("v = s32[] add(i, two)", TRIPS + 2),
        ("v = s32[] subtract(two, i)", 2 - TRIPS),
        ("v = s32[] multiply(i, three)", TRIPS * 3),
        ("v = s32[] negate(i)", -TRIPS),
        ("v = s32[] divide(i, three)", TRIPS // 3),
        ("v = s32[] remainder(i, three)", TRIPS % 3),
        ("v = s32[] maximum(i, three)", np.maximum(TRIPS, 3)),
        ("v = s32[] clamp(two, i, three)", np.clip(TRIPS, 2, 3)),
        ("v = s32[] select(small, i, two)", np.where(TRIPS < 3, TRIPS, 2)),
        ("v = s32[] xor(i, three)", TRIPS ^ 3),
        ("v = s64[] convert(i)", TRIPS),
        ("v = s32[1] reshape(i)", TRIPS),
        ("v = pred[] not(small)", TRIPS >= 3),
        ("v = s32[1] dynamic-slice(t, i), dynamic_slice_sizes={1}", np.array([7, 5, 3, 3, 3, 3])),
    ],
)
def test_numbers_of_all_trips(value: str, wanted: np.ndarray) -> None:
    found = values(value)
    assert found is not None
    np.testing.assert_array_equal(found, wanted)


def test_quotients_are_cut_off_towards_zero() -> None:
    found = values("m = s32[] subtract(two, i)\n  v = s32[] divide(m, two)")
    rest = values("m = s32[] subtract(two, i)\n  v = s32[] remainder(m, two)")
    np.testing.assert_array_equal(found, [1, 0, 0, 0, -1, -1])
    np.testing.assert_array_equal(rest, [0, 1, 0, -1, 0, -1])


def test_numbers_wrap_as_their_type_does() -> None:
    found = values("v = u8[] subtract(i, two)", "u8")
    assert found is not None
    np.testing.assert_array_equal(found, (TRIPS - 2) % 256)


@pytest.mark.parametrize(
    "value",
    [
        "v = s32[] convert(f)",
        "v = f32[] convert(i)",
        "v = s32[] divide(two, i)",
        "v = s32[2] dynamic-slice(t, i), dynamic_slice_sizes={2}",
    ],
)
def test_what_cannot_be_told(value: str) -> None:
    assert values(value) is None
