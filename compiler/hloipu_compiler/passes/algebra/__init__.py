"""Rewrites that give the same bits by simpler ops."""
