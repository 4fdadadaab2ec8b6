"""Workers: processes that claim jobs, run their handlers and settle them; of one job at a time, and of many at once."""
