"""The samples: read, verified, printed back, the same to XLA, and said to be what they are."""

from pathlib import Path

import pytest

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.verify.verifier import faults_of
from tests.support.xla_oracle import Oracle
from tools.dialect import round_trip

SAMPLES = sorted((Path(__file__).resolve().parents[2] / "hlo_samples").glob("*.hlo"))
MOST_BYTES = 400_000


def test_there_are_samples_and_they_stay_small() -> None:
    assert len(SAMPLES) >= 10
    assert sum(sample.stat().st_size for sample in SAMPLES) < MOST_BYTES


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: s.stem)
def test_a_sample_says_what_it_shows_and_holds_its_constants(sample: Path) -> None:
    text = sample.read_text(encoding="utf-8")
    assert text.startswith("// ")
    assert "{...}" not in text


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: s.stem)
def test_a_sample_survives_the_round_trip(sample: Path) -> None:
    text = sample.read_text(encoding="utf-8")
    module = parse(text)
    assert faults_of(module) == []
    assert list(round_trip.faults(text, module, None)) == []


def test_xla_reads_the_same_samples_back(oracle: Oracle) -> None:
    for sample in SAMPLES:
        text = sample.read_text(encoding="utf-8")
        assert oracle.verify(text).accepted, sample.stem
        assert list(round_trip.faults(text, parse(text), oracle)) == [], sample.stem


def test_a_zoo_dump_survives_the_round_trip(zoo_file: Path) -> None:
    text = zoo_file.read_text(encoding="utf-8")
    module = parse(text)
    assert faults_of(module) == []
    assert list(round_trip.faults(text, module, None)) == []
