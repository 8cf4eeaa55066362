"""Schema over time: how the synced tables looked at a position, and how their rows are read there."""
