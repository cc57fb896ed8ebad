"""What all kernels share: storage, rounding, blocks in the cache, monoids, movement."""
