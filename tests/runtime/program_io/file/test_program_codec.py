"""Programs as JSON data: they come back, in one form, and share what they shared."""

import json
from typing import Any

import numpy as np
import pytest

from hloipu_runtime.codelets.core.codelet import Codelet
from hloipu_runtime.codelets.dense.custom import LapackCall
from hloipu_runtime.errors import ArtefactError, LimitError
from hloipu_runtime.program.mapping import Tiles
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import ComputeSet, Repeat, Sequence, Step, Sync, VertexGroup
from hloipu_runtime.program_io.file.program_codec import decode_program, encode_program
from hloipu_runtime.program_io.frame.frame import Frame, encode_frame
from hloipu_runtime.program_io.records.coders import (
    MOST_BLOCKS,
    Reading,
    Writing,
    all_codelets,
    own_coder,
)
from tests.support.program_reader.parser import parse_program
from tests.support.program_texts import TEXTS, small_programs
from tests.support.same_programs import assert_same


def through_json(program: Program) -> Program:
    data = encode_program(program)
    return decode_program(json.loads(json.dumps(data.meta)), data.arrays)


@pytest.mark.parametrize("name", TEXTS)
def test_a_program_comes_back(name: str) -> None:
    program = small_programs()[name]
    found = through_json(program)
    assert_same(found, program)
    assert encode_program(found).meta == encode_program(program).meta


def test_equal_records_are_written_once_and_shared_again() -> None:
    one, other = (parse_program(TEXTS["double"]) for _ in range(2))
    both = Program("both", "tiny", 1, one.variables + other.variables, one.values, {}, one.body)
    meta = encode_program(both).meta
    assert len(meta["pools"]["tiles"]) == len(meta["pools"]["mappings"]) == 1
    variables = decode_program(
        {**meta, "parameters": encode_program(one).meta["parameters"],
         "results": encode_program(one).meta["results"]}, {}
    ).variables  # fmt: skip
    assert variables[0].mapping is variables[3].mapping


def test_true_is_not_one() -> None:
    calls = [LapackCall("potrf", (("lower", value),)) for value in (1, True, "1")]
    assert calls[0] == calls[1]
    groups = tuple(VertexGroup(call, Tiles(), (), (), (), ()) for call in calls)
    program = Program("p", "tiny", 1, (), (), {}, Sequence((ComputeSet(groups),)))
    rows = encode_program(program).meta["pools"]["codelets"]
    read = [own_coder(Codelet).read(row, Reading("")) for row in rows]
    assert [repr(x) for x in read] == [repr(x) for x in calls]


def test_every_codelet_is_known_without_being_imported() -> None:
    assert {"dot", "elementwise", "gather", "sort", "fft"} <= all_codelets().keys()


def nested(levels: int) -> Program:
    body = Sequence()
    for _ in range(levels - 1):
        body = Sequence((Repeat(2, body, ()),))
    return Program("deep", "tiny", 1, (), (), {}, body)


def test_blocks_nest_as_deep_as_files_hold_and_no_deeper() -> None:
    assert_same(through_json(nested(MOST_BLOCKS)), nested(MOST_BLOCKS))
    with pytest.raises(LimitError) as caught:
        encode_program(nested(MOST_BLOCKS + 1))
    assert caught.value.code == "E5025"
    meta = encode_program(nested(MOST_BLOCKS)).meta
    meta["body"] = [[["Repeat", 2, meta["body"], [], ""]]]
    with pytest.raises(ArtefactError, match="at most 64 blocks"):
        decode_program(meta, {})


def test_numbers_of_numpy_are_no_plain_data() -> None:
    tiles = Tiles((np.int64(2),), (1,), 0)  # type: ignore[arg-type]
    group = VertexGroup(LapackCall("potrf", ()), tiles, (), (), (), ())
    program = Program("p", "tiny", 1, (), (), {}, Sequence((ComputeSet((group,)),)))
    with pytest.raises(ArtefactError) as caught:
        list(encode_frame(Frame("k", encode_program(program).meta)))
    assert caught.value.code == "E4005"


@pytest.mark.parametrize(
    ("annotation", "data", "message"),
    [
        (int, True, "expected is an integer, found True"),
        (int, 2**63, "an integer of 64 bits"),
        (str, None, "a text"),
        (bool, 1, "true or false"),
        (float, 1.5, "a float in hexadecimal"),
        (float, "0x1.8p+99999", "a float in hexadecimal"),
        (tuple[int, int], [1], "a list of 2"),
        (tuple[int, ...], (1,), "expected is a list, found tuple"),
        (Step, ["Sink"], "ComputeSet or Exchange"),
        (Step, ["Sync"], "Sync of 1"),
        (Step, [["Sync"]], "ComputeSet or"),
        (int | None, "1", "an integer or null"),
        (Tiles, [[2], [1]], "Tiles of 3"),
    ],
)
def test_what_is_not_in_its_place_is_refused(annotation: Any, data: Any, message: str) -> None:
    with pytest.raises(ArtefactError, match=message) as caught:
        own_coder(annotation).read(data, Reading("m.ipux"))
    assert (caught.value.code, caught.value.exit_code) == ("E4010", 9)
    assert caught.value.message.startswith("m.ipux: the program: expected is ")


def test_an_unknown_codelet_is_refused() -> None:
    for data in (["os.system", "true"], ["Codelet"], [], "dot", [["dot"]]):
        with pytest.raises(ArtefactError, match="a codelet"):
            own_coder(Codelet).read(data, Reading(""))


def test_a_syncs_data_by_hand() -> None:
    assert own_coder(Step).write(Sync(2), Writing()) == ["Sync", 2]
    assert own_coder(Step).read(["Sync", 2], Reading("")) == Sync(2)
