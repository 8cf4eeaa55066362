"""A place among the tokens of a statement, and the steps that every part of the grammar takes."""

from agent.sources.mysql.ddl.lexer import END, Token, TokenKind, Unreadable, words_of
from agent.sources.mysql.ddl.syntax import Literal, LiteralKind, TableName

_LITERALS = {
    TokenKind.STRING: LiteralKind.STRING,
    TokenKind.NUMBER: LiteralKind.NUMBER,
    TokenKind.HEX: LiteralKind.HEX,
    TokenKind.BITS: LiteralKind.BITS,
}
_NAMES = (TokenKind.WORD, TokenKind.NAME)
_OPENING = ("(", "[", "{")
_CLOSING = (")", "]", "}")


class Cursor:
    """Mutable: `at` moves on. `accept_*` say whether they did, the others raise `Unreadable`."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self.at = 0

    def peek(self, ahead: int = 0) -> Token:
        at = self.at + ahead
        return self._tokens[at] if at < len(self._tokens) else END

    def next(self) -> Token:
        token = self.peek()
        self.at += 1
        return token

    def since(self, at: int) -> list[Token]:
        """The tokens from a place up to this one."""
        return self._tokens[at : self.at]

    def is_end(self) -> bool:
        return self.peek().kind is TokenKind.END

    def sees(self, *words: str) -> bool:
        """Whether these keywords or signs come next."""
        return all(self.peek(ahead).word == word for ahead, word in enumerate(words))

    def sees_any(self, *words: str) -> bool:
        return self.peek().word in words

    def accept(self, *words: str) -> bool:
        """All of them, or none."""
        if not self.sees(*words):
            return False
        self.at += len(words)
        return True

    def accept_any(self, *words: str) -> str:
        """The one that came, or ''."""
        word = self.peek().word
        if word not in words:
            return ""
        self.at += 1
        return word

    def expect(self, *words: str) -> None:
        if not self.accept(*words):
            raise self.unreadable(f"expected {' '.join(words)}")

    def unreadable(self, why: str) -> Unreadable:
        token = self.peek()
        # a literal may be a value from a row
        found = token.text if token.kind in (TokenKind.WORD, TokenKind.SIGN, TokenKind.END) else "a literal or name"
        return Unreadable(f"{why} and found {found} as its word number {self.at + 1}")

    def name(self) -> str:
        """A name, or a keyword that is used as one."""
        token = self.peek()
        if token.kind not in (TokenKind.WORD, TokenKind.NAME):
            raise self.unreadable("expected a name")
        if any("\ud800" <= character <= "\udfff" or character > "\uffff" for character in token.text):
            raise Unreadable("a name has characters that names can't have")
        self.at += 1
        return token.text

    def name_or_text(self) -> str:
        """Charsets and engines are names, or texts in quotes."""
        if self.peek().kind is TokenKind.STRING:
            return self.next().text
        return self.name()

    def table(self) -> TableName:
        self.accept(".")  # ".t" is "t"
        name = self.name()
        if self.accept("."):
            return TableName(name, self.name())
        return TableName("", name)

    def column(self) -> str:
        """A column, of which the table may be named."""
        name = self.name()
        while self.accept("."):
            name = self.name()
        return name

    def skip_parentheses(self) -> None:
        """From an opening one to after its end."""
        depth = 0
        while True:
            token = self.next()
            if token.kind is TokenKind.END:
                raise Unreadable("a parenthesis is not closed")
            if token.word in _OPENING:
                depth += 1
            elif token.word in _CLOSING:
                depth -= 1
                if depth <= 0:
                    return

    def names_since(self, at: int) -> tuple[str, ...]:
        """Whatever may be a name between there and here, in lower case: keywords too, and what stands in texts, which
        can't be told from names in what information_schema shows."""
        names = {token.text.lower() for token in self.since(at) if token.kind in _NAMES}
        texts = (token.text.lower() for token in self.since(at) if token.kind is TokenKind.STRING)
        return tuple(sorted(names.union(*map(words_of, texts))))

    def sees_literal(self) -> bool:
        ahead = 0
        while self.peek(ahead).word in ("+", "-"):
            ahead += 1
        if self.peek(ahead).kind in _LITERALS:
            return True
        is_introducer = self.peek(ahead).word.startswith("_") or self.peek(ahead).word == "N"
        return is_introducer and self.peek(ahead + 1).kind in (TokenKind.STRING, TokenKind.HEX, TokenKind.BITS)

    def literal(self) -> Literal:
        sign = ""
        while mark := self.accept_any("+", "-"):
            sign = {"+": sign, "-": "" if sign else "-"}[mark]
        charset = ""
        if self.peek().kind is TokenKind.WORD and self.peek().text.startswith("_"):
            charset = self.next().text[1:].lower()
        token = self.next()
        if token.kind not in _LITERALS:
            self.at -= 1
            raise self.unreadable("expected a literal")
        text = token.text
        if token.kind is TokenKind.STRING:
            while self.peek().kind is TokenKind.STRING:
                text += self.next().text
        if sign and token.kind is not TokenKind.NUMBER:
            raise Unreadable("a sign stands before a literal that is no number")
        return Literal(_LITERALS[token.kind], sign + text, charset)
