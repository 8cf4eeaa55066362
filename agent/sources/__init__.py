"""Kinds of sources, a package each: what its server alone needs. Nothing else of the agent imports them."""
