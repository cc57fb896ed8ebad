"""Findings: what keeps a compiled program slow or large, from its costs and memory."""
