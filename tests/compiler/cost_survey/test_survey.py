"""Which weights micro-batches read, and where they are if they come only to be read."""

import numpy as np

import hloipu
from hloipu_compiler.cost_survey import survey as s
from hloipu_compiler.partition.training.inference import inference_phases
from hloipu_compiler.partition.training.step_phases import Roles
from hloipu_compiler.plan.roles import required_wrapping
from hloipu_compiler.plan.wrapping import WrappingRequest

TEXT = """HloModule predict

ENTRY predict {
  x = f32[4,8] parameter(0)
  w = f32[64] parameter(1)
  v = f64[8,8] parameter(2)
  square = f32[8,8] reshape(w)
  cast = f32[8,8] convert(v)
  first = f32[4,8] dot(x, square), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT second = f32[4,8] dot(first, cast), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""


def test_weights_are_read_through_views_and_what_is_made_of_them() -> None:
    entry = hloipu.verify(TEXT).entry
    names = entry.position
    phases = inference_phases(entry, Roles((), (0,), frozenset(), None))
    sizes, weight, op, kind = s.weights_read(entry, phases, [names["x"]])
    assert sizes.tolist() == [256, 512, 256]  # w, v, cast
    assert kind.tolist() == [s.CONSTANT, s.CONSTANT_CAST, s.CAST]
    first, second = names["first"], names["second"]
    assert list(zip(weight.tolist(), op.tolist(), strict=True)) == [
        (0, first), (1, second), (2, second)
    ]  # fmt: skip


def test_fed_parameters_are_no_weights() -> None:
    module = hloipu.verify(TEXT)
    request = WrappingRequest(loop=1, feeds={"data": (0,)})
    wrapping = required_wrapping(module, request, feeds_rest=True)
    assert s.fed_positions(module.entry, wrapping) == [module.entry.position["x"]]


def test_weights_beside_are_there_from_their_first_reader_to_their_last() -> None:
    # Ops 0, 1 and 2 at points 0 to 3, the last two of which are of op 2; one array of op 1.
    known = s.Survey(
        cycles=[1.0, 1.0, 1.0], update_cycles=0.0, point_op=np.array([0, 1, 2, 2]),
        array_bytes=np.array([10]), is_value=np.array([True]), touched=np.array([0]),
        touched_at=np.array([1]), kept_bytes=np.array([7]), kept=np.array([0]),
        kept_op=np.array([1]), weight_bytes=np.array([20, 30]), weight=np.array([0, 0, 1]),
        weight_op=np.array([0, 2, 1]), weight_kind=np.array([s.STATE, s.STATE_CAST]),
    )  # fmt: skip
    found = s.with_weights_beside(known)
    assert found.array_bytes.tolist() == [10, 20, 30, 7]
    rows = zip(found.touched, found.touched_at, found.touched_op, strict=True)
    assert sorted(rows) == [(0, 1, 1), (1, 0, 0), (1, 2, 2), (1, 3, 2), (3, 1, 1)]
    assert not len(found.kept)
