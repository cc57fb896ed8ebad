"""The comparison with published measurements: what is in it, not what comes out."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.cases import each
from tools.fidelity import kept_outcomes
from tools.fidelity.__main__ import main
from tools.fidelity.cases import CAPACITY, LARGE, Case, Kind, Row, case_of, judged
from tools.fidelity.document import BLIND_SPOTS, HEAD, document
from tools.fidelity.kept_outcomes import OLDER, Asked, NotKept, Outcome, kept_or_made
from tools.fidelity.measurements import Measurement, read_measurements
from tools.fidelity.predictions import Prediction
from tools.fidelity.runs import capacities
from tools.fidelity.runs_document import HEAD as NETWORKS_HEAD

MEASUREMENTS = read_measurements()
ROOT = Path(__file__).resolve().parents[2]


def _row(unit: str, measured: float, predicted: float, *, held_out: bool = False) -> Row:
    x = Measurement("x", "bow", "", "", measured, unit, "", "", held_out=held_out)
    return Row(x, Case(Kind.JUDGED, of=LARGE), Prediction(predicted, ""))


def test_every_measurement_has_a_source_and_its_own_name() -> None:
    assert all(x.source and x.workload and x.value for x in MEASUREMENTS)
    assert len({x.id for x in MEASUREMENTS}) == len(MEASUREMENTS)


@each("x", MEASUREMENTS)
def test_every_measurement_has_a_case(x: Measurement) -> None:
    case = case_of(x)
    assert (case.predict is not None) == (case.kind in (Kind.JUDGED, Kind.BESIDE))
    assert (case.of is not None) == (case.kind is Kind.JUDGED)
    assert case.why or case.kind is Kind.JUDGED
    assert case.why != "nothing here computes it"


def test_ratios_are_of_times() -> None:
    """A higher rate is a shorter time."""
    assert _row("cycles", 100, 80).ratio == 0.8
    assert _row("TFLOP/s", 100, 80).ratio == 1.25


def test_classes() -> None:
    rows = [_row("s", 1, 0.95), _row("s", 1, 1 / 0.95), _row("s", 1, 3, held_out=True)]
    (found,) = judged(rows)
    assert found.count == 2
    assert found.outside == 0
    assert found.holds
    assert found.mean_ratio == pytest.approx(1)
    (found,) = judged([*rows, _row("s", 1, 1.11)])
    assert found.outside == 1
    assert not found.holds
    assert found.worst.ratio == 1.11


def test_networks_are_judged_by_the_fullest_tile() -> None:
    """Less than a tile is within the bound, however little; the fullest is the worst."""

    def row(share: float) -> Row:
        x = Measurement("x", "bow", "", "", 1.0, "tile", "", "", run="x")
        return Row(x, case_of(x), Prediction(share, ""))

    (found,) = judged([row(0.01), row(1.0)])
    assert found.of is CAPACITY
    assert found.holds
    (found,) = judged([row(0.01), row(4.0)])
    assert found.outside == 1
    assert found.worst.ratio == 4
    assert not found.holds


def test_document_is_in_the_repository() -> None:
    """Numbers change with the model; what they are, and whose they are, does not."""
    text = (ROOT / "docs" / "fidelity.md").read_text(encoding="utf-8")
    assert text.startswith(HEAD)
    assert BLIND_SPOTS in text
    for x in MEASUREMENTS:
        # Whole networks that take long stand on the other page.
        assert f"| {x.id} |" in text or x.run
    networks = (ROOT / "docs" / "fidelity-models.md").read_text(encoding="utf-8")
    assert networks.startswith(NETWORKS_HEAD)
    for x in [*MEASUREMENTS, *capacities()]:
        if x.run:
            assert f"| {x.run if x.unit == 'tile' else x.id} |" in networks
    empty = document([], [])
    assert [x for x in empty.splitlines() if x.startswith("#")] == [
        x for x in text.splitlines() if x.startswith("#")
    ]


def test_outcomes_are_kept_by_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted run goes on where it was; another commit's rows count only if asked for."""
    path, asked = tmp_path / "kept.jsonl", Asked("x", "bow", 1, 1)
    made = Outcome(True, 1, 2, {"gaps": 1}, 0.5, "told")
    calls: list[int] = []

    def make() -> Outcome:
        calls.append(1)
        return made

    monkeypatch.setattr(kept_outcomes, "commit_now", lambda: "aaa")
    assert kept_or_made(asked, make, path) == replace(made, commit="aaa")
    path.write_text(path.read_text(encoding="utf-8") + '{"run": "x', encoding="utf-8")
    assert kept_or_made(asked, make, path).commit == "aaa"
    assert len(calls) == 1
    monkeypatch.setattr(kept_outcomes, "commit_now", lambda: "bbb")
    monkeypatch.setenv(OLDER, "only")
    assert kept_or_made(asked, make, path).commit == "aaa"
    with pytest.raises(NotKept):
        kept_or_made(replace(asked, run="y"), make, path)
    monkeypatch.delenv(OLDER)
    assert kept_or_made(asked, make, path).commit == "bbb"
    assert len(calls) == 2


def test_one_class(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    assert main(["--class", "barrier", "--json", str(out)]) == 0
    content = json.loads(out.read_text(encoding="utf-8"))
    assert [x["name"] for x in content["classes"]] == ["barrier"]
    assert {row["id"] for row in content["rows"]} == {
        "gc2-blur-phase-sync-half4-16ipu",
        "gc2-blur-phase-sync-float2-16ipu",
    }
    assert all(row["predicted"] == 600 for row in content["rows"])
    assert "barrier: 2" in capsys.readouterr().out
