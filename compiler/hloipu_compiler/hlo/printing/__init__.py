"""Modules printed as text, JSON and DOT."""
