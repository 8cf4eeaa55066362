"""The tables of agent/TYPES.md, made from `types` of each kind of source: `python -m tests.types_page` writes them."""

from collections.abc import Iterable

from menura.types import ARROW_TYPES, lake_format

from agent.sources.mysql.types import FORMS, Kind, arrow_format
from agent.sources.postgresql import types as postgresql
from tests.servers import ROOT

PAGE = ROOT / "agent" / "TYPES.md"
BEGIN, END = "<!-- generated: python -m tests.types_page -->\n", "<!-- end -->\n"

_DELTA = {
    **{"b": "boolean", "l": "long", "f": "float", "g": "double", "u": "string", "z": "binary", "tdD": "date"},
    **{"tsu:": "timestamp_ntz", "tsu:UTC": "timestamp", "d:20,0": "decimal(20,0)"},
}


def _arrow(format_: str) -> str:
    return "decimal128(p,s)" if format_.startswith("d:") else _arrow_name(*ARROW_TYPES[format_])


def _arrow_name(name: str, *takes: str) -> str:
    return f"{name}[{', '.join(takes)}]" if takes else name.removesuffix("_")


def _lake(format_: str) -> str:
    return "decimal(p,s)" if format_.startswith("d:") else _DELTA[lake_format(format_)]


def _line(source: str, formats: list[str], remark: str) -> str:
    arrow = ", ".join(dict.fromkeys(map(_arrow, formats))) or "-"
    lake = ", ".join(dict.fromkeys(map(_lake, formats))) or "-"
    return f"| {source} | {arrow} | {lake} | {remark} |\n"


def _table(lines: Iterable[str]) -> str:
    head = "| source type | Arrow (wire, landing) | lake (Delta) | remarks |\n|---|---|---|---|\n"
    return head + "".join(lines)


def tables() -> list[str]:
    """In the order of the page."""
    mysql = (_line(form.source, [arrow_format(type_) for type_ in form.types], form.remark) for form in FORMS)
    others = (
        _line(line.source, [postgresql.arrow_format(type_) for type_ in line.types], line.remark)
        for line in postgresql.LINES
    )
    return [_table(mysql), _table(others)]


def page(text: str) -> str:
    """The page with its tables made anew."""
    made = ""
    for table in tables():
        before, _, rest = text.partition(BEGIN)
        _, _, text = rest.partition(END)
        made += before + BEGIN + table + END
    return made + text


def missing() -> set[Kind | postgresql.Form]:
    """Kinds of MySQL, and forms of PostgreSQL, that no line of the tables speaks of."""
    kinds = set(Kind) - {type_.kind for form in FORMS for type_ in form.types}
    return kinds | (set(postgresql.Form) - {type_.form for line in postgresql.LINES for type_ in line.types})


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
