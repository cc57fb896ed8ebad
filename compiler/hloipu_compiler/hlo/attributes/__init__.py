"""Attributes, shapes and shardings from text."""
