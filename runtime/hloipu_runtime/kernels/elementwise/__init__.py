"""Elementwise operations, conversions included."""
