"""What XLA:CPU is given in a module's place computes the same values."""

import numpy as np
import pytest

from hloipu.xla_cpu.runner import XlaCpu, for_partitioner, for_stablehlo
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.hlo.printing.printer import print_module
from hloipu_compiler.interpret.evaluator import evaluate
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.verify.verifier import verify
from tests.support.arrays import Array
from tests.support.collectives import ADD
from tests.support.xla_oracle import available

OPTIMISED = """
HloModule m

inner { a = f32[2,3]{0,1} parameter(0)
  b = f32[6]{0} bitcast(a)
  n = f32[6]{0} negate(b)
  ROOT t = (f32[6]{0}, f32[2,3]{0,1}) tuple(n, a) }

ENTRY e {
  x = f32[3,2]{1,0} parameter(0)
  y = f32[2,3]{0,1} bitcast(x)
  f = (f32[6]{0}, f32[2,3]{0,1}) fusion(y), kind=kLoop, calls=inner
  g = f32[6]{0} get-tuple-element(f), index=0
  h = f32[2,3]{0,1} get-tuple-element(f), index=1
  ROOT r = (f32[6]{0}, f32[2,3]{0,1}) tuple(g, h)
}
"""


def test_fusions_and_bitcasts_are_spelled_out() -> None:
    """Bitcasts between layouts become transposes and reshapes, fusions calls; values stay."""
    module = parse(OPTIMISED)
    made = for_stablehlo(module)
    verify(made)
    opcodes = {x.opcode for c in made.computations for x in c.instructions}
    assert opcodes.isdisjoint({"fusion", "bitcast"})
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    for given in (module, made):
        flat, turned = evaluate(given, x)
        np.testing.assert_array_equal(flat, -np.arange(6.0))
        np.testing.assert_array_equal(turned, x.T)


def test_what_is_written_per_device_is_marked_manual() -> None:
    """The partitioner shall not split it again, whatever its parameters still say."""
    text = (
        "HloModule m, num_partitions=2\n\nENTRY e { p = f32[4] parameter(0), "
        "sharding={devices=[2]<=[2]}\n  ROOT t = (f32[4], f32[4]) tuple(p, p) }\n"
    )
    p, t = for_partitioner(parse(text)).entry.instructions
    assert p.attributes.text("sharding") == "{manual}"
    assert t.attributes.text("sharding") == "{{manual}, {manual}}"


PMAPPED = """
HloModule jit__fun, entry_computation_layout={(f32[2,3]{1,0})->f32[2,3]{1,0}}, num_partitions=2, \
frontend_attributes={xla.sdy.meshes={mesh = #sdy.mesh<["b"=2]>}}

xla.sdy.manual_computation_body.1 {
  a = f32[1,3]{1,0} parameter(0)
  ROOT b = f32[1,3]{1,0} add(a, a)
}

ENTRY main.2 {
  x = f32[2,3]{1,0} parameter(0), sharding={devices=[2,1]<=[2]}, \
frontend_attributes={xla.sdy.sharding="#sdy.sharding<@mesh, [{\\"b\\"}, {}]>"}
  i = f32[1,3]{1,0} custom-call(x), custom_call_target="xla.sdy.GlobalToLocalShape", \
custom_call_has_side_effect=true, frontend_attributes={\
xla.sdy.in_shardings="#sdy.sharding_per_value<[<@mesh, [{\\"b\\"}, {}]>]>",\
xla.sdy.manual_axes="#sdy<manual_axes{\\"b\\"}>"}
  c = f32[1,3]{1,0} call(i), to_apply=xla.sdy.manual_computation_body.1, \
frontend_attributes={inlineable="false"}
  o = f32[2,3]{1,0} custom-call(c), custom_call_target="xla.sdy.LocalToGlobalShape", \
custom_call_has_side_effect=true, frontend_attributes={\
xla.sdy.manual_axes="#sdy<manual_axes{\\"b\\"}>",\
xla.sdy.out_shardings="#sdy.sharding_per_value<[<@mesh, [{\\"b\\"}, {}]>]>"}
  r = f32[2,3]{1,0} custom-call(o), custom_call_target="xla.sdy.FuncResultSharding", \
custom_call_has_side_effect=true, frontend_attributes={\
xla.sdy.sharding="#sdy.sharding_per_value<[<@mesh, [{\\"b\\"}, {}]>]>"}
  ROOT s = f32[2,3]{1,0} reshape(r), sharding={devices=[2,1]<=[2]}
}
"""
"""As `jax.pmap` prints it from 0.10 on."""


@pytest.mark.skipif(not available(), reason="jaxlib is not installed")
def test_regions_of_shardy_beside_other_shardings() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    with XlaCpu() as xla:
        (results,) = xla([(parse(PMAPPED), [x])])
    assert not isinstance(results, str), results
    np.testing.assert_array_equal(results[0], 2 * x)


FORMS = {
    "{{0,1,2,3},{4,5,6,7}}": (0, 1, 2, 3),
    "[2,4]<=[4,2]T(1,0)": (0, 2, 4, 6),
    "mesh['a'=4,'b'=2] {'a'}": (0, 2, 4, 6),
    "mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b'}": (0, 2, 4, 6),
    "mesh['a'=2,'b'=2,'c'=2], device_ids=(0,4,2,6,1,5,3,7) {'a','c'}": (0, 4, 1, 5),
}
"""Forms of groups, and the members of the first participant's, in order."""
GLOBAL = "channel_id=1, use_global_device_ids=true"
KINDS: dict[str, tuple[str, str]] = {
    "all-reduce": ("f32[4]", f"{GLOBAL}, to_apply=add"),
    "all-gather": ("f32[16]", f"{GLOBAL}, dimensions={{0}}"),
    "reduce-scatter": ("f32[1]", f"{GLOBAL}, dimensions={{0}}, to_apply=add"),
    "all-to-all": ("f32[4]", "channel_id=1, dimensions={0}"),
}


def meeting(kind: str, form: str, header: str = "num_partitions=8") -> Module:
    """Return a module in which each device has its number times ten, and a ramp, and meets."""
    shape, attributes = KINDS[kind]
    return parse(f"""HloModule m, {header}
{ADD}
ENTRY e {{
  ramp = f32[4] parameter(0)
  r = u32[] replica-id()
  p = u32[] partition-id()
  four = u32[] constant(4)
  first = u32[] multiply(r, four)
  n = u32[] add(first, p)
  k = f32[] convert(n)
  ten = f32[] constant(10)
  tens = f32[] multiply(k, ten)
  all = f32[4] broadcast(tens), dimensions={{}}
  mine = f32[4] add(ramp, all)
  ROOT met = {shape} {kind}(mine), replica_groups={form}, {attributes}
}}
""")


def met(kind: str, members: tuple[int, ...]) -> Array:
    """Return what the first of the members of a group has after they met."""
    values: Array = np.stack([np.arange(4) + 10.0 * member for member in members])
    results: dict[str, Array] = {
        "all-reduce": values.sum(0),
        "all-gather": values.reshape(-1),
        "reduce-scatter": values.sum(0)[:1],
        "all-to-all": values[:, 0],
    }
    return results[kind]


def test_groups_are_written_as_lists() -> None:
    for kind in KINDS:
        for form in FORMS:
            text = print_module(for_stablehlo(meeting(kind, form)))
            assert "replica_groups={{" in text
            assert ("use_global_device_ids=true" in text) == (GLOBAL in KINDS[kind][1])


@pytest.mark.skipif(not available(), reason="no jaxlib")
def test_xla_forms_groups_as_they_are_written(xla_cpu: XlaCpu) -> None:
    """In every form, and where devices are replicas and partitions: values are those of numpy."""
    cases = [(kind, form, "num_partitions=8") for kind in KINDS for form in FORMS]
    both = "replica_count=2, num_partitions=4"
    cases += [(kind, form, both) for kind in KINDS if kind != "all-to-all" for form in FORMS]
    ramp = np.arange(4, dtype=np.float32)
    answers = xla_cpu([(meeting(*case), [ramp]) for case in cases])
    for case, answer in zip(cases, answers, strict=True):
        assert not isinstance(answer, str), (case, answer)
        np.testing.assert_array_equal(answer[0], met(case[0], FORMS[case[1]]), str(case))


@pytest.mark.skipif(not available(), reason="no jaxlib")
def test_xla_is_given_the_arrays_of_tuples_that_an_entry_takes(xla_cpu: XlaCpu) -> None:
    """As TensorFlow and PyTorch/XLA print steps: one tuple, also of tuples."""
    module = parse("""
HloModule m
ENTRY e { s = (f32[3], (s32[], f32[2])) parameter(0)
  y = f32[2] parameter(1)
  x = f32[3] get-tuple-element(s), index=0
  t = (s32[], f32[2]) get-tuple-element(s), index=1
  n = s32[] get-tuple-element(t), index=0
  z = f32[2] get-tuple-element(t), index=1
  d = f32[2] subtract(z, y)
  ROOT r = (f32[2], s32[], f32[3]) tuple(d, n, x) }
""")
    x, n = np.arange(3, dtype=np.float32), np.array(7, np.int32)
    z, y = np.array([5, 6], np.float32), np.array([1, 3], np.float32)
    (made,) = xla_cpu([(module, [x, n, z, y])])
    assert not isinstance(made, str), made
    for found, wanted in zip(made, (z - y, n, x), strict=True):
        np.testing.assert_array_equal(found, wanted)
