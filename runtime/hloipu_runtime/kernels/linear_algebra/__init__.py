"""Factorisations and solves of batches of matrices, and the LAPACK calls."""
