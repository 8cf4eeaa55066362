"""Rows as Arrow columns, whatever source they come from: buffers to append to, batches of them, and how they travel."""
