"""How PostgreSQL names things: as they are written, upper case and lower case apart."""

from agent.filter import Identifiers

SYSTEM_SCHEMAS = frozenset({"pg_catalog", "information_schema", "pg_toast"})
IDENTIFIERS = Identifiers(SYSTEM_SCHEMAS, fold=str)
