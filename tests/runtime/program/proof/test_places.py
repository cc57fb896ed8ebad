"""Places of IPUs in a system: one for each IPU of each participant, or the program is refused."""

from dataclasses import replace

import pytest

from hloipu_runtime.errors import HloipuError
from hloipu_runtime.program.proof.verify import faults_of
from hloipu_runtime.program_io.file.checks import check_program
from tests.support.program_texts import small_programs

MEET = small_programs()["meet"]


def test_an_ipu_of_a_participant_has_its_place() -> None:
    assert [MEET.place(0, participant) for participant in range(4)] == [4, 5, 7, 6]
    in_turn = replace(MEET, places=(), system_ipus=0)
    assert [in_turn.place(0, participant) for participant in range(4)] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("places", "system"),
    [
        ((4, 5, 6), 16),  # one for each participant
        ((4, 5, 6, 6), 16),  # its own
        ((4, 5, 6, 16), 16),  # within the system
        ((4, 5, 6, -1), 16),
        ((), 16),  # a system without places
        ((0, 1, 2, 3), 0),
    ],
)
def test_other_places_are_refused_in_files_and_by_the_proof(
    places: tuple[int, ...], system: int
) -> None:
    forged = replace(MEET, places=places, system_ipus=system)
    with pytest.raises(HloipuError) as told:
        check_program(forged)
    assert told.value.code == "E4011"
    assert "places" in str([fault.place for fault in faults_of(forged, 4)])
    check_program(MEET)
