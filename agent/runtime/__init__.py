"""What every agent needs whatever its sources are: streams to the gateway, credit, state, folders, logs and memory."""
