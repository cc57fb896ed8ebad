"""From lines of text to a module."""
