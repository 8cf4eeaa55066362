"""What a message says is to be done: the commands and statements in it, word for word."""

import re
import shlex

#: words that follow a command in a sentence
_COMMAND = re.compile(r"menura((?: (?!and\b|or\b|then\b|shows\b|runs\b)[\w'`-]+(?:\.[\w'`-]+)*)+)")
_STATEMENT = re.compile(
    r"(?:SET (?:GLOBAL|SESSION) [a-z_]+ = '?\w+'?|GRANT [^;']+ TO '[^']+'@'[^']+'|ALTER TABLE \S+\.\S+ [^;]+)"
)


def commands(message: str) -> list[list[str]]:
    """The commands that a message names, as a shell splits them.

    >>> commands("Run: menura sync stop s d.t and then menura sync start s d.t --from dump.")
    [['sync', 'stop', 's', 'd.t'], ['sync', 'start', 's', 'd.t', '--from', 'dump']]
    """
    found = [words.strip().rstrip(".") for words in _COMMAND.findall(message)]
    return [shlex.split(words.rstrip("`") if words.count("`") % 2 else words) for words in found]


def statements(message: str) -> list[str]:
    """The statements for the server that a message names."""
    return [found.rstrip(". ") for found in _STATEMENT.findall(message)]
