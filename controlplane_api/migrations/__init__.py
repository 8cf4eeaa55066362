"""Alembic's revisions of the control plane's database; `controlplane_api.database` runs them."""
