"""Reports opened again: their tables are the profile's, and what is no report is refused."""

import json
from pathlib import Path

import numpy as np
import pytest

import hloipu
from hloipu_runtime.errors import ArtefactError, UsageError

SAMPLE = Path(__file__).parents[3] / "hlo_samples" / "mnist_train_step.hlo"


@pytest.fixture(scope="module")
def program() -> hloipu.CompiledProgram:
    return hloipu.compile(SAMPLE, target="gc200", cache=False, ipus=2, stages=2, micro_batches=4)


def test_tables_are_those_of_the_profile(program: hloipu.CompiledProgram, tmp_path: Path) -> None:
    hloipu.write_report(program, tmp_path / "r.html")
    (tmp_path / "p.json").write_text(json.dumps(program.profile().record()))
    page, profile = (hloipu.open_report(tmp_path / name) for name in ("r.html", "p.json"))
    total = program.profile().lower_bound_cycles
    for report in (page, profile, hloipu.report_of(program)):
        assert report.steps.cycles.sum() == total == report.instructions["cycles"].sum()
        assert len(report.steps) == len(program.profile().steps)
    assert profile.tiles is None
    assert page.tiles is not None
    assert page.tensors is not None
    parts = [name for name in page.tiles if name not in ("ipu", "tile", "needed")]
    np.testing.assert_array_equal(
        np.sum([page.tiles[name] for name in parts], axis=0), page.tiles.needed
    )
    assert len(page.tiles) == 2 * 1472
    assert page.tiles.needed.max() == program.memory.peak.total_bytes
    assert "steps" in repr(page)
    with pytest.raises(AttributeError, match="no column 'cycle'"):
        _ = page.steps.cycle


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"schema": "hloipu.profile"}', '{"schema": "hloipu.profile", "version": 99}',
     '<script id="data">AAAA</script>', '<script id="data">H4sIAAAAAAAA</script>', "[" * 100_000],
)  # fmt: skip
def test_what_is_no_report_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "r.html"
    path.write_text(text)
    with pytest.raises(ArtefactError, match="E4013"):
        hloipu.open_report(path)


def test_a_file_that_is_not_there_is_told() -> None:
    with pytest.raises(UsageError, match="E3001"):
        hloipu.open_report("nowhere.html")


def test_figures_have_what_they_show(program: hloipu.CompiledProgram) -> None:
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    plot = hloipu.report_of(program).plot
    assert plot.memory().dataLim.ymax == pytest.approx(program.memory.peak.total_bytes)
    bars = plot.pipeline().patches
    row = program.profile().pipelines[0]
    assert len(bars) == row.micro_batches * len(row.positions)
    for axes in (plot.liveness(), plot.roofline()):
        axes.figure.canvas.draw()
    with pytest.raises(UsageError, match="E3221"):
        plot.pipeline(3)
