"""Keys of random numbers that differ from replica to replica, made from one."""

from typing import Any

import numpy as np

from hloipu_runtime.kernels.random_bits import three_fry_words

Array = np.ndarray[Any, Any]
GOLDEN_STEP = 0x9E3779B9
"""The odd number next to 2**32 over the golden ratio (Knuth: The Art of Computer Programming 3,
6.4). Numbers of replicas times it are far from the small ones that a step itself folds into its
key, or splits it by: `split(key)[i]` is `fold_in(key, i)`."""
KEY_TYPES = ("u32", "s32", "u64", "s64")


def folded(key: Array, replica: int) -> Array:
    """Return a replica's key: `jax.random.fold_in(key, replica * 0x9E3779B9 % 2**32)`.

    `key`: one of `KEY_TYPES`, any shape; its 32-bit words are taken in pairs along the last
    dimension, as JAX does for Threefry's u32[2] and RBG's u32[4]; of 64-bit ones the lower half
    comes first. Where they are odd in number a word w stands for the key (0, w), as a seed does,
    and becomes the second word of what that becomes. The first replica's key is `key` itself.
    """
    if replica == 0:
        return key
    number = replica * GOLDEN_STEP % 2**32
    words = np.ascontiguousarray(key).reshape(-1).view(np.uint32)
    in_last = key.shape[-1] * (key.itemsize // 4) if key.ndim else key.itemsize // 4
    pairs = words.reshape(-1, 2) if in_last % 2 == 0 else np.stack([0 * words, words], 1)
    folded_pairs = np.empty_like(pairs)
    for row, (first, second) in enumerate(pairs):
        # fold_in is Threefry of the counter words (0, number).
        folded_pairs[row] = three_fry_words(int(first) | int(second) << 32, number << 32, 1)[:, 0]
    folded_words = folded_pairs if in_last % 2 == 0 else folded_pairs[:, 1]
    return np.ascontiguousarray(folded_words).reshape(-1).view(key.dtype).reshape(key.shape)
