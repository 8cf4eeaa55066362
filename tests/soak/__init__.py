"""`make soak-lake`: many thousands of batches through one sink, to see what grows."""
