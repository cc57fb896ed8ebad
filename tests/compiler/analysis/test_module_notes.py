"""Annotations that nothing acts on are told, and text that XLA has optimised."""

import pytest
from click.testing import CliRunner

from hloipu.cli.application import application
from hloipu_compiler.analysis.module_notes import module_notes
from tests.support.passes import entry, parsed

SDY = (
    'custom_call_target="xla.sdy.FuncResultSharding", custom_call_has_side_effect=true, '
    'frontend_attributes={xla.sdy.sharding="#sdy.sharding_per_value<[<@mesh, [DIM]>]>"}'
)
HOST = 'custom_call_target="annotate_device_placement", frontend_attributes={_xla_buffer_placement="WHERE"}'  # noqa: E501


@pytest.mark.parametrize(
    ("parameter", "call", "said"),
    [
        ("", 'custom_call_target="Sharding", sharding={devices=[2]<=[2]}', "1 sharding over"),
        (", sharding={devices=[2]<=[2]}", 'custom_call_target="Sharding", sharding={replicated}',
         "1 sharding over"),
        ("", 'custom_call_target="Sharding", sharding={replicated}', ""),
        ("", SDY.replace("DIM", '{\\"x\\"}'), "1 sharding over"),
        ("", SDY.replace("DIM", "{}"), ""),
        ("", 'custom_call_target="MoveToHost"', "1 value annotated to lie on the host"),
        ("", 'custom_call_target="MoveToDevice"', ""),
        ("", HOST.replace("WHERE", "pinned_host"), "1 value annotated to lie on the host"),
        ("", HOST.replace("WHERE", "device"), ""),
    ],
)  # fmt: skip
def test_what_has_no_effect_is_said(parameter: str, call: str, said: str) -> None:
    text = entry(f"  p = f32[4] parameter(0){parameter}\n  ROOT r = f32[4] custom-call(p), {call}")
    lines = module_notes(parsed(text))
    assert [line.startswith(said) for line in lines] == [True] * bool(said)
    followed = "devices=[" in text
    for command in (["compile", "--partition=off"], ["compile"], ["show"]):
        shown = CliRunner().invoke(application, [*command, "-"], input=text).output
        has_effect = not said or (followed and len(command) == 1)
        assert ("without effect" in shown) != has_effect


def test_shardings_of_parameters_say_how_a_module_was_written() -> None:
    text = """HloModule m, replica_count=2

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

ENTRY e {
  p = f32[4] parameter(0), sharding={devices=[2]<=[2]}
  ROOT r = f32[4] all-reduce(p), replica_groups={}, to_apply=add
}
"""
    assert not module_notes(parsed(text))


@pytest.mark.parametrize(("header", "told"), [(", is_scheduled=true", True), ("", False)])
def test_text_after_optimisation_is_told(header: str, told: bool) -> None:
    text = f"""HloModule m{header}

f {{
  a = f32[4] parameter(0)
  ROOT n = f32[4] negate(a)
}}

ENTRY e {{
  p = f32[4] parameter(0)
  ROOT r = f32[4] fusion(p), kind=kLoop, calls=f
}}
"""
    assert ["after XLA's optimisation" in line for line in module_notes(parsed(text))] == [
        True
    ] * told


@pytest.mark.parametrize("values", ["...", "1, 2, 3, 4"])
def test_constants_that_were_left_out_are_told(values: str) -> None:
    text = entry(f"  ROOT c = f32[4] constant({{{values}}})")
    assert [line[:10] for line in module_notes(parsed(text))] == ["1 constant"] * (values == "...")
