"""What masters and workers share of the machine: memory, process titles, stacks, streams, pid files."""
