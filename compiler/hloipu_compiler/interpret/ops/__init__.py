"""Evaluation of each op family."""
