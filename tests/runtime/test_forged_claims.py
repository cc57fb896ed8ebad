"""Forged files with valid digests: what they claim is refused in bounded time and memory."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hloipu
from hloipu_runtime.errors import ArtefactError, LimitError, UsageError
from hloipu_runtime.program_io.frame.frame import (
    Frame,
    Header,
    decode,
    read_frame,
    table_of,
    write_frame,
)
from hloipu_runtime.session.checkpoint import Checkpoint
from hloipu_runtime.session.host_parts import load_checkpoint

STEP = """HloModule step

ENTRY e {
  w = f32[4] parameter(0)
  x = f32[4] parameter(1)
  n = f32[4] add(w, x)
  ROOT r = (f32[4], f32[4]) tuple(n, x)
}
"""
W = np.zeros(4, np.float32)
BAD_TEXTS = ("\ud800", "a\udc80", "\x1b[2J", "a\nfits: all", "\x00", "\x9b", "\u202e", "\x7f")


def saved(folder: Path) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    """Save a program that keeps state; return its file, data and arrays."""
    path = folder / "p.ipux"
    hloipu.compile(STEP, loop=2, feed={"x": 1}, target="tiny").save(path)
    frame = read_frame(path)
    return path, copy.deepcopy(frame.meta), dict(frame.arrays)


def places(data: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the way to every text in JSON data."""
    if isinstance(data, str):
        return [way]
    items: Any = data.items() if isinstance(data, dict) else ()
    if isinstance(data, list):
        items = enumerate(data)
    return [place for key, item in items for place in places(item, (*way, key))]


def with_text(data: Any, way: tuple[Any, ...], text: str) -> Any:
    found = copy.deepcopy(data)
    inner = found
    for key in way[:-1]:
        inner = inner[key]
    inner[way[-1]] = text
    return found


@pytest.mark.parametrize("first", range(len(BAD_TEXTS)))
@pytest.mark.thinned(8)
def test_no_text_of_a_program_drives_a_terminal(first: int, tmp_path: Path) -> None:
    """Each place is given one of the texts, and in all cases together each of them."""
    path, meta, arrays = saved(tmp_path)
    ways = [way for way in places(meta) if way[0] in ("program", "sources", "memory")]
    assert len(ways) > 20
    for number, way in enumerate(ways, first):
        forged = with_text(meta, way, BAD_TEXTS[number % len(BAD_TEXTS)])
        write_frame(path, Frame("executable", forged, arrays))
        with pytest.raises(ArtefactError):
            hloipu.load(path)


@pytest.mark.parametrize("replicas", [513, 4096, 65_536])
def test_claimed_replicas_are_not_made(replicas: int, tmp_path: Path) -> None:
    path, meta, arrays = saved(tmp_path)
    meta["program"]["replicas"] = replicas
    write_frame(path, Frame("executable", meta, arrays))
    program = hloipu.load(path)
    with pytest.raises(LimitError, match="E5012"):
        program.session(state={0: W}, infeeds={"x": [W]})


def test_what_participants_hold_is_compared_with_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, meta, arrays = saved(tmp_path)
    meta["program"]["replicas"] = 512
    write_frame(path, Frame("executable", meta, arrays))
    monkeypatch.setattr("os.sysconf", lambda name: 100)
    with pytest.raises(LimitError, match="E5030"):
        hloipu.load(path).session(state={0: W}, infeeds={"x": [W]})


@pytest.mark.parametrize("shape", [(0, 2**62, 2**62), (2**40, 0, 2**40), (0,) * 31 + (2**62,)])
def test_shapes_that_numpy_cannot_have_are_refused(shape: tuple[int, ...]) -> None:
    row = table_of({"a": np.zeros((0, 1, 1), np.float32)})[0]._replace(shape=shape)
    array = {"name": row.name, "type": "f32", "shape": list(shape), "offset": 0, "length": 0}
    record = {"schema": "hloipu.frame/1", "kind": "k", "meta": {}, "arrays": [array]}
    text = json.dumps(record, sort_keys=True, separators=(",", ":")).encode()
    if np.prod([size or 1 for size in shape], dtype=object) * 4 < 2**63:
        assert isinstance(decode(text, ""), Header)
        np.empty(shape, np.float32)
    else:
        with pytest.raises(ArtefactError, match="E4006"):
            decode(text, "")


def checkpoint(path: Path, **positions: int) -> Path:
    """Write a checkpoint of the program's state with some positions of feeds."""
    Checkpoint("step", 2, 100, positions, {"w": W}).save(path)
    return path


@pytest.mark.parametrize("positions", [{}, {"y": 2}, {"x": 2, "y": 2}])
def test_positions_are_those_of_the_feeds(positions: dict[str, int], tmp_path: Path) -> None:
    program = hloipu.compile(STEP, loop=2, feed={"x": 1}, target="tiny")
    with program.session(state={0: W}, infeeds={"x": [W] * 4}) as session:
        (name,) = session.state()
        path = tmp_path / "c"
        session.save_state(path)
        found = load_checkpoint(path)
        session.load_state(path)
        Checkpoint(found.program, 2, 100, positions, {name: W}).save(path)
        with pytest.raises(UsageError, match=r"E3157.*feed"):
            session.load_state(path)


@pytest.mark.parametrize("text", BAD_TEXTS)
def test_no_text_of_a_checkpoint_drives_a_terminal(text: str, tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "c", x=2)
    frame = read_frame(path)
    for way in [*places(frame.meta), ("positions",)]:
        meta = with_text(frame.meta, way, text)
        if way == ("positions",):
            meta["positions"] = {text: 2}
        write_frame(path, Frame("checkpoint", meta, dict(frame.arrays)))
        with pytest.raises(ArtefactError):
            load_checkpoint(path)
