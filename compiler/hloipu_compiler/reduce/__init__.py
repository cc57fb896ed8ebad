"""Test-case reduction: the smallest module that still shows a fault."""
