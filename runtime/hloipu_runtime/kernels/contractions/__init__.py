"""Products and convolutions by BLAS."""
