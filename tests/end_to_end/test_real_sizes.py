"""Blocks of networks at the sizes that networks have: compiled for large machines, and proved."""

import pytest

from tools.fuzz_blocks.cases import case
from tools.fuzz_blocks.trial import compiled

SEEDS = (
    0, 1, 2, 3, 4, 6, 8, 9, 10, 11, 14, 15, 17, 18, 19, 20, 21, 22, 24, 26, 27, 30, 31, 32,
    33, 34, 35, 36, 37, 38, 39, 41, 42, 44, 45, 46, 47, 49, 50, 51, 52, 54, 55, 56, 57, 58,
    59, 61, 62, 63, 64, 65, 66, 68, 69, 70, 71, 74, 76, 77, 78, 79, 80, 81, 84, 86, 88, 89,
    90, 92, 93, 94, 95, 97, 99, 100, 101, 102, 103, 104, 105, 107, 108, 109, 110, 112, 113,
    114, 117, 119, 120, 124, 125, 126, 128, 129, 130, 131, 133, 134, 135, 136, 137, 138, 139,
    140, 141, 142, 143, 144, 145, 146, 147, 148, 149, 150, 151, 152, 153, 154, 155, 156, 157,
    158, 161, 163, 164, 165, 166, 167, 169, 170, 174, 177, 180, 181, 183, 184, 190, 191, 192,
    193, 194, 197, 199, 200, 203, 205, 206, 207, 208, 210, 211, 214, 217, 218, 219, 220, 223,
    224, 225, 227, 229, 232, 233, 234, 235, 238, 239, 240, 242, 243, 246, 247, 249, 250, 251,
    253, 254, 255, 256, 257, 258, 259, 260, 262, 266, 272, 273, 276, 277, 278, 280, 281, 282,
    285, 286, 292, 295, 296,
)  # fmt: skip
"""Cases that take little time; among them those whose programs once were not proved."""


@pytest.mark.thinned(14)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_block_at_real_sizes_is_proved(seed: int) -> None:
    program = compiled(case(seed))

    assert program.profile().lower_bound_cycles > 0
