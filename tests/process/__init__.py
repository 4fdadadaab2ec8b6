"""Real masters and workers under signals, kills and limits, on every store that processes can share."""
