"""What planners predict for an op against what the steps of its program cost.

Work on tiles is predicted by the cycle, exchanges and syncs nearly, as both follow one formula.
"""

import pytest

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.lowering.core.lowering import lower
from hloipu_compiler.plan.plan import Plan
from hloipu_compiler.planners.planned import PlannedOp, Record
from hloipu_runtime.costs.exchange_price import arriving, exchange_price
from hloipu_runtime.costs.step_costs import step_charges
from hloipu_runtime.machine.load import load_machine
from tests.support.texts_rows import Row, rows

LOOKUP = (
    "offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, "
    "slice_sizes={1,"
)
UPDATE = (
    "update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, "
    "index_vector_dim=1, to_apply=add_f32"
)
IMAGES = "dim_labels=b01f_01io->b01f"
ROWS = rows(
    f"""
f32[50] reduce(f32[37,50], f32[]), dimensions={{0}}, to_apply=add_f32
f32[37] reduce(f32[37,50], f32[]), dimensions={{1}}, to_apply=maximum_f32
f32[] reduce(f32[37,50], f32[]), dimensions={{0,1}}, to_apply=add_f32
f32[] reduce(f32[64,500], f32[]), dimensions={{0,1}}, to_apply=add_f32
f32[6] reduce(f32[30,6,40], f32[]), dimensions={{0,2}}, to_apply=add_f32
(f32[60], s32[60]) reduce(f32[60,30], s32[60,30], f32[], s32[]), dimensions={{1}}, \
to_apply=pair_f32_s32
f32[2,9,9,16] convolution(f32[2,9,9,8], f32[3,3,8,16]), window={{size=3x3 pad=1_1x1_1}}, {IMAGES}
f16[2,5,5,32] convolution(f16[2,10,10,16], f16[3,3,16,32]), \
window={{size=3x3 stride=2x2 pad=1_1x1_1}}, {IMAGES}
f32[1,12,12,8] convolution(f32[1,12,12,8], f32[3,3,1,8]), window={{size=3x3 pad=1_1x1_1}}, \
{IMAGES}, feature_group_count=8
f32[1,6,6,8] convolution(f32[1,6,6,200], f32[1,1,200,8]), window={{size=1x1}}, {IMAGES}
f32[70,50] scatter(f32[70,50], s32[9,1], f32[9,50]), {UPDATE}
f32[3000,4] scatter(f32[3000,4], s32[90,1], f32[90,4]), {UPDATE}
f32[4,50] dynamic-slice(f32[70,50], s32[], s32[]), dynamic_slice_sizes={{4,50}}
f32[70,50] dynamic-update-slice(f32[70,50], f32[4,50], s32[], s32[])
(f32[7,5], s32[7,5]) topk(f32[7,500]), k=5, largest=true
(f32[2,5], s32[2,5]) topk(f32[2,9000]), k=5, largest=true
f32[50,70] transpose(f32[70,50]), dimensions={{1,0}}
f16[8,50,64] transpose(f16[8,64,50]), dimensions={{0,2,1}}
""".strip().replace("\\\n", "")
)
EXCHANGING_ROWS = rows(
    f"""
f16[4,6,6,32] convolution(f16[4,8,8,16], f16[3,3,16,32]), window={{size=3x3}}, {IMAGES}
f32[1,12,12,16] convolution(f32[1,12,12,8], f32[3,3,8,16]), window={{size=3x3 pad=1_1x1_1}}, \
{IMAGES}
f16[4,28,28,128] convolution(f16[4,28,28,64], f16[1,1,64,128]), window={{size=1x1}}, {IMAGES}
f32[9,50] gather(f32[70,50], s32[9,1]), {LOOKUP}50}}
f32[900,5] gather(f32[7000,5], s32[900,1]), {LOOKUP}5}}
""".strip().replace("\\\n", "")
)
ROWS_WITHOUT_EQUALITY = rows(
    f"""
f32[37,21] dot(f32[37,50], f32[50,21]), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
f16[64,48] dot(f16[64,300], f16[300,48]), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
f32[4,6] dot(f32[4,3000], f32[3000,6]), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
f32[9,50] gather(f32[70,50], s32[9,1]), {LOOKUP}50}}
f32[900,5] gather(f32[7000,5], s32[900,1]), {LOOKUP}5}}
""".strip()
)


def planned(row: Row, target: str) -> tuple[list[PlannedOp], dict[str, int]]:
    """Return what planners recorded, and the cycles of the program by kind of step."""
    machine = load_machine(target)
    records: list[Record] = []
    program = lower(parse(row.text()), Plan(), machine, plans=records)
    cycles = {"compute": 0, "exchange": 0, "sync": 0}
    for step in step_charges(program, machine).steps:
        if step.kind in cycles:
            cycles[step.kind] += step.spent.total.cycles
        elif step.kind.startswith("stream"):
            cycles["sync"] -= machine.sync.sync_cycles  # the host's own
    return [x for x in records if isinstance(x, PlannedOp)], cycles


@pytest.mark.parametrize("target", ["tiny", "gc200"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.opcode} {row.shape}")
def test_work_is_predicted_by_the_cycle(row: Row, target: str) -> None:
    (op,), cycles = planned(row, target)
    assert op.chosen.cycles.compute == cycles["compute"]


@pytest.mark.parametrize("target", ["tiny", "gc200"])
@pytest.mark.parametrize(
    "row",
    [*(x for x in ROWS if x.opcode != "topk"), *EXCHANGING_ROWS],
    ids=lambda row: f"{row.opcode} {row.shape}",
)
def test_exchanges_cost_what_was_predicted(row: Row, target: str) -> None:
    """Within 15 %, and two exchanges of a word.

    Those bring scalars that the plan takes for constants, or put a result where users want it.
    """
    (op,), cycles = planned(row, target)
    predicted = op.chosen.cycles.exchange + op.chosen.cycles.sync
    machine = load_machine(target)
    word = exchange_price(machine, [arriving(machine, 4)]).cycles
    spent = cycles["exchange"] + cycles["sync"]
    assert abs(predicted - spent) <= 0.15 * spent + 2 * word


@pytest.mark.parametrize("target", ["tiny", "gc200"])
@pytest.mark.parametrize(
    "row", [*ROWS, *ROWS_WITHOUT_EQUALITY], ids=lambda row: f"{row.opcode} {row.shape}"
)
def test_no_alternative_that_fits_was_cheaper(row: Row, target: str) -> None:
    (op,), cycles = planned(row, target)
    fitting = [x.choice.cycles.total for x in op.alternatives if x.lost == "slower"]
    assert op.chosen.cycles.total <= min(fitting, default=op.chosen.cycles.total)
    chosen = op.chosen.bytes_per_tile
    assert 0 < chosen <= load_machine(target).memory.bytes_per_tile
    # Scalars that many tiles want, and results put together elsewhere, come on top.
    beside = 1000 + op.chosen.cycles.total // 5
    assert cycles["compute"] + cycles["exchange"] <= op.chosen.cycles.total + beside
