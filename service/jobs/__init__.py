"""Jobs: one SQLite file that is the truth, a worker process for each device, and what takes uploads in."""
