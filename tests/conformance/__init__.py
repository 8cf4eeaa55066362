"""What the agent decodes of each server's log, found by running it; agent/CONFORMANCE.md is what was found."""
