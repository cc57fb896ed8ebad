"""Shared parts of codelets: interface, expressions, views of tiles' parts."""
