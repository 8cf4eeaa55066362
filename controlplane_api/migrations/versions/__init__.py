"""One module per revision, oldest first by number; a released one never changes."""
