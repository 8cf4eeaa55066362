"""Whether two generated columns are computed by the same expression.

Pure. What a statement says of one, or what information_schema shows, in; a short text that can be compared out. The
servers show an expression in other words than its statement has: two such are never the same.
"""

import hashlib
from collections.abc import Iterable

from agent.sources.mysql.ddl.lexer import Token
from agent.sources.mysql.ddl.model import Statement

#: NO_AUTO_VALUE_ON_ZERO, STRICT_TRANS_TABLES, STRICT_ALL_TABLES, NO_ENGINE_SUBSTITUTION
_WITHOUT_MEANING = 1 << 19 | 1 << 21 | 1 << 22 | 1 << 30


def written(tokens: Iterable[Token]) -> str:
    """An expression's tokens, with nothing of how they were quoted or spaced."""
    return repr([(token.kind.value, token.text) for token in tokens])


def digest_of_statement(expression: str, statement: Statement) -> str:
    """Of `written`; the session's sql_mode decides what its signs mean, and its charset what its texts are."""
    if not expression:
        return ""
    return digest(f"{statement.sql_mode & ~_WITHOUT_MEANING} {statement.charset_connection} {expression}")


def digest(expression: str) -> str:
    """
    >>> digest("(`a` + 1)")
    'b76e646cb4522ab1'
    """
    return hashlib.blake2s(expression.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest() if expression else ""
