"""The exact mode: every tile has its own memory, and only exchanges cross tiles."""
