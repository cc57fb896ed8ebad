"""Random numbers: bits of a counter, values drawn from a shared state, and that state's advance.

Counters make every part's bits a function of the key and of where the part lies. Parts are cut out
of the whole, which is the same and needs no second way to lay out counters.
"""

from typing import ClassVar, Literal, cast

import numpy as np

from hloipu_runtime.codelets.core.codelet import ALL, Codelet, Index, Indexing, codelet
from hloipu_runtime.codelets.core.grids import one_by_one
from hloipu_runtime.codelets.core.tensors import Array, Block, Blocks, Tensors
from hloipu_runtime.codelets.costs.elementwise_rates import vector_elements
from hloipu_runtime.codelets.ops.generate import indices_of
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.kernels.core.storage import from_bits, storage_dtype
from hloipu_runtime.kernels.random_bits import Algorithm, rng_bit_generator
from hloipu_runtime.kernels.random_values import rng_normal, rng_uniform
from hloipu_runtime.machine.charges import over
from hloipu_runtime.machine.costs import TileWork, shared_vertex_cycles
from hloipu_runtime.machine.model import Machine

_BLOCK = {"rng_three_fry": (114, 2), "rng_philox": (343, 4)}
"""Slots and 32-bit words of one counter in integer code, one slot an op (`rate_inside`). ThreeFry:
the counter, 2 additions of the key, 20 rounds of 5 ops, 5 additions of two keys. Philox: the
counter, 10 rounds of two products of 32 by 32 bits, 15 slots each, and 4 ops. Assumed: no library
for the chip has them."""
_SEED_SUPERVISOR, _SEED_SLOTS = 14, 27
"""Of setting the chip's generator to a state, so that equal states draw equal bits (`SetSeed`)."""
_DRAW_SUPERVISOR, _DRAW_PROLOGUE = 4, 22
"""Of drawing with it (`Uniform`)."""
_MASK64 = (1 << 64) - 1


@codelet
class RngBits(Codelet):
    """Makes random bits from a state, and the state after all of them.

    Operand: the state, u64[2 or 3] or as many bits of u32; results: the state after, on every tile,
    and the bits.
    """

    name: ClassVar[str] = "rng_bits"
    algorithm: str
    """In lower case, as `kernels/random_bits.py` names it; of `rng_default` the bits are Philox's,
    the cycles those of the chip's own generator, whose bits depend on tile and worker."""
    element_type: str

    def indexing(self, operands: Tensors, results: Tensors) -> Indexing:
        """Return one label for each dimension of the bits; states are whole."""
        state, bits = results
        return Indexing(
            bits.shape,
            ((ALL,) * len(operands[0].shape),),
            ((ALL,) * len(state.shape), tuple(Index(d) for d in range(len(bits.shape)))),
        )

    def run(self, operands: Blocks, results: Blocks) -> list[Array]:
        """Make the bits of all parts."""
        states = _common(operands)
        if states is None:
            dtypes = [operands[0].data.dtype, storage_dtype(self.element_type)]
            return one_by_one(self.run, operands, results, dtypes)
        state, bits = states[0], results[1]
        words = np.ascontiguousarray(state).reshape(-1).view(np.uint64)
        width = ELEMENT_TYPES[self.element_type].bits
        after, words_drawn = rng_bit_generator(
            words, bits.whole, width, cast(Algorithm, self.algorithm)
        )
        values = from_bits(_cut(words_drawn, bits), self.element_type)
        following = after.view(state.dtype).reshape(state.shape)
        return [np.broadcast_to(following, results[0].grid + state.shape), values]

    def work(self, machine: Machine, operands: Tensors, results: Tensors) -> TileWork:
        """Return the cycles of the chip's generator for `rng_default`, else of integer rounds.

        The chip draws 64 bits a slot and stores them beside: poplibs's `Uniform` of whole words
        after `SetSeed` (graphcore/poplibs: lib/poprand/poprandCycleEstimators.cpp). Rounds are
        assumed.
        """
        elements, bits = results[1].elements, ELEMENT_TYPES[self.element_type].bits
        contexts = machine.tile.worker_contexts
        if self.algorithm == "rng_default":
            draws = over(over(elements * max(bits, 8), 64), contexts)
            supervisor = _SEED_SUPERVISOR + _DRAW_SUPERVISOR
            slots = _SEED_SLOTS + _DRAW_PROLOGUE + draws
            return TileWork(shared_vertex_cycles(machine, supervisor, slots))
        slots, words = _BLOCK[self.algorithm]
        blocks = over(elements * (2 if bits == 64 else 1), words)
        cycles = shared_vertex_cycles(machine, 11, 30 + slots * over(blocks, contexts))
        return TileWork(cycles, cycles)


@codelet
class RngValues(Codelet):
    """Draws values from the program's random state.

    Operands: low and high, or mean and deviation, of rank 0; the state, u64[3]: key, and the
    128-bit position in the stream, low half first. `RngState` moves the position on.
    """

    name: ClassVar[str] = "rng_values"
    distribution: Literal["uniform", "normal"]
    element_type: str

    def indexing(self, operands: Tensors, results: Tensors) -> Indexing:
        """Return one label for each dimension of the values."""
        shape = results[0].shape
        return Indexing(shape, ((), (), (ALL,)), (tuple(Index(d) for d in range(len(shape))),))

    def run(self, operands: Blocks, results: Blocks) -> list[Array]:
        """Draw the values of all parts."""
        given = _common(operands)
        if given is None:
            return one_by_one(self.run, operands, results, [storage_dtype(self.element_type)])
        first, second, state = given
        key, low, high = (int(word) for word in state)
        draw = rng_uniform if self.distribution == "uniform" else rng_normal
        values = draw(
            first, second, results[0].whole, self.element_type, key=key, state=low | high << 64
        )
        return [_cut(values, results[0])]

    def work(self, machine: Machine, operands: Tensors, results: Tensors) -> TileWork:
        """Return the cycles of the chip's own generator (poplibs: poprandCycleEstimators.cpp)."""
        elements = results[0].elements
        if not elements:
            return TileWork(0)
        turns = over(
            over(elements, machine.tile.worker_contexts), vector_elements(self.element_type)
        )
        integers = ELEMENT_TYPES[self.element_type].is_integer
        prologue = 24 if self.element_type == "f16" else _DRAW_PROLOGUE
        slots = prologue + (6 if integers else 4) * turns
        cycles = shared_vertex_cycles(machine, _DRAW_SUPERVISOR, slots)
        known = self.element_type in ("f32", "f16", "s32", "u32")
        return TileWork(cycles, 0 if known else cycles)


@codelet
class RngState(Codelet):
    """Advances the position of the program's random state, u64[3], by `delta`.

    Results: the position before, u64[2], low half first, and the state after.
    """

    name: ClassVar[str] = "rng_state"
    delta: int

    def indexing(self, operands: Tensors, results: Tensors) -> Indexing:
        """Return no label: every tile has all of it."""
        return Indexing((), ((ALL,),), ((ALL,), (ALL,)))

    def run(self, operands: Blocks, results: Blocks) -> list[Array]:
        """Add with carry."""
        state = operands[0].data
        after = np.array(state)
        low = np.uint64(self.delta & _MASK64)
        high = np.uint64(self.delta >> 64 & _MASK64)
        after[..., 1] += low
        after[..., 2] += high + (after[..., 1] < low).astype(np.uint64)
        return [np.array(state[..., 1:]), after]

    def work(self, machine: Machine, operands: Tensors, results: Tensors) -> TileWork:
        """Return the cycles of one worker's few integer ops, by no source."""
        cycles = machine.tile.worker_contexts * 40
        return TileWork(cycles, cycles)


def _common(blocks: Blocks) -> list[Array] | None:
    """Return operands that every tile has all of; None where tiles hold different ones.

    All tiles of a correct program hold the same; a tile that does not must be seen to.
    """
    values = []
    for block in blocks:
        array, axes = block.data, len(block.grid)
        stored = array[tuple(slice(0, 1) if s == 0 else slice(None) for s in array.strides[:axes])]
        first = np.asarray(array[(0,) * axes])
        if axes and stored.size > first.size:
            bits = np.dtype(f"u{array.dtype.itemsize}") if array.dtype.kind == "f" else array.dtype
            same = np.ascontiguousarray(stored).view(bits)
            if not (same == np.ascontiguousarray(first).view(bits)).all():
                return None
        values.append(first)
    return values


def _cut(whole: Array, block: Block) -> Array:
    """Return all parts of a block, `grid + part`, out of the whole."""
    if block.part == block.whole and not block.grid:
        return whole
    if block.part == block.whole:
        return np.broadcast_to(whole, block.grid + block.part)
    return np.asarray(whole[tuple(indices_of(block, d) for d in range(len(block.part)))])
