"""Programs in files and as text."""
