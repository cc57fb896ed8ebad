"""Which branch and level ops of a stage on several IPUs have; refusals."""

import pytest

import hloipu
from hloipu_compiler.partition.stages.assignment import whole_stages
from hloipu_compiler.partition.stages.branch_places import spots_of
from hloipu_compiler.partition.stages.branches import branch_counts, marked_branches, stage_ipus
from hloipu_compiler.partition.stages.independent_parts import JOIN
from hloipu_compiler.partition.training.errors import StagingError
from hloipu_compiler.partition.training.inference import inference_phases
from hloipu_compiler.partition.training.marks import marked_stages
from hloipu_compiler.partition.training.phases import phases_of
from hloipu_compiler.partition.training.step_phases import Pair, Roles
from hloipu_compiler.plan.pipelining import device_map_text

Spots = dict[str, tuple[int, int]]


def text(ops: str, weights: int = 2) -> str:
    """Return a module whose entry has weights w0, w1, … of 9 by 9, data x, and some ops."""
    lines = [line.strip() for line in ops.strip().splitlines()]
    parameters = [f"  w{n} = f32[9,9] parameter({n})" for n in range(weights)]
    body = "\n".join(
        [*parameters, f"  x = f32[9,9] parameter({weights})", *(f"  {line}" for line in lines)]
    )
    return f"HloModule m\nENTRY e {{\n{body}\n}}\n"


def product(a: str, b: str, branch: int | None = None) -> str:
    said = "" if branch is None else f', frontend_attributes={{ipu_branch="{branch}"}}'
    return f"f32[9,9] dot({a}, {b}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}{said}"


def marked(opcode: str, operands: str, branch: int) -> str:
    return f'f32[9,9] {opcode}({operands}), frontend_attributes={{ipu_branch="{branch}"}}'


def spots(module_text: str, weights: int = 2, branches: int = 2, **cycles: float) -> Spots:
    """Return level and branch of each forward op of a step in one stage; weights are updated."""
    entry = hloipu.verify(module_text).entry
    state = tuple(Pair(n, n) for n in range(weights)) if "update" in module_text else ()
    roles = Roles(state, (weights,))
    phases = phases_of(entry, roles) if state else inference_phases(entry, roles)
    stages = whole_stages(entry, phases, marked_stages(entry), 1).places
    known = marked_branches(entry)
    branch_counts(phases, stages, known, 1)
    costs = [cycles.get(x.name.replace(".", "_"), 1.0) for x in entry.instructions]
    found = spots_of(entry, phases, stages, [tuple(range(branches))], known, costs)
    return {entry.instructions[n].name: (spot.level, spot.branch) for n, spot in found.items()}


MARKED = text(
    f"""
    before = f32[9,9] tanh(x)
    a1 = {product("before", "w0", 0)}
    a2 = f32[9,9] tanh(a1)
    b0 = f32[9,9] negate(before)
    b1 = {product("b0", "w1", 1)}
    joined = f32[9,9] add(a2, b1)
    ROOT after = f32[9,9] exponential(joined)
    """
)


def test_branches_go_on_to_what_reads_them_and_joins_stand_a_level_later() -> None:
    assert spots(MARKED) == {
        "before": (0, JOIN), "a1": (1, 0), "a2": (1, 0), "b0": (1, 1), "b1": (1, 1),
        "joined": (2, JOIN), "after": (2, JOIN),
    }  # fmt: skip


FOUND = text(
    f"""
    a1 = {product("x", "w0")}
    a2 = f32[9,9] tanh(a1)
    a3 = f32[9,9] multiply(a1, a2)
    b1 = {product("x", "w1")}
    b2 = f32[9,9] tanh(b1)
    joined = f32[9,9] add(a3, b2)
    ROOT after = f32[9,9] exponential(joined)
    """
)


def test_parts_are_found_that_meet_only_in_the_end() -> None:
    """a3 reads two values of one part, joined one of each."""
    found = spots(FOUND)
    assert found["a1"] == found["a2"] == found["a3"]
    assert found["b1"] == found["b2"]
    assert {found["a1"], found["b1"]} == {(0, 0), (0, 1)}
    assert found["joined"] == found["after"] == (1, JOIN)


def test_parts_are_spread_so_that_the_fullest_branch_has_least() -> None:
    """Costs 5, 4, 3, 2 on two branches: 5 + 2 beside 4 + 3."""
    four = text(
        f"""
        a = {product("x", "w0")}
        b = {product("x", "w1")}
        c = {product("x", "w2")}
        d = {product("x", "w3")}
        ab = f32[9,9] add(a, b)
        cd = f32[9,9] add(c, d)
        ROOT all = f32[9,9] add(ab, cd)
        """,
        weights=4,
    )
    found = spots(four, weights=4, a=5.0, b=4.0, c=3.0, d=2.0)
    assert found["a"][1] == found["d"][1] != found["b"][1] == found["c"][1]


def refused(code: str, module_text: str, weights: int = 2, branches: int = 2) -> str:
    with pytest.raises(StagingError) as caught:
        spots(module_text, weights, branches)
    assert caught.value.code == code
    return str(caught.value)


def test_a_gap_between_branches_is_refused() -> None:
    gap = text(f"a = {product('x', 'w0', 0)}\nROOT b = {product('a', 'w1', 2)}")
    assert "no op of stage 0 is annotated with branch 1" in refused("E0560", gap)


def test_a_branch_that_is_no_number_is_refused() -> None:
    odd = text('ROOT a = f32[9,9] tanh(x), frontend_attributes={ipu_branch="left"}')
    assert "ipu_branch='left'" in refused("E0560", odd)


def test_branches_that_depend_on_each_other_are_refused() -> None:
    chain = text(
        f"""
        a = {product("x", "w0", 0)}
        between = f32[9,9] tanh(a)
        ROOT b = {product("between", "w1", 1)}
        """
    )
    assert "'b' of branch 1 of stage 0 needs 'between' of branch 0" in refused("E0562", chain)


def test_a_join_that_a_branch_needs_again_is_refused() -> None:
    back = text(
        f"""
        a = {product("x", "w0", 0)}
        b = {product("x", "w1", 1)}
        joined = f32[9,9] add(a, b)
        ROOT again = {marked("tanh", "joined", 0)}
        """
    )
    assert "needs 'b' of branch 1" in refused("E0562", back)


TRAINED = """HloModule m
add {{ p = f32[] parameter(0)  q = f32[] parameter(1)  ROOT r = f32[] add(p, q) }}
ENTRY e {{
  w0 = f32[9,9] parameter(0)
  w1 = f32[9,9] parameter(1)
  x = f32[9,9] parameter(2)
  zero = f32[] constant(0)
  a = {a}
  b = {b}
  joined = f32[9,9] add(a, b)
  loss = f32[] reduce(joined, zero), dimensions={{0,1}}, to_apply=add
  one = f32[] constant(1)
  slope = f32[9,9] broadcast(one), dimensions={{}}
  d0 = f32[9,9] dot(x, slope), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}
  d1 = f32[9,9] dot(x, slope), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}
  update0 = f32[9,9] subtract(w0, d0)
  update1 = f32[9,9] subtract(w1, d1)
  ROOT t = (f32[9,9], f32[9,9], f32[]) tuple(update0, update1, loss)
}}
"""


def test_a_weight_of_two_branches_is_refused() -> None:
    shared = TRAINED.format(a=product("x", "w0", 0), b=product("x", "w0", 1))
    assert "branches 0 and 1 of stage 0 share parameter 0" in refused("E0563", shared)


def test_gradients_are_made_where_their_weights_are() -> None:
    found = spots(TRAINED.format(a=product("x", "w0", 0), b=product("x", "w1", 1)))
    assert found["a"][1] == found["d0"][1] == 0
    assert found["b"][1] == found["d1"][1] == 1


def test_parts_that_share_a_weight_are_one() -> None:
    shared = TRAINED.format(a=product("x", "w0"), b=product("w0", "w1"))
    assert "its ops make 1 part that do not depend" in refused("E0564", shared)


def test_a_chain_has_no_parts() -> None:
    chain = text(f"a = {product('x', 'w0')}\nROOT b = {product('a', 'w1')}")
    refused("E0564", chain)


@pytest.mark.parametrize(
    ("asked", "branches", "found"),
    [
        ((), [0, 2, 0], ((0,), (1, 2), (3,))),
        (((0,), (1, 2), (0,)), [0, 2, 0], ((0,), (1, 2), (0,))),
        (((0,), (2, 1), (0,)), [0, 0, 0], ((0,), (2, 1), (0,))),
        (((0,), (1,), (0,)), [0, 2, 0], ((0,), (1,), (0,))),
    ],
)
def test_device_maps_that_fit(
    asked: tuple[tuple[int, ...], ...], branches: list[int], found: tuple[tuple[int, ...], ...]
) -> None:
    assert stage_ipus(asked, branches) == found


@pytest.mark.parametrize(
    ("asked", "branches", "code"),
    [
        (((0,), (1, 2)), [0, 2, 0], "E0507"),
        (((0,), (1, 1)), [0, 2], "E0507"),
        (((0,), ()), [0, 2], "E0507"),
        (((0,), (1, 2)), [0, 3], "E0561"),
        (((0, 1), (2, 3)), [0, 1], "E0561"),
    ],
)
def test_device_maps_that_do_not_fit(
    asked: tuple[tuple[int, ...], ...], branches: list[int], code: str
) -> None:
    with pytest.raises(StagingError) as caught:
        stage_ipus(asked, branches)
    assert caught.value.code == code


def test_device_maps_are_written_as_they_are_read() -> None:
    assert device_map_text([(0,), (1, 2), (3,)]) == "0,[1,2],3"
