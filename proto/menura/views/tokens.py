"""The words of a text, with what the parser would lose of them: it makes other trees of texts that mean another thing.

Comes in: a text in Spark SQL. Goes out: its tokens, for the parser, or a `ViewRefused` with the place.

* A number's letter (5L, 0.5BD, 5D) stays with the number. The parser makes a cast of it, and a cast has not the digits
  that a number has which is written out.
* A comparison in parentheses at the right of <=> gets a second pair of them. The parser itself puts one around what
  follows <=> where it reads that otherwise than Spark SQL, and `parts` refuses that one.
* A sign + before a number is refused. The parser drops it, and in Spark SQL a number with it is none that is written
  out.
"""

from collections.abc import Sequence
from itertools import pairwise

from sqlglot import Dialect, Token, TokenType

from menura.views.definition import ViewRefused

#: what stands before a sign that has nothing at its left
_BEFORE_SIGN = {
    TokenType.L_PAREN, TokenType.COMMA, TokenType.PLUS, TokenType.DASH, TokenType.STAR, TokenType.DPIPE, TokenType.EQ,
    TokenType.NEQ, TokenType.LT, TokenType.LTE, TokenType.GT, TokenType.GTE, TokenType.NULLSAFE_EQ, TokenType.SELECT,
    TokenType.DISTINCT, TokenType.WHERE, TokenType.HAVING, TokenType.ON, TokenType.AND, TokenType.OR, TokenType.NOT,
    TokenType.CASE, TokenType.WHEN, TokenType.THEN, TokenType.ELSE, TokenType.BETWEEN, TokenType.LIKE,
    TokenType.ORDER_BY, TokenType.GROUP_BY, TokenType.PARTITION_BY,
}  # fmt: skip
_SIGNS = (TokenType.PLUS, TokenType.DASH, TokenType.L_PAREN, TokenType.DOT)
#: what may stand behind a value that is at the right of <=>, and nothing that binds as strongly or more
_BEHIND_VALUE = {
    TokenType.R_PAREN, TokenType.COMMA, TokenType.AND, TokenType.OR, TokenType.WHEN, TokenType.THEN, TokenType.ELSE,
    TokenType.END, TokenType.ALIAS, TokenType.FROM, TokenType.WHERE, TokenType.GROUP_BY, TokenType.HAVING,
    TokenType.ORDER_BY, TokenType.LIMIT, TokenType.UNION, TokenType.EXCEPT, TokenType.INTERSECT, TokenType.JOIN,
    TokenType.LEFT, TokenType.RIGHT, TokenType.FULL, TokenType.INNER, TokenType.CROSS,
}  # fmt: skip


def tokens_of(sql: str) -> list[Token]:
    """Raises `ViewRefused`, and sqlglot's errors.

    >>> [token.text for token in tokens_of("a + 5L")]
    ['a', '+', '5L']
    """
    found = _with_letters(Dialect.get_or_raise("spark").tokenize(sql))
    _check_apostrophes(found)
    _check_signs(found)
    return _with_pairs(found)


def _with_letters(tokens: Sequence[Token]) -> list[Token]:
    """A number with a letter is three tokens at one place: the number, a cast's sign, and the letter."""
    found: list[Token] = []
    left = iter(tokens)
    for token in left:
        if token.token_type is TokenType.DCOLON and found and found[-1].start == token.start:
            number = found.pop()
            text = number.text + next(left).text.upper()
            token = Token(TokenType.NUMBER, text, number.line, number.col, number.start, number.end)  # noqa: PLW2901
        found.append(token)
    return found


def _check_apostrophes(tokens: Sequence[Token]) -> None:
    """Spark reads '' within a text as an apostrophe, and as nothing in former versions; so does who reads it here."""
    for token, after in pairwise(tokens):
        if token.token_type is after.token_type is TokenType.STRING and after.start == token.end + 1:
            raise ViewRefused(r"an apostrophe within a text is written \'", line=after.line, column=after.col)


def _check_signs(tokens: Sequence[Token]) -> None:
    for place, token in enumerate(tokens):
        is_unary = place == 0 or tokens[place - 1].token_type in _BEFORE_SIGN
        if token.token_type is not TokenType.PLUS or not is_unary:
            continue
        behind = next((each for each in tokens[place:] if each.token_type not in _SIGNS), None)
        if behind is not None and behind.token_type is TokenType.NUMBER:
            raise ViewRefused("a number has a sign + before it: leave it out", line=token.line, column=token.col)


def _with_pairs(tokens: Sequence[Token]) -> list[Token]:
    opening: dict[int, int] = {}
    opened: list[int] = []
    for place, token in enumerate(tokens):
        if token.token_type is TokenType.L_PAREN:
            opened.append(place)
        elif token.token_type is TokenType.R_PAREN and opened:
            begin = opened.pop()
            behind = tokens[place + 1].token_type if place + 1 < len(tokens) else TokenType.R_PAREN
            if begin and tokens[begin - 1].token_type is TokenType.NULLSAFE_EQ and behind in _BEHIND_VALUE:
                opening[begin] = place
    doubled = {*opening, *opening.values()}
    return [each for place, token in enumerate(tokens) for each in [token] * (2 if place in doubled else 1)]
