"""The gateway: agents' sessions, landing, reconciliation."""
