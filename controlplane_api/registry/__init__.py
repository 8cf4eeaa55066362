"""The gateway's registry over the control plane's database, and the reader of the cut log."""
