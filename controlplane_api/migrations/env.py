"""Alembic's entry: migrates over the connection that `controlplane_api.database.upgrade` hands in.

Without a connection (`alembic upgrade --sql`) it prints the statements for PostgreSQL and connects nowhere.
"""

from alembic import context

from controlplane_api.models import Base

connection = context.config.attributes.get("connection")
if connection is None:
    context.configure(dialect_name="postgresql", target_metadata=Base.metadata, literal_binds=True)
else:
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        render_as_batch=connection.dialect.name == "sqlite",
        transactional_ddl=True,
        compare_type=True,
    )
with context.begin_transaction():
    context.run_migrations()
