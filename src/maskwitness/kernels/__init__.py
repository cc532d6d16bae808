"""Inner loops: arrays in, arrays filled; no checks, no files, no surprises."""
