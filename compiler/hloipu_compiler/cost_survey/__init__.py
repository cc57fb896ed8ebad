"""What ops cost on one IPU, each taken by itself."""
