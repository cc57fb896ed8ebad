"""Codelets of linear algebra: products, convolutions, factorisations, transforms."""
