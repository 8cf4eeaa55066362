"""How MySQL and MariaDB name things: columns and system databases without case."""

from agent.filter import Identifiers
from agent.sources.mysql.ddl.online_change import bases

SYSTEM_DATABASES = frozenset({"mysql", "information_schema", "performance_schema", "sys"})
IDENTIFIERS = Identifiers(SYSTEM_DATABASES, str.lower, bases)
