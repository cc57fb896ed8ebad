"""Shardings that flags ask for: text that XLA reads, values that stay the same, and refusals."""

from pathlib import Path

import numpy as np
import pytest

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.hlo.printing.printer import print_module
from hloipu_compiler.ir.ops import COLLECTIVES
from hloipu_compiler.partition.spmd.annotating import annotated
from hloipu_compiler.partition.spmd.parameter_rules import MeshSizes, Rule
from hloipu_compiler.verify.verifier import verify
from hloipu_runtime.errors import UsageError
from tests.support.blocks import check_on_devices
from tests.support.command_line import run
from tests.support.xla_oracle import Oracle

MESH = (("data", 2), ("model", 4))
DOT = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
MLP = f"""HloModule m

ENTRY e {{
  x = f32[8,16] parameter(0), metadata={{op_name="x"}}
  w1 = f32[16,32] parameter(1), metadata={{op_name="params['up']['kernel']"}}
  b1 = f32[32] parameter(2), metadata={{op_name="params['up']['bias']"}}
  w2 = f32[32,16] parameter(3), metadata={{op_name="params['down']['kernel']"}}
  s = f32[] parameter(4), metadata={{op_name="scale"}}
  h = f32[8,32] dot(x, w1), {DOT}
  b = f32[8,32] broadcast(b1), dimensions={{1}}
  a = f32[8,32] add(h, b)
  t = f32[8,32] tanh(a)
  y = f32[8,16] dot(t, w2), {DOT}
  v = f32[8,16] broadcast(s), dimensions={{}}
  ROOT r = f32[8,16] multiply(y, v)
}}
"""
MEGATRON: tuple[Rule, ...] = (
    ("x", (("data",),)),
    ("params/up/k*", ((), ("model",))),
    ("params['down']['kernel']", (("model",),)),
    ("*", ()),
)
CONSTRAINED = """tanh(a)
  c = f32[8,32] custom-call(t), custom_call_target="Sharding", sharding={replicated},
    frontend_attributes={xla.sdy.sharding="#sdy.sharding_per_value<[<@mesh, [{}, {}]>]>"}"""
MESHES = 'frontend_attributes={xla.sdy.meshes={mesh = #sdy.mesh<["data"=1, "model"=1]>}}'
ONE_DEVICE = (
    MLP.replace("HloModule m", f"HloModule m, {MESHES}")
    .replace("tanh(a)", CONSTRAINED)
    .replace("dot(t,", "dot(c,")
)
TILED = MLP.replace(
    "parameter(0)", "parameter(0), sharding={devices=[2,1,4]<=[8] last_tile_dim_replicate}"
)
TWO = MLP.replace("ROOT r", "r").replace(
    "multiply(y, v)", "multiply(y, v)\n  ROOT q = (f32[8,16], f32[8,32]) tuple(r, t)"
)
CASES: dict[str, tuple[str, MeshSizes, tuple[Rule, ...], dict[str, int]]] = {
    "Megatron": (MLP, MESH, (MEGATRON[0], ("params/up/kernel", ((), ("model",))), MEGATRON[2]),
                 {"all-reduce": 1}),
    "batch over everything": (MLP, MESH, (("0", (("data", "model"),)),), {}),
    "weights, too, over everything": (
        MLP, MESH, (("x", (("data", "model"),)), ("w?", (("data", "model"),)), ("b1", ())),
        {"all-to-all": 2, "reduce-scatter": 2},
    ),
    "open": (MLP, MESH, (("x", (("data", "?"), ("?",))), ("w1", ((), ("model",)))),
             {"all-reduce": 1}),
    "sizes that do not divide": (
        MLP, (("data", 3), ("model", 5)),
        (("x", (("data",),)), ("w1", ((), ("model",))), ("w2", (("model",),))),
        {"all-gather": 1, "all-reduce": 1},
    ),
    "three axes": (
        MLP, (("data", 2), ("model", 2), ("rest", 2)),
        (("x", (("data",), ("rest",))), ("w1", (("rest",), ("model",))), ("w2", (("model",),))),
        {"all-reduce": 2},
    ),
    "a result": (MLP, MESH, (("w2", ((), ("model",))), ("out_0", (("data",), ("model",)))),
                 {}),
    "a result of tiles": (TILED, MESH, (("out_*", (("data",), ("model",))),), {}),
    "several results": (TWO, MESH, (("out_1", ((), ("data",))),), {"all-reduce": 1}),
    "a mesh of one device gets sizes": (
        ONE_DEVICE, MESH, (("x", (("data",),)), ("w2", (("model",),))), {"all-reduce": 1}),
    "tile assignments stay": (TILED, MESH, (("w1", ((), ("model",))),), {"all-reduce": 1}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_values_and_text(name: str, oracle: Oracle) -> None:
    text, mesh, rules, collectives = CASES[name]
    module = parse(text)
    verify(module)
    made = annotated(module, mesh, rules)
    printed = print_module(made.module)
    assert oracle.verify(printed).accepted
    again = parse(printed)
    verify(again)
    rng = np.random.default_rng(1)
    shapes = [module.entry.instructions[i].shape.dimensions for i in module.entry.parameters]  # type: ignore[union-attr]
    arguments = [np.asarray(rng.standard_normal(s), np.float32) for s in shapes]
    local = check_on_devices(again, arguments, oracle.run(text if text == TWO else MLP, arguments))
    found = [x.opcode for c in local.computations for x in c.instructions]
    assert {o: found.count(o) for o in COLLECTIVES if o in found} == collectives


FAULTS: dict[str, tuple[str, MeshSizes, tuple[Rule, ...], str, str]] = {
    "no mesh": (MLP, (), (("x", (("data",),)),), "E0486", "no meshes"),
    "tiles of fewer devices": (TILED, (("data", 4),), (), "E0486", "over 8 devices"),
    "nothing of that name": (MLP, MESH, (("params/upp", ()),), "E0487", "none of 6"),
    "too late": (MLP, MESH, (("*", ()), ("x", (("data",),))), "E0487", "rules before it"),
    "no such axis": (MLP, MESH, (("x", (("dat",),)),), "E0488", "'dat'"),
    "an axis twice": (MLP, MESH, (("x", (("data",), ("data",))),), "E0488", "twice"),
    "too many dimensions": (MLP, MESH, (("b1", ((), ())),), "E0488", "has 1"),
    "too many blocks": (MLP, (("data", 9),), (("x", (("data",),)),), "E0488", "into 9 blocks"),
    "written for each device": (
        "HloModule m\nENTRY e_spmd { ROOT p = f32[4] parameter(0) }", MESH, (), "E0477", "already"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_what_does_not_fit_is_refused(name: str) -> None:
    text, mesh, rules, code, said = FAULTS[name]
    with pytest.raises(UsageError, match=said) as refused:
        annotated(parse(text), mesh, rules)
    assert refused.value.code == code


def test_flags_win_over_the_text_and_it_is_said() -> None:
    first = annotated(parse(MLP), MESH, MEGATRON)
    again = annotated(first.module, (), (("w1", (("model",),)),))
    assert again.lines == (
        "mesh: data=2, model=4, 8 devices",
        "what the text says of w1 no longer counts: --shard says it anew",
    )  # fmt: skip
    w1, w2 = (again.module.entry.instructions[i] for i in (1, 3))
    assert "devices=[4,1,2]" in str(w1.attributes["sharding"])
    assert w2 == first.module.entry.instructions[3]
    larger = annotated(again.module, (("data", 4),))
    assert larger.lines == (
        "mesh: model=4, data=4, 16 devices",
        "axes of the text that --mesh does not name stay: model=4",
    )


def test_the_command_line_and_the_call_say_the_same(tmp_path: Path) -> None:
    path = tmp_path / "m.hlo"
    path.write_text(MLP)
    flags = [
        "--mesh",
        "data=2,model=4",
        "--shard",
        "x=data,?",
        "--shard",
        "params/up/kernel=-,model",
    ]
    said = run("emit", str(path), *flags)
    assert said.err.startswith("mesh: data=2, model=4, 8 devices")
    rules: tuple[Rule, ...] = (
        ("x", (("data",), ("?",))), ("params/up/kernel", ((), ("model",)))
    )  # fmt: skip
    assert said.out == print_module(annotated(parse(MLP), MESH, rules).module)
    checked = run("check", str(path), *flags, "--target", "gc200").err
    assert "mesh: data=2, model=4, 8 devices" in checked
    assert "agrees with" in checked
    who = run("explain", "sharding", "t", str(path), *flags)
    assert "w1: dimension 1 in 4 blocks (model): stated by an annotation" in who.out


def test_a_mesh_that_divides_nothing_says_so() -> None:
    mesh = (("data", 2),)
    assert any(line.startswith("nothing is divided") for line in annotated(parse(MLP), mesh).lines)
    divided = annotated(parse(MLP), mesh, MEGATRON[:1]), annotated(parse(ONE_DEVICE), mesh)
    assert not any("nothing" in line for x in divided for line in x.lines)
