"""Shardings spread as XLA's partitioners spread them; by priorities, and in linear time."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hloipu_compiler.hlo.attributes.sharding import read_sharding
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.hlo.printing.printer import print_module
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.ir.shapes import leaves_of
from hloipu_compiler.partition.spmd import propagating
from hloipu_compiler.partition.spmd.axes import to_tiles
from hloipu_compiler.partition.spmd.deciding import shardings_of, with_shardings
from hloipu_compiler.verify.sharding_forms import normal_form
from hloipu_compiler.verify.verifier import verify
from tests.support.blocks import check_on_devices
from tests.support.command_line import run
from tests.support.xla_oracle import DEVICES

ROOT = Path(__file__).parents[4]
DIALECTS = ("shardy", "gspmd")
UNLIKE_XLA = {
    ("shardy", "unlike", 0): "two operands of one size disagree: ours moves one, Shardy both",
    ("gspmd", "whole", 3): "GSPMD replicates a slice; Shardy, as we, keeps the other dimension",
    ("gspmd", "whole", 4): "GSPMD lets devices stand in reversed order",
}


@pytest.fixture(scope="module")
def printed() -> list[dict[str, Any]]:
    """Programs as JAX lowers them for 8 devices, and XLA's shardings of their results."""
    flags = f"{DEVICES}=8 --xla_backend_optimization_level=0"
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "support" / "sharded_programs.py"), *DIALECTS],
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module", params=DIALECTS)
def lowered(
    request: pytest.FixtureRequest, printed: list[dict[str, Any]]
) -> tuple[str, list[dict[str, Any]]]:
    """The programs of one dialect."""
    return request.param, [each for each in printed if each["dialect"] == request.param]


def result_shardings(module: Module) -> list[str]:
    known = shardings_of(module)
    found = known.result((module.entry.name, module.entry.root))
    return [str(to_tiles(s, known.axes)) for s in found]


def test_results_are_divided_as_by_xla(lowered: tuple[str, list[dict[str, Any]]]) -> None:
    dialect, programs = lowered
    unlike = set()
    for program in programs:
        module = parse(program["text"])
        verify(module)
        pairs = zip(result_shardings(module), program["results"], strict=True)
        for number, (ours, theirs) in enumerate(pairs):
            if normal_form(read_sharding(ours)) != normal_form(read_sharding(theirs)):
                unlike.add((dialect, program["name"], number))
    assert len(programs) == 16
    assert unlike == {each for each in UNLIKE_XLA if each[0] == dialect}


def test_what_is_printed_is_valid_and_final(lowered: tuple[str, list[dict[str, Any]]]) -> None:
    for program in lowered[1]:
        module = parse(program["text"])
        once = with_shardings(module, shardings_of(module))
        again = parse(print_module(once))
        verify(again)
        assert result_shardings(again) == result_shardings(module), program["name"]


def test_every_device_computes_its_blocks(lowered: tuple[str, list[dict[str, Any]]]) -> None:
    for program in lowered[1]:
        module = parse(program["text"])
        if program["name"] == "mapped":  # has a manual region
            continue
        entry = module.entry
        shapes = leaves_of(entry.instructions[entry.root].shape)
        values = zip(program["values"], shapes, strict=True)
        expected = [np.asarray(v, np.float32).reshape(s.dimensions) for v, s in values]
        draws = np.random.default_rng(len(program["name"]))
        arguments = [
            draws.standard_normal(leaves_of(entry.instructions[i].shape)[0].dimensions)
            for i in entry.parameters
        ]
        check_on_devices(module, [a.astype(np.float32) for a in arguments], expected)


HEADER = """HloModule m, frontend_attributes={xla.sdy.meshes={mesh = #sdy.mesh<["a"=2, "b"=4]>}}
add { s = f32[] parameter(0)  t = f32[] parameter(1)  ROOT u = f32[] add(s, t) }
"""


def stated(name: str, text: str, rest: str) -> str:
    """One statement with a sharding in Shardy's words."""
    quoted = f"#sdy.sharding<@mesh, {text}>".replace('"', '\\"')
    return f'  {name} = f32[16,8] {rest}, frontend_attributes={{xla.sdy.sharding="{quoted}"}}\n'


def parameters(*texts: str) -> str:
    each = enumerate(texts)
    return "".join(stated(f"p{i}", text, f"parameter({i})") for i, text in each)


SHARDING = 'custom-call({}), custom_call_target="Sharding"'
BARRIER = (
    '  r = f32[16,8] custom-call(q), custom_call_target="xla.sdy.PropagationBarrier", '
    'frontend_attributes={{xla.sdy.allowed_direction="{} : i32"}}\n'
)
GROUP = (
    '  g{0} = () custom-call({0}), custom_call_target="xla.sdy.ShardingGroup", '
    'frontend_attributes={{xla.sdy.sharding_group_id="7 : i64"}}\n'
)  # fmt: skip
A, NONE = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}", "{replicated}"
B = "{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"
AB = "{devices=[2,4]<=[8]}"
CASES: dict[str, tuple[str, dict[str, str]]] = {
    "forwards and backwards": (
        parameters('[{"a"}, {}]', "[{?}, {?}]")
        + "  q = f32[16,8] add(p0, p1)\n  ROOT z = f32[8,16] transpose(q), dimensions={1,0}\n",
        {"q": A, "p1": A, "z": "{devices=[1,2,4]<=[8] last_tile_dim_replicate}"},
    ),
    "a closed dimension takes no more": (
        parameters('[{"a"}, {"b"}]', '[{"a"}, {}]') + "  ROOT q = f32[16,8] add(p0, p1)\n",
        {"q": AB, "p1": A},
    ),
    "an open dimension takes more": (
        parameters('[{"a"}, {"b"}]', '[{"a"}, {?}]') + "  ROOT q = f32[16,8] add(p0, p1)\n",
        {"q": AB, "p1": AB},
    ),
    "what must be replicated bars its axis": (
        parameters('[{"a"}, {"b"}]', '[{"a"}, {?}], replicated={"b"}')
        + "  ROOT q = f32[16,8] add(p0, p1)\n",
        {"q": AB, "p1": A},
    ),
    "without priorities the longer axes win": (
        parameters('[{"a"}, {}]', '[{"b"}, {}]') + "  ROOT q = f32[16,8] add(p0, p1)\n",
        {"q": B},
    ),
    "the first priority wins": (
        parameters('[{"a"}, {}]', '[{"b"}p1, {}]') + "  ROOT q = f32[16,8] add(p0, p1)\n",
        {"q": A, "p1": B},
    ),
    "a barrier holds back": (
        parameters('[{"a"}, {}]') + "  q = f32[16,8] negate(p0)\n" + BARRIER.format(2)
        + "  ROOT z = f32[16,8] negate(r)\n",
        {"q": A, "r": NONE, "z": NONE},
    ),
    "a barrier lets forward": (
        parameters('[{"a"}, {}]') + "  q = f32[16,8] negate(p0)\n" + BARRIER.format(1)
        + "  ROOT z = f32[16,8] negate(r)\n",
        {"r": A, "z": A},
    ),
    "GSPMD's barriers": (
        parameters('[{"a"}, {}]', '[{"a"}, {}]')
        + '  f = f32[16,8] custom-call(p0), custom_call_target="ShardBarrierFrom"\n'
        '  t = f32[16,8] custom-call(p1), custom_call_target="ShardBarrierTo"\n'
        "  y = f32[16,8] negate(f)\n  ROOT z = f32[16,8] negate(t)\n",
        {"f": NONE, "y": NONE, "t": A, "z": A},
    ),
    "groups are alike": (
        parameters('[{"a"}, {}]') + "  y = f32[16,8] parameter(1)\n"
        + GROUP.format("p0") + GROUP.format("y") + "  ROOT z = f32[16,8] negate(y)\n",
        {"y": A, "z": A},
    ),
    "a constraint reaches its operand": (
        "  y = f32[16,8] parameter(0)\n  q = f32[16,8] negate(y)\n"
        + stated("r", '[{"a"}, {}]', SHARDING.format("q")) + "  ROOT z = f32[16,8] negate(r)\n",
        {"q": A, "y": A, "z": A},
    ),
    "two constraints leave their operand": (
        parameters('[{}, {}]') + "  q = f32[16,8] negate(p0)\n"
        + stated("r", '[{"a"}, {}]', SHARDING.format("q"))
        + stated("s", '[{"b"}, {}]', SHARDING.format("q")) + "  ROOT z = f32[16,8] add(r, s)\n",
        {"r": A, "s": B, "z": B},
    ),
    "sharded products": (
        parameters('[{"a"}, {"b"}]', '[{}, {"b"}]')
        + "  q = f32[16,16] dot(p0, p1), lhs_contracting_dims={1}, rhs_contracting_dims={1}\n"
        "  c = f32[] constant(0)\n"
        "  ROOT z = f32[16] reduce(q, c), dimensions={1}, to_apply=add\n",
        {"q": A, "z": "{devices=[2,4]<=[8] last_tile_dim_replicate}"},
    ),
    "a reshape cuts an axis": (
        parameters('[{"b"}, {}]') + "  ROOT z = f32[2,8,8] reshape(p0)\n",
        {"z": "{devices=[2,2,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"},
    ),
    "what others read as well waits": (
        parameters('[{?}, {?}]') + "  q = f32[16,8] negate(p0)\n"
        + stated("y", '[{"a", ?}, {?}]', "sine(q)")
        + stated("r", '[{"a"}, {}]', SHARDING.format("y"))
        + "  w = f32[16,8] cosine(q)\n  x = f32[16,8] tanh(w)\n"
        + stated("s", '[{"b"}, {}]', SHARDING.format("x")) + "  ROOT z = f32[16,8] add(r, s)\n",
        {"w": B, "y": A},
    ),
    "an operand follows another no further than the result": (
        parameters('[{"a"}, {"b"}]', "[{?}, {?}]") + "  q = f32[16,8] add(p0, p1)\n"
        + stated("r", '[{"a"}, {}]', SHARDING.format("q")) + "  ROOT z = f32[16,8] negate(r)\n",
        {"q": A, "p1": A},
    ),
    "the result alone is cut back": (
        parameters('[{"a"}, {"b"}]')
        + "  y = f32[16,7] slice(p0), slice={[0:16], [0:7]}\n  ROOT z = (f32[16,7]) tuple(y)\n",
        {"y": AB, "z": A},
    ),
    "no part of an axis divides what a text says nothing of": (
        parameters('[{}, {"b"}]') + "  y = f32[16,10] parameter(1)\n"
        "  q = f32[16,8] slice(y), slice={[0:16], [0:8]}\n  ROOT z = f32[16,8] add(p0, q)\n",
        {"y": NONE, "q": "{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}"},
    ),
    "a result is never made uneven": (
        parameters('[{"a"}, {"b"}]') + "  ROOT z = f32[16,7] slice(p0), slice={[0:16], [0:7]}\n",
        {"z": A},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_rule_of_propagation(case: str) -> None:
    body, expected = CASES[case]
    module = parse(f"{HEADER}ENTRY e {{\n{body}}}")
    verify(module)
    known, entry = shardings_of(module), module.entry
    found = {
        name: str(to_tiles(known.result((entry.name, entry.position[name]))[0], known.axes))
        for name in expected
    }
    assert found == expected


_TO, _P, _O = "allow_spmd_sharding_propagation_to", "parameters", "output"
_HALVES, _LISTED = "{devices=[2]<=[2]}", "{devices=[2]5,7}"
GSPMD: dict[str, tuple[str, str, tuple[str, str, str]]] = {
    "as stated": ("", f"sharding={_HALVES}", (_HALVES, _HALVES, _HALVES)),
    "a result that is stated": ("", "sharding={replicated}", (_LISTED, _LISTED, NONE)),
    "a result that may choose": (
        f"{_TO}_{_O}={{true}}", "sharding={replicated}", (_LISTED, _LISTED, _LISTED)
    ),
    "a result that may not": (f"{_TO}_{_O}={{false,false}}", "", (_LISTED, _LISTED, NONE)),
    "a parameter that may not": (
        f"{_TO}_{_P}={{false,false}}", f"sharding={_HALVES}", (_HALVES, NONE, _HALVES)
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", GSPMD)
def test_the_header_says_who_may_choose(case: str) -> None:
    header, said, expected = GSPMD[case]
    leaves = f"{{{said[9:]}, {said[9:]}}}" if said else ""
    module = parse(f"""HloModule m{header and f", {header}"}
    ENTRY e {{
      x = f32[8] parameter(0), sharding={{devices=[2]5,7}}
      y = f32[8] parameter(1)
      q = f32[8] add(x, y)
      ROOT z = (f32[8], f32[8]) tuple(q, q){leaves and f", sharding={leaves}"}
    }}""")
    verify(module)
    known, entry = shardings_of(module), module.entry
    results = [known.result((entry.name, entry.position[name]))[0] for name in "xyz"]
    assert tuple(str(to_tiles(sharding, known.axes)) for sharding in results) == expected


@pytest.mark.parametrize("backwards", [False, True])
def test_each_op_is_looked_at_a_few_times(backwards: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    visits = 0
    visit = propagating._Engine._visit

    def counted(*args: Any) -> None:
        nonlocal visits
        visits += 1
        visit(*args)

    monkeypatch.setattr(propagating._Engine, "_visit", counted)
    given, count = "sharding={devices=[2,2]<=[4]}", 600
    chain = "".join(
        f"  a{i + 1} = f32[8,8] {'add' if i % 3 else 'dot'}(a{i}, a{max(0, i - 7)})"
        f"{'' if i % 3 else ', lhs_contracting_dims={1}, rhs_contracting_dims={0}'}\n"
        for i in range(count)
    )
    first, last = ("", given) if backwards else (given, "")
    module = parse(
        f"HloModule m\nENTRY e {{\n  a0 = f32[8,8] parameter(0){first and f', {first}'}\n{chain}"
        f"  ROOT z = f32[8,8] negate(a{count}){last and f', {last}'}\n}}"
    )
    shardings_of(module)
    assert count < visits < 12 * count


def test_the_command_line_prints_and_explains(tmp_path: Path) -> None:
    path = tmp_path / "m.hlo"
    body, _ = CASES["forwards and backwards"]
    path.write_text(f"{HEADER}ENTRY e {{\n{body}}}")
    printed = run("emit", "--stage=shardings", str(path))
    assert f"add(%p0, %p1), sharding={A}" in printed.out
    said = run("explain", "sharding", "z", str(path))
    assert said.out.splitlines()[1:] == [
        "  z: dimension 1 in 2 blocks (a): through transpose z, from q",
        "  q: dimension 0 in 2 blocks (a): through add q, from p0",
        "  p0: dimension 0 in 2 blocks (a): stated by an annotation",
    ]
    record = json.loads(run("explain", "sharding", "p1", str(path), "--json").out)
    assert record["values"][0]["steps"][-1]["op"] == ""
    assert "E0478" in run("explain", "sharding", "nobody", str(path)).err
    path.write_text("HloModule m\nENTRY main_spmd { ROOT p = f32[] parameter(0) }")
    assert "E0477" in run("emit", "--stage=shardings", str(path)).err
