"""The numbers of real machines against totals that their makers and users published."""

from pathlib import Path

import pytest

from hloipu_runtime.machine.load import MACHINE_NAMES, load_machine
from hloipu_runtime.machine.schema import SCHEMA

REAL = ("gc2", "gc200", "bow")
PAGE = Path(__file__).parents[3] / "docs" / "machine-model.md"


@pytest.mark.parametrize(
    ("name", "f16_teraflops", "f32_teraflops", "exchange_terabytes", "sram_mebibytes"),
    [
        ("gc2", 124.5, 31.1, 7.78, 304),
        ("gc200", 250, 62.6, 7.83, 897),
        ("bow", 348.6, 87.1, 10.9, 897),
    ],
)
def test_peaks_are_the_published_ones(
    name: str,
    f16_teraflops: float,
    f32_teraflops: float,
    exchange_terabytes: float,
    sram_mebibytes: int,
) -> None:
    machine = load_machine(name)
    tile_hertz = machine.chip.tiles_per_ipu * machine.chip.clock_hz
    amp = machine.amp
    # Worker slots and tile cycles agree: six workers take six positions in six times the slots.
    f16 = 2 * amp.f16_to_f32_conv_units * amp.f16_channels_per_group / amp.f16_position_slots
    f32 = 2 * amp.f32_conv_units * amp.f32_channels_per_group / amp.f32_position_slots
    assert tile_hertz * f16 / 1e12 == pytest.approx(f16_teraflops, rel=0.003)
    assert tile_hertz * f32 / 1e12 == pytest.approx(f32_teraflops, rel=0.003)
    sent = tile_hertz * machine.exchange.send_bytes_per_cycle
    assert sent / 1e12 == pytest.approx(exchange_terabytes, rel=0.003)
    memory = machine.chip.tiles_per_ipu * machine.memory.bytes_per_tile
    assert round(memory / 2**20) == sram_mebibytes


@pytest.mark.parametrize("name", ["gc200", "bow"])
def test_the_two_regions_of_a_mk2_tile(name: str) -> None:
    machine = load_machine(name)
    assert machine.memory.executable_bytes == 208 * 1024
    assert machine.interleaved_bytes == 416 * 1024


def test_link_rates_of_a_gc200() -> None:
    links = load_machine("gc200").links
    every = links.rung_links + links.crossing_links + 2 * links.rail_links
    assert 2 * every * links.link_bytes_per_second == 320e9


def test_link_rates_of_a_c2_card() -> None:
    links = load_machine("gc2").links
    inside = links.rung_links + links.crossing_links
    assert 2 * inside * links.link_bytes_per_second == 192e9
    assert 2 * 2 * links.rail_links * links.link_bytes_per_second == 128e9


@pytest.mark.parametrize("name", ["tiny", "unit"])
def test_machines_for_tests_are_assumed_throughout(name: str) -> None:
    assert load_machine(name).assumed == set(SCHEMA)


@pytest.mark.parametrize("name", REAL)
def test_real_machines_cite_public_sources(name: str) -> None:
    for number in load_machine(name).numbers():
        assert number.assumed == number.source.startswith("assumed")
        assert number.assumed or len(number.source) > 10, number.key
        if number.assumed:
            assert number.source.startswith("assumed: "), number.key


def test_every_cost_of_unit_is_one() -> None:
    costs = ("cycles", "slots", "bytes/cycle", "cycles/fragment", "cycles/packet", "ns")
    machine = load_machine("unit")
    assert all(n.value == 1 for n in machine.numbers() if n.unit in costs)
    rates = [n for n in machine.numbers() if n.unit == "bytes/s"]
    assert rates
    assert all(n.value == machine.chip.clock_hz for n in rates)


def expected_table() -> str:
    machines = [load_machine(name) for name in MACHINE_NAMES]
    lines = [
        "| key | unit | " + " | ".join(MACHINE_NAMES) + " |",
        "|---|---|" + "--:|" * len(machines),
    ]
    for key, quantity in SCHEMA.items():
        cells = [
            f"{m.value_of(key):,}" + ("" if key not in m.assumed or m.name not in REAL else " *")
            for m in machines
        ]
        lines.append(f"| {key} | {quantity.unit} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def test_the_page_shows_the_numbers() -> None:
    assert expected_table() in PAGE.read_text(encoding="utf-8")
