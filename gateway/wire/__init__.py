"""From bytes and messages of agents to values; all of it is taken for hostile until it is checked."""
