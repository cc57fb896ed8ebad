"""Programs as text for people; `docs/program-text.md` tells how to read it."""
