"""Collectives: groups, pairs, channel ids against the header."""

import pytest

from tests.support.verifier_cases import check_accepted, check_refused, faults_in

_ADD = """add {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT s = f32[] add(x, y)
}
"""


def _module(statement: str, header: str = "") -> str:
    return (
        f"HloModule m{header}\n{_ADD}ENTRY e {{\n  p = f32[4] parameter(0)\n"
        f"  ROOT r = {statement}\n}}\n"
    )


@pytest.mark.parametrize(
    ("statement", "header"),
    [
        ("f32[4] all-reduce(p), to_apply=add", ""),
        ("f32[4] all-reduce(p), replica_groups={}, to_apply=add", ", replica_count=8"),
        ("f32[4] all-reduce(p), replica_groups={{0,2},{3,1}}, to_apply=add", ", replica_count=4"),
        ("f32[4] all-reduce(p), replica_groups={{0,1,2},{3}}, to_apply=add", ""),
        ("f32[4] all-reduce(p), channel_id=1, replica_groups={{0,1}}, to_apply=add",
         ", replica_count=2, num_partitions=4"),
        ("f32[4] all-reduce(p), channel_id=1, replica_groups={{0,1,2,3},{4,5,6,7}}, "
         "use_global_device_ids=true, to_apply=add", ", replica_count=2, num_partitions=4"),
        ("f32[8] all-gather(p), replica_groups={{0,1}}, dimensions={0}", ", replica_count=2"),
        ("f32[4] all-to-all(p), replica_groups={{0,1},{2,3}}, dimensions={0}", ""),
        ("f32[4] all-reduce(p), replica_groups=[2,2]<=[4], to_apply=add", ", replica_count=4"),
        ("f32[4] collective-permute(p), source_target_pairs={{0,1},{1,0}}", ""),
        ("f32[4] collective-permute(p), source_target_pairs={{0,1},{2,3}}", ", replica_count=4"),
        ("f32[4] collective-broadcast(p), replica_groups={{0,1},{1,2}}", ""),
        ("f32[4] all-to-all(p), channel_id=1, replica_groups={{0,1}}, dimensions={0}",
         ", num_partitions=2, replica_count=3"),
    ],
)  # fmt: skip
def test_right_collectives_are_accepted(statement: str, header: str) -> None:
    """Groups cover the participants that the header announces, where it announces any."""
    check_accepted(_module(statement, header))


@pytest.mark.parametrize(
    ("statement", "header", "code"),
    [
        ("f32[4] all-reduce(p), «replica_groups={{0,1},{1,2}}», to_apply=add", "", "E0313"),
        ("f32[4] all-reduce(p), «replica_groups={{0,1},{}}», to_apply=add", "", "E0313"),
        ("f32[4] all-reduce(p), «replica_groups={{0,2}}», to_apply=add", "", "E0313"),
        ("f32[4] all-reduce(p), «replica_groups={{0,-1}}», to_apply=add", "", "E0313"),
        ("f32[4] all-reduce(p), «replica_groups={{0,1}}», to_apply=add",
         ", replica_count=4", "E0314"),
        ("f32[4] all-reduce(p), channel_id=1, «replica_groups={{0,1}}», "
         "use_global_device_ids=true, to_apply=add",
         ", replica_count=2, num_partitions=2", "E0314"),
        ("f32[4] all-to-all(p), channel_id=1, «replica_groups={{0,1}}», dimensions={0}",
         ", num_partitions=4", "E0314"),
        ("f32[8] all-gather(p), «replica_groups={{0,1},{2}}», dimensions={0}", "", "E0315"),
        ("f32[4] all-reduce(p), channel_id=1, «use_global_device_ids=true», to_apply=add",
         "", "E0316"),
        ("f32[4] all-reduce(p), «channel_id=0», to_apply=add", "", "E0319"),
        ("f32[4] collective-permute(p), «source_target_pairs={{0,1},{0,2}}»", "", "E0318"),
        ("f32[4] collective-permute(p), «source_target_pairs={{0,1},{2,1}}»", "", "E0318"),
        ("f32[4] collective-permute(p), «source_target_pairs={{0,4}}»",
         ", replica_count=4", "E0318"),
        ("f32[4] collective-permute(p), channel_id=1, «source_target_pairs={{2,0}}»",
         ", replica_count=4, num_partitions=2", "E0318"),
        ("f32[4] collective-permute(p), «source_target_pairs={{-1,0}}»", "", "E0318"),
    ],
)  # fmt: skip
def test_wrong_participants_are_refused(statement: str, header: str, code: str) -> None:
    """The attribute that says who takes part is the place."""
    check_refused(_module(statement, header), code)


@pytest.mark.parametrize(
    ("statement", "header"),
    [
        ("f32[12] all-gather(p), replica_groups={{0,1}}, dimensions={0}", ""),
        ("f32[8] all-gather(p), dimensions={0}", ", replica_count=4"),
        ("f32[2] reduce-scatter(p), replica_groups={{0,1,2,3}}, dimensions={0}, to_apply=add", ""),
        ("f32[4] all-to-all(p), replica_groups={{0,1,2}}, dimensions={0}", ""),
        ("(f32[4]) all-to-all(p), replica_groups={{0,1}}", ""),
    ],
)
def test_sizes_that_do_not_fit_the_groups_are_refused(statement: str, header: str) -> None:
    """The group size is a factor of the result's shape."""
    found = faults_in(_module(statement, header))
    assert [fault.code for fault in found] == ["E0222"] or found[0].code.startswith("E02")


def test_mixed_layout_constraints_are_refused() -> None:
    """All all-reduces of a module constrain their layouts, or none."""
    check_refused(
        f"HloModule m\n{_ADD}ENTRY e {{\n  p = f32[4] parameter(0)\n"
        "  a = f32[4] all-reduce(p), constrain_layout=true, to_apply=add\n"
        "  ROOT b = f32[4] «all-reduce»(a), to_apply=add\n}\n",
        "E0332",
    )
    check_accepted(
        f"HloModule m\n{_ADD}ENTRY e {{\n  p = f32[4] parameter(0)\n"
        "  a = f32[4] all-reduce(p), constrain_layout=false, to_apply=add\n"
        "  ROOT b = f32[4] all-reduce(a), to_apply=add\n}\n",
    )
