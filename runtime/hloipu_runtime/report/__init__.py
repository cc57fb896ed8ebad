"""What users read: the profile of a run or an estimate as records and JSON, and the verdict."""
