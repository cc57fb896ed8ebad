"""How transfers are carried out, by hand on machines with round numbers."""

from hloipu_runtime.costs.exchange_form import (
    ExchangeForm,
    exchange_form,
    exchange_forms,
    more_rounds,
)
from hloipu_runtime.costs.forms import Forms
from hloipu_runtime.costs.pieces import Sent
from hloipu_runtime.costs.step_costs import step_charges
from hloipu_runtime.costs.traffic import TileRange, TransferTraffic
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.program.program import Program
from tests.support.program_builder import ProgramBuilder, blocks

TINY = load_machine("tiny")
UNIT = load_machine("unit")
TILES = TileRange(0, 3, 4)


def traffic(
    received: int, fragments: int, messages: int, sent: int, message_bytes: int = 0
) -> TransferTraffic:
    return TransferTraffic(
        received_bytes=received,
        fragments=fragments,
        messages=messages,
        message_bytes=message_bytes or received,
        sent_bytes=sent,
        is_paired=False,
        copied_bytes=0,
        copied_runs=0,
        total_bytes=4 * received,
        receivers=TILES,
        senders=TILES,
    )


def rearranges(form: ExchangeForm) -> tuple[bool, bool]:
    return form.sending.buffer_bytes > 0, form.receiving.buffer_bytes > 0


def test_a_form_is_chosen_by_the_price_of_memory() -> None:
    """Cycles and bytes of each form, summed by hand.

    Always 30 to begin. Directly: 100 of data and 2 for each of 100 pieces; 32 bytes of code for
    100 + 50 pieces.
    The sender rearranges 50 runs of 8 bytes in 100 + 200, the receiver 100 of 4 in 100 + 1,200.
    Either takes 40 bytes of state: 8, two edges of 4, four loops of 6.
    """
    found, sent = traffic(400, 100, 4, 400), Sent(50, 5)
    sums = {
        (False, False): (330, 4_800),
        (True, False): (630, 105 * 32 + 40),
        (False, True): (130 + 8 + 1_300, 54 * 32 + 40),
        (True, True): (130 + 8 + 300 + 1_300, 9 * 32 + 80),
    }
    chosen = set()
    for price in (0, 128, 256, 512, 65_536):
        form = exchange_form(exchange_forms(TINY, found, sent), price)
        chosen.add(rearranges(form))
        expected = min(1000 * cycles + price * size for cycles, size in sums.values())
        cycles, size = sums[rearranges(form)]
        assert 1000 * cycles + price * size == expected
        assert (form.cycles, form.kept_bytes) == (cycles, size)
    assert chosen == {(False, False), (True, False), (True, True)}


def test_without_a_price_pieces_go_as_they_lie() -> None:
    form = exchange_form(exchange_forms(TINY, traffic(400, 100, 4, 400), Sent(50, 5)), 0)
    assert (form.receiving.pieces, form.sending.pieces, form.rounds) == (100, 50, 1)
    assert form.receiving.rearranging.cycles == form.sending.rearranging.cycles == 0


def test_what_is_in_one_piece_is_never_rearranged() -> None:
    form = exchange_form(exchange_forms(TINY, traffic(400, 4, 4, 400), Sent(5, 5)), 65_536)
    assert rearranges(form) == (False, False)


def test_messages_at_both_ends_leave_no_gaps() -> None:
    """Two hundred half words, each sent as a word of its own unless they are put together."""
    form = exchange_form(
        exchange_forms(TINY, traffic(800, 200, 2, 800, message_bytes=400), Sent(200, 2)), 65_536
    )
    assert rearranges(form) == (True, True)
    assert (form.receiving.size_bytes, form.receiving.buffer_bytes) == (400, 400)


def test_what_nothing_is_taken_of_goes_in_one_round() -> None:
    """Such as a transfer that a pad cuts off on both sides."""
    forms = exchange_forms(TINY, traffic(0, 1, 0, 40), Sent(19, 19))
    assert [form.rounds for form in forms] == [1, 1]


def test_large_messages_go_in_rounds() -> None:
    """A tile of 65,536 bytes gives 2,048 to messages: 10,000 bytes take five rounds."""
    form = exchange_form(exchange_forms(TINY, traffic(10_000, 1_250, 5, 1_000), Sent(1, 1)), 65_536)
    assert rearranges(form) == (False, True)
    way = form.receiving
    assert (form.rounds, way.buffer_bytes, way.pieces) == (5, 2_000, 5 + 4)
    # Runs of 8 bytes: 100 to call, half a cycle for each byte.
    assert way.rearranging.cycles == 5 * (100 + 1_000)
    starting, syncs = more_rounds(TINY, 5)
    assert (starting.cycles, syncs.cycles) == (4 * (10 + 20), 4 * 100)


def test_everything_costs_one() -> None:
    """On `unit`: 8 bytes in 4 pieces; a call and 8 cycles to rearrange, or a cycle a piece."""
    found, sent = traffic(8, 4, 1, 8), Sent(1, 1)
    assert rearranges(exchange_form(exchange_forms(UNIT, found, sent), 0)) == (False, False)
    # Code of 4 + 8 instructions against 1 + 8, and a state of 1 + 2 * 2 + 4 * 3.
    assert exchange_form(exchange_forms(UNIT, found, sent), 65_536).receiving.kept_bytes == 12


def to_columns() -> Program:
    make = ProgramBuilder()
    in_rows = make.stream_in(make.variable((64, 64), blocks((64, 64), (4, 1))))
    make.copy(in_rows, make.variable((64, 64), blocks((64, 64), (1, 4))))
    return make.program()


def test_code_is_free_as_long_as_there_is_room() -> None:
    """Code of 64 + 3 pieces, 2,144 bytes, and 36 bytes for the step."""
    assert Forms(to_columns(), TINY).price == 0
    assert Forms(to_columns(), load_machine("tiny", {"executable_bytes": "2180"})).price == 0
    assert Forms(to_columns(), load_machine("tiny", {"executable_bytes": "2176"})).price > 0


def test_rearranging_is_computing() -> None:
    """A tile has 48 runs of 64 bytes to send in two rounds: each a call of 100 and 768 cycles."""
    tight = load_machine("tiny", {"executable_bytes": "2048"})
    direct, packed = (
        next(x.spent for x in step_charges(to_columns(), machine).steps if x.kind == "exchange")
        for machine in (TINY, tight)
    )
    assert packed.exchange.cycles - direct.exchange.cycles == 10 + 20
    assert packed.compute.cycles - direct.compute.cycles == 2 * (100 + 768)
