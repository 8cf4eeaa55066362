"""The agent's part of `menura doctor`: its host, its gateway, and the servers of its sources. See `menura.doctor`."""
