"""The control plane: database models, REST, dashboard, command line."""
