"""The lake: from the gateway's cut log to changelog and current-state tables."""
