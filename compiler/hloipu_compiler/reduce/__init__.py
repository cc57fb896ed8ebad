"""Shrinking a module that shows a fault to its smallest form that still shows it."""
