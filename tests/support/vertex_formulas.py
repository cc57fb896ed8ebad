"""What vertices cost on a GC200, written from the published estimators, in plain numbers.

Sources are files of graphcore/poplibs; each function names its own. Nothing here is shared with the
product: the numbers of the machine are written out, sizes are plain integers, and searches are
loops. Where the product departs from the source, the function says so. All are tile cycles: a
supervisor hands a vertex to six workers, each of which gets every sixth slot.
"""

from math import ceil, log2, prod

WORKERS = 6
SUPERVISOR = 11
"""lib/popops/popopsCycleEstimators.cpp, basic supervisor overhead."""


def cd(a: int, b: int) -> int:
    """Return a / b, rounded up."""
    return (a + b - 1) // b


# --- lib/poplin/PerformanceEstimation.hpp ---------------------------------------------------------


def worker_1x1(positions: int, half: bool, zeroing: bool) -> int:
    """Return a worker's slots; never fewer than for fewer positions, where the source has that."""
    if not positions:
        return 20 - 7 if half else 24
    if half:
        known = {1: 32 if zeroing else 33, 2: 41 if zeroing else 42}
        three = 37 if zeroing else 38
        return max(known.get(n, three + 4 * (n - 3)) for n in range(1, positions + 1)) - 7
    known = {1: 47, 2: 46}
    core = max(known.get(n, 46 + 8 * (n - 3)) for n in range(1, positions + 1))
    return core + (2 + 8 * positions if zeroing else 0)


def amp_1x1(groups: int, rows: int, depth: int, columns: int, half: bool) -> int:
    """Return the cycles of the 1x1 vertex: 16 units, 64 cycles to load 16 x 32 bytes of weights."""
    in_groups = max(1, cd(depth, 16 if half else 8))
    out_groups = cd(columns, 16)

    def inner(zeroing: bool) -> int:
        most = worker_1x1(cd(rows, WORKERS), half, zeroing)
        least = worker_1x1(rows // WORKERS, half, zeroing)
        return max(6 * most, 6 * least + 14)

    total = 50 + (6 * (7 + 3 * (in_groups * groups - 1)) if half else 0)
    for _ in range(groups):
        total += 13
        for _ in range(in_groups - 1):
            total += 15 + out_groups * (19 + 6 + 64 + inner(False))
        total += 11 + out_groups * (18 + 7 + 64 + inner(True))
    return total


def horizontal_mac(
    groups: int,
    rows: int,
    depth: int,
    columns: int,
    half: bool,
    half_partials: bool = False,
    taps: int = 1,
) -> int:
    """Return the cycles of dot products one after the other, 64 bits of depth a slot."""
    special = half and not half_partials and taps == 1
    savings = 15 if special else 6 if half else 0
    dot = {(False, False): 7, (True, False): 7 - 1, (True, True): 11 - 1}[half, half_partials]
    dot += cd(depth, 4 if half else 2)
    pairs = cd(columns, 2) if half_partials else columns
    rows_of_worker = cd(rows, WORKERS)
    one_tap = 16 - savings + (13 if special else 19)
    if special and pairs == 1:
        one_tap += 1 + rows_of_worker * (2 + dot)
    else:
        one_tap += rows_of_worker * (7 + pairs * dot)
    inner = 6 * (taps * one_tap + 16)
    total = (65 if half else 58) - 10 * special + 6 * (10 if half_partials else 9)
    total += 6 * (15 if special else 6 if half_partials else 0)
    total += groups * (23 + 15 + 10 + inner)
    if special and columns == 1:
        return total
    return total + zeroing(groups, rows * columns)


def zeroing(groups: int, results: int) -> int:
    """Return the cycles of zeroing each group's f32 sums, the state of the first retained."""
    return 6 * groups * (cd(cd(results, WORKERS), 2) + 14 - 9)


def product(
    groups: int, rows: int, depth: int, columns: int, half: bool, half_partials: bool = False
) -> int:
    """Return the cycles of the cheapest vertex, with either operand as the weights."""
    ways = ((rows, columns), (columns, rows))
    return min(
        min(
            amp_1x1(groups, r, depth, c, half),
            horizontal_mac(groups, r, depth, c, half, half_partials),
        )
        for r, c in ways
    )


def half_cast(elements: int) -> int:
    """Return the cycles of rounding f32 sums to f16, two a load."""
    return 6 * (26 + cd(cd(elements, 6), 2))


def zero_partials(elements: int) -> int:
    """Return the cycles of zeroing f32 sums, two a slot."""
    return 12 + 6 * (5 + cd(cd(elements, 6), 2))


def nx1(
    groups: int, rows: int, row: int, inputs: int, outputs: int, taps: tuple[int, int], half: bool
) -> int:
    """Return the cycles of the nx1 vertex, with the best of its heights of kernel."""
    each_position = 4 if half else 8
    positions = cd(rows * row, WORKERS)
    worker = 18 - 9 + cd(positions, row) * max(0, 3 + (34 if half else 45) - 3 * each_position)
    worker += positions * each_position
    found = []
    for height, beside in ((1, 15), (2, 46), (4, 60)) if half else ((1, 15),):
        in_groups = max(1, cd(inputs, (16 if half else 8) // height))
        kernel = cd(taps[0], height) * (14 + taps[1] * (12 + 64 + beside + 3 + 6 * worker))
        each_group = 16 + in_groups * (14 + cd(outputs, 16) * (14 + kernel))
        out_groups = cd(outputs, 16)
        loops = groups * (out_groups * 17 + (out_groups - 1) * 6 + 1) + (groups - 1) * 6 + 1
        zeros = zeroing(groups * out_groups, rows * row * 16)
        found.append(109 + 6 * 9 + 6 * 9 + loops + zeros + groups * each_group)
    return min(found)


def vertical_mac(groups: int, positions: int, taps: int, half: bool) -> int:
    """Return the cycles for one channel a group, eight halves or four floats side by side."""
    blocks = cd(groups, 8 if half else 4)
    worker = 25 + blocks * cd(positions, WORKERS) * (15 + 3 * taps)
    return 100 + 24 * blocks + 6 * worker


def slic(
    groups: int, rows: int, row: int, channels: int, taps: tuple[int, int], stride: int
) -> int:
    """Return the cycles for up to four channels of f16 a group, sums of f32: two passes."""
    positions = cd(rows * row, WORKERS)
    lengths = [row] * (positions // row) + ([positions % row] if positions % row else [])

    def of_row(n: int, first: bool) -> int:
        if stride == 2:
            return 7 + (3 if n == 1 else 5) + 3 if n < 3 else 15 + 2 * (n - 3)
        if n >= 5:  # never less than for four
            return max(of_row(4, first), 15 + n - 5)
        if first:
            return 10 + (n if n > 1 else 0) + 3
        if n == 1:
            return 7 + 6
        return 7 + 1 + (n - 1) + 2 + (4 - n) + 2 + (3 - (4 - n)) + 3

    def inner(first: bool) -> int:
        slots = 2 + 3 + 1 + 2 + 4 + 2 + 2 + 1
        for n in lengths:
            slots += 10 + first + 3 + 2 * (of_row(n, first) - 1)
        return 6 * slots

    found = []
    for padded, load in ((1, 9 + 6 + 10 * 6 + 6), (2, 9 + 6 + 12 * 6 + 6), (4, 6 + 6 + 6)):
        blocks, together = taps[0] * cd(taps[1], 4), cd(groups, 4 // padded)
        body = load + 16 + 3 + 2 + 1 + 6 + 1 + 6 + 1
        total = 28 + 15 * together + 6 * (together - 1) + 1 + body * blocks + 6 * (blocks - 1) + 1
        if channels <= padded:
            found.append(total + together * (inner(True) + (blocks - 1) * inner(False)))
    return min(found)


def rearranged(size_bytes: int) -> int:
    """Return the cycles of reordering words of 8 bytes: 587 + 0.44 a byte.

    (lib/poplin/ConvTransformsBytesToCycles.hpp)
    """
    return 587 + cd(size_bytes * 440, 1000)


def convolution(
    groups: int,
    rows: int,
    row: int,
    inputs: int,
    outputs: int,
    taps: tuple[int, int],
    stride: int,
    half: bool,
) -> int:
    """Return the cycles of the cheapest way to convolve, sums of f32."""
    kernel, positions = taps[0] * taps[1], rows * row
    word = 8 // (2 if half else 4)
    patches = groups * positions * kernel * cd(inputs, word) * 8
    unfolded = product(groups, positions, inputs * kernel, outputs, half)
    if kernel == 1:
        return unfolded
    found = [
        unfolded + rearranged(patches),
        horizontal_mac(groups, positions, inputs, outputs, half, taps=kernel),
        nx1(groups, rows, row, inputs, outputs, taps, half),
    ]
    if inputs == outputs == 1:
        found.append(vertical_mac(groups, positions, kernel, half))
    if half and stride <= 2 and max(inputs, outputs) <= 4:
        found.append(slic(groups, rows, row, max(inputs, outputs), taps, stride))
    return min(found)


def reduce_add(outputs: int, partials: int, half: bool) -> int:
    """Return the cycles of adding partial sums of a convolution, of the result's type.

    They are one variable here whatever their size, where poplin leaves large ones apart.
    """
    width = 8 if half else 4
    if outputs % width == 0:
        loops = cd(outputs // width, WORKERS)
        return 6 * (20 + (2 * (partials - 1) + (9 if half else 8)) * loops) + 33
    loops = outputs // width + bin(outputs % width).count("1")
    each, cycles = loops // WORKERS, 32
    if loops % WORKERS:
        if outputs % width:
            cycles += 2 * partials + (11 if half else 13)
        else:
            each += 1
    return 6 * (cycles + (3 * partials + (8 if half else 7)) * each)


# --- lib/popops/reduction/CycleEstimationFunctions.cpp --------------------------------------------


def reduction(outer: int, reduced: int, half: bool, add: bool, contiguous: bool) -> int:
    """Return the cycles of reducing `reduced` partials to each of `outer` results.

    64 bits a slot; sums have accumulators of two vectors. Contiguous: the partials of a result lie
    together. Few results, uneven among workers or their accumulators, may be cut along the partials
    as well, and the pieces' results put together by a strided reduction, as the product has it.
    """
    vector = 4 if half else 2
    lanes = 2 * vector if add else vector
    store = 8 if half else 5 if add else 4

    def strided(outs: int, partials: int) -> int:
        return 16 + cd(outs, lanes) * (3 + store + 3 + max(0, partials - 1))

    def worker(outs: int, partials: int) -> int:
        if contiguous:
            return cd(partials, lanes) * outs + 12 * outs + 17
        return strided(outs, partials)

    found = [SUPERVISOR + 6 * worker(cd(outer, 6), reduced)]
    even = 6 if contiguous else 6 * lanes
    for pieces in range(2, 7) if outer % even and outer <= 8 * even else ():
        first = worker(cd(outer * pieces, 6), cd(reduced, pieces))
        found.append(2 * SUPERVISOR + 6 * (first + strided(cd(outer, 6), pieces)))
    return min(found)


# --- lib/popsparse/PerformanceEstimation.hpp, lib/popops/PerformanceEstimation.cpp ----------------


def transposed_grains(matrices: int, rows: int, columns: int, half: bool) -> int:
    """Return the cycles of transposing matrices of rows x columns grains: 4 halves, 2 floats."""
    each, price = cd(matrices, 6), 4 if half else 3
    if rows == columns == 1:
        worker = 29 if each == 1 else 37 + price * (each - 2)
    elif columns == 1:
        worker = 27 + each * (35 + price * (rows - 2))
    else:
        worker = 29 + each * (18 + rows * (12 + price * (columns - 2)))
    return 7 + 6 * worker


def fill_slots(bits: int, elements: int) -> int:
    """Return a worker's slots to fill a region with one value: start-up, then 64 bits a slot."""
    if bits == 8:
        return 28 + cd(elements, 4) if elements < 64 else 39 + cd(elements, 8)
    return {64: 5, 32: 23, 16: 26}[bits] + cd(elements * bits, 64)


# --- lib/popops/popopsCycleEstimators.cpp ---------------------------------------------------------

# By (floating, operands, keys): each pair, the first entry, the loop around.
SWAPS = {
    (True, 1, 1): (13, 20, 40),
    (False, 1, 1): (12, 25, 42),
    (True, 2, 1): (11, 15, 23),
    (False, 2, 1): (17, 35, 43),
    (True, 2, 2): (25, 36, 45),
    (False, 2, 2): (27, 37, 49),
}


def bitonic_sort(
    rows: int, length: int, floating: bool, operands: int, keys: int, merge: bool
) -> int:
    """Return the cycles of a bitonic network, or of its last merge (CompareAndSwapAtDistance)."""
    levels = ceil(log2(length))
    stages = levels if merge else sum(range(1, levels + 1))
    pair, entry, around = SWAPS[floating, operands, keys]
    share = cd(rows * cd(length, 2), 6)
    return stages * (19 + 6 * (around + entry + share * pair))


def scaled_add(elements: int, half: bool, subtract: bool) -> int:
    """Return the cycles of x + s * y; at most seven elements are left over at the end."""
    supervisor = 21 + 11 + 13 + 12 + 6 + (7 if subtract else 0)
    vectors = cd(cd(elements, 4 if half else 2), 6)
    return supervisor + 6 * (16 + 6 + 3 + 7 + 3 * max(0, vectors - 1))


# --- lib/popnn/PerformanceEstimation.hpp ----------------------------------------------------------


def pooling(sizes: tuple[int, int, int], window: tuple[int, ...], kind: str, half: bool) -> int:
    """Return the cycles of pooling `positions` in rows of `row`, of `channels` each.

    By maximum, sum or backwards; without rows, as no source has it, where that is less.
    """
    items, channels, row = sizes
    fixed, each, unpacked = {"max": (4, 3, 0), "sum": (5, 3, 0), "back": (7, 5, 10)}[kind]
    vectors, positions = cd(channels, 4 if half else 2), cd(items, 6)
    run = min(row, positions)
    load, start, rows, lists = 4 + 2 + 2 + 7 + 2 + 2, 4 + 6 + 2, 2 + 2, 3 + 2 + 4 + 1
    around = load + start + rows + lists + unpacked + 1
    item = 20 + 1 + vectors * (2 + fixed + each * run + 1) + 1
    by_rows = vectors * positions + cd(positions, run) * (13 + prod(window) * item + 3 + 2)
    singly = 20 * positions + cd(items * vectors, 6) * (3 + fixed + each * prod(window))
    return 7 + 6 * (around + min(by_rows, singly)) + 6


# --- lib/poplin/poplinCycleEstimators.cpp ---------------------------------------------------------


def cholesky(n: int, half: bool) -> int:
    """Return one worker's slots of a decomposition."""
    if half:
        return int(0.5 * n**3) + int(198.75 * n**2) + int(95.5 * n) + 426
    return n**3 + 102 * n**2 + 101 * n + 102
