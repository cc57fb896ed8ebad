"""Layout of a frame, and the limits within which one is read.

    offset  size  part
    0       8     magic
    8       4     version, little endian as all numbers
    12      4     length of the header in bytes
    16      8     length of the whole file in bytes
    24            header: JSON text in canonical form
    …             zeros up to the next multiple of 64
    …             arrays, each followed by zeros up to the next multiple of 64
    -32     32    SHA-256 of everything before

The header says all that is needed to place the arrays, and the arrays lie in its order without
gaps, so a frame has one form only: what is read prints back as the same bytes.
"""

import struct

MAGIC = b"\x93hloipu\n"
VERSION = 1
PRELUDE = struct.Struct("<8sIIQ")
ALIGNMENT_BYTES = 64
DIGEST_BYTES = 32

MOST_FILE_BYTES = 2**40
MOST_HEADER_BYTES = 2**28
MOST_ARRAYS = 2**20
MOST_DIMENSIONS = 32
LONGEST_NAME = 1024

LEAST_FILE_BYTES = PRELUDE.size + DIGEST_BYTES


def aligned(offset: int) -> int:
    """Return the first aligned offset at or after `offset`."""
    return -(-offset // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
