"""Reports: the profile as records and JSON, and the verdict."""
