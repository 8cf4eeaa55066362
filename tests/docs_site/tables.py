"""Tables of Markdown."""

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """
    >>> print(table(("code", "meaning"), [("1", "a defect")]), end="")
    | code | meaning |
    |---|---|
    | 1 | a defect |
    """
    lines = (head, ["---"] * len(head), *rows)
    return "".join(f"| {' | '.join(line)} |\n" if line[0] != "---" else f"|{'|'.join(line)}|\n" for line in lines)


def cell(text: str) -> str:
    """Words that are no Markdown, but for code, in one line.

    >>> cell("*a* <b>\\n| `c_*`")
    '\\\\*a\\\\* &lt;b&gt; \\\\| `c_*`'
    """
    parts = " ".join(text.split()).split("`")
    if not len(parts) % 2:  # a lone backtick
        parts = ["`".join(parts)]
    return "`".join(part.replace("|", "\\|") if is_code % 2 else _plain(part) for is_code, part in enumerate(parts))


def _plain(text: str) -> str:
    plain = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for sign in "\\*_|[]":
        plain = plain.replace(sign, f"\\{sign}")
    return plain
