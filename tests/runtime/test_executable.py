"""Executables and their files: what is written is read, and a lie in the file is found."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hloipu_runtime.errors import ArtefactError, HloipuError
from hloipu_runtime.executable import KIND, Executable, from_frame, load, to_frame
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.program.faults import ProgramError
from hloipu_runtime.program_io.frame.frame import parse_frame
from tests.support.forging import executables, file_bytes, forged
from tests.support.program_texts import TEXTS
from tests.support.same_programs import assert_same


@pytest.mark.parametrize("name", TEXTS)
def test_a_file_holds_all_of_an_executable(name: str, tmp_path: Path) -> None:
    given = replace(
        executables()[name],
        code_memory=False,
        over_memory="allow",
        options={"target": "tiny", "passes": None},
        memory={"schema": "hloipu.memory", "peak": 12},
    )
    given = replace(given, addresses=np.arange(len(given.program.variables)) - 1)
    given.save(tmp_path / "m.ipux")

    found = load(tmp_path / "m.ipux")

    assert_same(found.program, given.program)
    assert found.machine == given.machine
    for field in ("code_memory", "over_memory", "options", "sources", "fingerprint", "memory"):
        assert getattr(found, field) == getattr(given, field)
    assert found.addresses is not None
    assert given.addresses is not None
    assert found.addresses.tolist() == given.addresses.tolist()
    found.save(tmp_path / "again.ipux")
    assert (tmp_path / "again.ipux").read_bytes() == (tmp_path / "m.ipux").read_bytes()


def test_a_file_brings_its_machine_along(tmp_path: Path) -> None:
    machine = load_machine("tiny", {"clock_hz": "7", "sync_cycles": "1"})
    own = tmp_path / "tiny.toml"
    own.write_text("")
    Executable(executables()["double"].program, machine).save(tmp_path / "m.ipux")
    found = load(tmp_path / "m.ipux").machine
    assert found == machine
    assert found.source_of("clock_hz") == "assumed: set to 7 by the user"


def put(*path: Any, to: Any) -> Any:
    """Return a change that puts a value at a place of the data."""

    def change(meta: dict[str, Any], arrays: dict[str, Any]) -> None:
        place: Any = meta
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = to

    return change


def put_array(name: str, to: Any) -> Any:
    def change(meta: dict[str, Any], arrays: dict[str, Any]) -> None:
        arrays[name] = to

    return change


def function(name: str, steps: list[Any]) -> list[Any]:
    return [name, [steps]]


DOUBLING = [
    function(f"f{n}", [["Call", f"f{n + 1}", [], []]] * 2) for n in range(60)
]  # fmt: skip
CALL_OF_NEXT = ["Call", "next", [], []]
CHAIN = [function(f"f{n}", [["Call", f"f{n + 1}", [], []]]) for n in range(3000)]
WIDE = [[2**11, 2**11], [1, 2**11], 0]

LIES = {
    "schema": ("double", put("schema", to="hloipu.executable/2"), "E4012", "schema"),
    "extra key": ("double", put("more", to=1), "E4012", "schema"),
    "no machine": ("double", put("machine", "name", to=None), "E4012", "machine has no name"),
    "no tiles": ("double", put("machine", "chip", "tiles_per_ipu", "value", to=0),
                 "E4012", "machine cannot be"),
    "other machine": ("double", put("machine", "name", to="bow"), "E4012", "another machine"),
    "sources": ("double", put("sources", "sum", to=7), "E4012", "source is not text"),
    "over memory": ("double", put("over_memory", to="yes"), "E4012", "counts as memory"),
    "fingerprint": ("double", put("fingerprint", to=None), "E4012", "fingerprint"),
    "addresses": ("double", put_array("addresses", np.array([0])), "E4012", "one address"),
    "an address": ("double", put_array("addresses", np.array([0, -2])), "E4012", "no tile has"),
    "an array": ("double", put_array("constant.9", np.array([0])), "E4012", "nothing uses"),
    "keys": ("double", put("program", "values", to=None), "E4010", "values: expected is a list"),
    "ipus": ("double", put("program", "ipus", to=0), "E4011", "0 IPUs"),
    "many ipus": ("double", put("program", "ipus", to=65536), "E4012", "no system of 65536 IPUs"),
    "type": ("double", put("program", "variables", 0, 1, to="f33"), "E4011", "element type 'f33'"),
    "token": ("double", put("program", "values", 0, 0, to="token"), "E4011", "element type"),
    "size": ("double", put("program", "values", 0, 1, 0, to=2**44 + 1), "E4011", "elements"),
    "rank": ("double", put("program", "variables", 0, 2, to=[2, 2]), "E4011", "another rank"),
    "grid": ("double", put("program", "pools", "tiles", 0, to=WIDE), "E4011", "more than"),
    "axis": ("double", put("program", "pools", "spans", 0, 0, 0, to=1), "E4011", "grid axis 1"),
    "part": ("double", put("program", "pools", "spans", 0, 0, 3, to=2**50), "E4011", "a part of"),
    "variable": ("double", put("program", "body", 0, 1, 2, to=2), "E4011", "no variable 2"),
    "value": ("double", put("program", "body", 0, 1, 3, to=-1), "E4011", "no value %-1"),
    "stream": ("double", put("program", "body", 0, 1, 1, to="x"), "E4011", "no stream 'x'"),
    "no result": ("double", put("program", "body", 0, 4, to=["Sync", 1]), "E4011", "every path"),
    "alias": ("double", put("program", "results", 0, 3, to=1), "E4011", "no parameter 1"),
    "two streams": ("control", put("program", "parameters", 1, 0, to="parameter.0"), "E4011",
                    "one stream"),
    "many dimensions": ("double", put("program", "pools", "codelets", 0, 3, to=2**40), "E4011",
                        "rank is 1099511627776"),
    "labels": ("double", put("program", "pools", "codelets", 0, 2, to=[]), "E4011",
               "tensors for 0"),
    "op": ("double", put("program", "pools", "expressions", 0, 1, 0, 0, to="eval"), "E4011",
           "cannot be"),
    "op type": ("double", put("program", "pools", "expressions", 0, 1, 0, 2, to="pred"), "E4011",
                "cannot be"),
    "reads": ("double", put("program", "body", 0, 2, 1, 0, 4, to=[]), "E4011", "one value for"),
    "constant": ("move", put_array("constant.0", np.zeros(3)), "E4011", "is not what it holds"),
    "off grid": ("move", put_array("constant.0", np.full(3, 0.1, np.float32)), "E4011",
                 "no bf16"),
    "constant role": ("move", put("program", "variables", 0, 4, to="state"), "E4011", "role"),
    "predicate": ("control", put("program", "body", 0, 6, 1, to=0), "E4011", "cannot choose"),
    "turns": ("control", put("program", "body", 0, 4, 1, to=-1), "E4011", "-1 iterations"),
    "branches": ("control", put("program", "body", 0, 6, 5, 0, 1, to=[9]), "E4011", "each branch"),
    "sync": ("control", put("program", "body", 0, 8, 1, to=3), "E4011", "a sync of 3 IPUs"),
    "recursion": ("control", put("program", "functions", 0, 1, to=[[CALL_OF_NEXT]]), "E4011",
                  "which cannot be"),
    "no function": ("control", put("program", "functions", to=[]), "E4011", "which cannot be"),
    "two names": ("control", put("program", "functions", to=[function("f", [])] * 2), "E4010",
                  "different names"),
    "doubling": ("double", put("program", "functions", to=[*DOUBLING, function("f60", [])]),
                 "E4011", "too many"),
    "chain": ("double", put("program", "functions", to=[*CHAIN, function("f3000", [])]),
              "E4011", "within each other"),
    "other value": ("double", put("program", "body", 0, 4, 3, to=0), "E4050", "reads value %0"),
    "other tile": ("double", put("program", "pools", "tiles", 0, 2, to=3), "E4050",
                   "tiles 3 to 4 of 4"),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_found(lie: str) -> None:
    name, change, code, message = LIES[lie]
    with pytest.raises(HloipuError, match=message) as caught:
        from_frame(forged(executables()[name], change), name="m.ipux")
    assert (caught.value.code, caught.value.exit_code) == (code, 9)


@pytest.mark.parametrize("name", ["m.ipux", ""])
def test_a_program_of_a_file_that_is_not_proved_is_the_files_fault(name: str) -> None:
    which, change, code, _ = LIES["other value"]
    with pytest.raises(ProgramError) as caught:
        from_frame(forged(executables()[which], change), name=name)
    assert caught.value.code == code
    assert caught.value.message.startswith(f"{name}: program not" if name else "program not")
    assert "damaged or forged" in caught.value.hint
    assert "internal error" not in str(caught.value)


def test_a_frame_of_another_kind_is_refused(tmp_path: Path) -> None:
    frame = to_frame(executables()["double"])
    assert frame.kind == KIND
    with pytest.raises(ArtefactError) as caught:
        parse_frame(file_bytes(executables()["double"]), kind="profile")
    assert caught.value.code == "E4008"


def refused(data: bytes) -> bool:
    try:
        parse_frame(data, kind=KIND)
    except ArtefactError as error:
        return error.exit_code == 9
    return False


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.thinned(4)
def test_every_flipped_bit_is_refused(name: str) -> None:
    data = bytearray(file_bytes(executables()[name]))
    accepted = []
    for bit in range(len(data) * 8):
        data[bit >> 3] ^= 1 << (bit & 7)
        if not refused(bytes(data)):
            accepted.append(bit)
        data[bit >> 3] ^= 1 << (bit & 7)
    assert accepted == []
    assert not refused(bytes(data))


@pytest.mark.parametrize("name", TEXTS)
def test_every_shortened_or_lengthened_file_is_refused(name: str) -> None:
    data = file_bytes(executables()[name])
    assert [n for n in range(len(data)) if not refused(data[:n])] == []
    assert refused(data + b"\0")
    assert refused(data + data)


def test_a_damaged_file_is_refused_when_loaded(tmp_path: Path) -> None:
    path = tmp_path / "m.ipux"
    data = bytearray(file_bytes(executables()["double"]))
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(ArtefactError, match=r"m\.ipux: damaged") as caught:
        load(path)
    assert caught.value.exit_code == 9
