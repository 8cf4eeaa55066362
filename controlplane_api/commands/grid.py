"""Tables in a terminal: no word is broken, and where there is little room the less important columns give way.

Comes in: cells, and which columns may fold or give way. Goes out: lines for rich. Knows nothing of what the cells say.
"""

from collections.abc import Iterator, Sequence
from itertools import chain

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

#: A column whose text is longer than this folds only down to this width, where its words are not longer.
FOLDED = 20
#: with less room, the last column's text stands below the table
READABLE = 40
#: blanks and a rule between two columns, and at both ends of a line
_BETWEEN, _ENDS = 3, 2


class Grid:
    """Rows under headings, laid out when they are shown, for the width that there is then.

    A cell is one line. Columns in `folds` break their text between words. Columns in `gives_way` are left out, the
    first one first, until the others fit; a last line names them. Text of the column `below` then stands below the
    table, each with its row's cell of the column `name`. If all that is not enough, each row is a paragraph.
    """

    def __init__(
        self,
        *headings: str,
        right: Sequence[str] = (),
        folds: Sequence[str] = (),
        gives_way: Sequence[str] = (),
        below: str = "",
        name: str = "",
    ) -> None:
        self._headings = headings
        self._right = right
        self._folds = (*folds, below)
        self._gives_way = gives_way
        self._below = below
        self._name = name
        self._rows: list[dict[str, Text]] = []

    def add_row(self, *cells: str | Text) -> None:
        texts = (Text(cell) if isinstance(cell, str) else cell for cell in cells)
        self._rows.append(dict(zip(self._headings, texts, strict=True)))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        shown = list(self._headings)
        if self._fits(shown, width):
            yield self._table(shown, width)
            return
        below = [self._below] if self._below else []
        left_out: list[str] = []
        for heading in (*below, *self._gives_way):
            if not self._fits(shown, width):
                shown.remove(heading)
                left_out.append(heading)
        if self._fits(shown, width):
            yield self._table(shown, width)
        else:
            yield from self._paragraphs(shown)
        if hidden := [heading for heading in left_out if heading not in below]:
            yield Text(f"Left out: {', '.join(hidden)}. A wider terminal or --output json shows them.", style="dim")
        if below:
            yield from self._notes()

    def _fits(self, shown: Sequence[str], width: int) -> bool:
        return sum(map(self._least, shown)) + _BETWEEN * (len(shown) - 1) + _ENDS <= width

    def _least(self, heading: str) -> int:
        """The width below which a word would break, or a cell that does not fold."""
        widest = self._widest(heading)
        if heading not in self._folds:
            return max(widest, _longest_word(heading))
        words = chain([heading], (row[heading].plain for row in self._rows))
        return max(*map(_longest_word, words), 0, min(widest, READABLE if heading == self._below else FOLDED))

    def _widest(self, heading: str) -> int:
        return max((row[heading].cell_len for row in self._rows), default=0)

    def _table(self, shown: Sequence[str], width: int) -> Table:
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        spare = width - _ENDS - _BETWEEN * (len(shown) - 1) - sum(map(self._least, shown))
        for heading in shown:
            least = self._least(heading)
            more = max(0, min(spare, max(self._widest(heading), len(heading)) - least))
            spare -= more
            justify = "right" if heading in self._right else "left"
            table.add_column(heading, justify=justify, width=least + more)  # type: ignore[arg-type]
        for row in self._rows:
            table.add_row(*(row[heading] for heading in shown))
        return table

    def _paragraphs(self, shown: Sequence[str]) -> Iterator[RenderableType]:
        for row in self._rows:
            yield row[shown[0]]
            for heading in shown[1:]:
                if row[heading]:
                    yield Padding(Text.assemble((f"{heading} ", "dim"), row[heading]), (0, 0, 0, 2))

    def _notes(self) -> Iterator[RenderableType]:
        for row in self._rows:
            if row[self._below]:
                yield Text.assemble(row[self._name], ": ", row[self._below])


def _longest_word(text: str) -> int:
    return max((Text(word).cell_len for word in text.split()), default=0)
