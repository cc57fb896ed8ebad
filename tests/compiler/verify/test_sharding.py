"""Shardings: valid for the shape and the machine, consistent around loops."""

import pytest

from tests.support.verifier_cases import check_accepted, check_refused


def _module(sharding: str, shape: str = "f32[4,6]", header: str = "") -> str:
    return (
        f"HloModule m{header}\nENTRY e {{\n  p = {shape} parameter(0), {sharding}\n"
        "  ROOT n = token[] after-all()\n}\n"
    )


@pytest.mark.parametrize(
    ("sharding", "shape", "header"),
    [
        ("sharding={replicated}", "f32[4,6]", ""),
        ("sharding={manual}", "f32[4,6]", ""),
        ("sharding={maximal device=3}", "f32[4,6]", ""),
        ("sharding={devices=[2,2]0,1,2,3}", "f32[4,6]", ", num_partitions=4"),
        ("sharding={devices=[2,2]<=[4]}", "f32[4,6]", ", num_partitions=4"),
        ("sharding={devices=[2,2]<=[2,2]T(1,0)}", "f32[4,6]", ""),
        ("sharding={devices=[2,1,2]0,1,2,3 last_tile_dim_replicate}", "f32[4,6]", ""),
        ("sharding={devices=[1,1,2,2]<=[4] last_tile_dims={manual, replicated}}", "f32[4,6]", ""),
        ("sharding={{replicated}, {maximal device=1}}", "(f32[4], s32[])", ""),
        ("sharding={replicated}", "(f32[4], s32[])", ""),
        ("sharding={devices=[2]0,1}", "token[]", ""),
        ("sharding={mesh['a'=2,'b'=2], [{'a'}, {}]}", "f32[4,6]", ""),
    ],
)
def test_right_shardings_are_accepted(sharding: str, shape: str, header: str) -> None:
    """Tile counts for each dimension, one sharding for each leaf."""
    check_accepted(_module(sharding, shape, header))


@pytest.mark.parametrize(
    ("sharding", "shape", "header"),
    [
        ("«sharding={devices=[4]0,1,2,3}»", "f32[4,6]", ""),
        ("«sharding={devices=[2,2,1]<=[4]}»", "f32[4,6]", ""),
        ("«sharding={devices=[2,2]0,1,2,2}»", "f32[4,6]", ""),
        ("«sharding={devices=[2,2]0,1,2,3}»", "f32[4,6]", ", num_partitions=8"),
        ("«sharding={devices=[2,2]<=[4]}»", "f32[4,6]", ", num_partitions=8"),
        ("«sharding={maximal device=8}»", "f32[4,6]", ", num_partitions=8"),
        ("«sharding={{replicated}}»", "(f32[4], s32[])", ""),
        ("«sharding={{replicated}, {replicated}}»", "f32[4,6]", ""),
        ("«sharding={{replicated}, {devices=[2]0,1}}»", "(f32[4], s32[])", ""),
        ("«sharding={devices=[2]0,1}»", "(f32[4], s32[])", ""),
        ("«sharding={mesh['a'=2,'b'=2], [{'a'}]}»", "f32[4,6]", ""),
    ],
)
def test_wrong_shardings_are_refused(sharding: str, shape: str, header: str) -> None:
    """Rank, leaves, devices."""
    check_refused(_module(sharding, shape, header), "E0325")


def test_device_minus_one_is_that_of_graphcores_stages_alone() -> None:
    """A stage of several that run at once is on all of its IPUs."""
    text = (
        "HloModule m\nf {\n  x = f32[2] parameter(0)\n  ROOT n = f32[2] negate(x)\n}\n"
        "ENTRY e {\n  x = f32[2] parameter(0)\n"
        "  ROOT c = f32[2] call(x), to_apply=f, «sharding={maximal device=-1}»%s\n}\n"
    )
    stage = ', frontend_attributes={CALL_CONFIG_TYPE="PipelineStage",PIPELINE_STAGE_ID="0"}'
    check_refused(text % "", "E0325")
    check_accepted((text % stage).replace("«", "").replace("»", ""))


def _loop(body: str, loop: str) -> str:
    return (
        f"HloModule m\nbody {{\n  b = s32[] parameter(0)\n  ROOT n = s32[] negate(b){body}\n}}\n"
        "cond {\n  c = s32[] parameter(0)\n  ROOT t = pred[] constant(true)\n}\n"
        "ENTRY e {\n  p = s32[] parameter(0)\n"
        f"  ROOT w = s32[] while(p), condition=cond, body=body{loop}\n}}\n"
    )


def test_shardings_around_a_loop_agree() -> None:
    """Loop, root of the body and parameters; metadata does not count."""
    check_accepted(_loop(", sharding={manual}", ""))
    check_accepted(_loop(", sharding={manual}", ", sharding={manual}"))
    check_accepted(_loop(', sharding={manual metadata={op_name="x"}}', ", sharding={manual}"))
    check_refused(_loop(", «sharding={manual}»", ", sharding={replicated}"), "E0326")
