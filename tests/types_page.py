"""The table of agent/TYPES.md, made from `agent.sources.mysql.types`: `python -m tests.types_page` writes it anew."""

from menura.types import ARROW_TYPES, lake_format

from agent.sources.mysql.types import FORMS, ColumnType, Form, Kind, arrow_format
from tests.servers import ROOT

PAGE = ROOT / "agent" / "TYPES.md"
BEGIN, END = "<!-- generated: python -m tests.types_page -->\n", "<!-- end -->\n"

_DELTA = {
    **{"l": "long", "f": "float", "g": "double", "u": "string", "z": "binary", "tdD": "date"},
    **{"tsu:": "timestamp_ntz", "tsu:UTC": "timestamp", "d:20,0": "decimal(20,0)"},
}


def _arrow(type_: ColumnType) -> str:
    format_ = arrow_format(type_)
    return "decimal128(p,s)" if format_.startswith("d:") else _arrow_name(*ARROW_TYPES[format_])


def _arrow_name(name: str, *takes: str) -> str:
    return f"{name}[{', '.join(takes)}]" if takes else name


def _lake(type_: ColumnType) -> str:
    format_ = arrow_format(type_)
    return "decimal(p,s)" if format_.startswith("d:") else _DELTA[lake_format(format_)]


def _line(form: Form) -> str:
    arrow = ", ".join(dict.fromkeys(map(_arrow, form.types)))
    lake = ", ".join(dict.fromkeys(map(_lake, form.types)))
    return f"| {form.source} | {arrow} | {lake} | {form.remark} |\n"


def table() -> str:
    head = "| source type | Arrow (wire, landing) | lake (Delta) | remarks |\n|---|---|---|---|\n"
    return head + "".join(map(_line, FORMS))


def page(text: str) -> str:
    """The page with its table made anew."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + table() + END + after


def missing() -> set[Kind]:
    """Kinds that no line of the table speaks of."""
    return set(Kind) - {type_.kind for form in FORMS for type_ in form.types}


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
