"""Random queries of what views on a schedule may have, over the table `odd_values`; each is of its seed alone.

An expression is made of the type that is wanted. What the compiler refuses is refused for its reason, and whoever asks
takes another seed.
"""

import random
from collections.abc import Callable

#: what is wanted: a kind of value
KINDS = ("text", "date", "local", "instant", "integer", "decimal", "double", "truth", "bytes")
_COLUMNS = {
    "text": ["word", "other"],
    "date": ["born", "died"],
    "local": ["at"],
    "instant": ["seen"],
    "integer": ["small", "few", "small", "few", "large", "id"],
    "decimal": ["price", "wide", "price", "whole", "part"],
    "double": ["real"],
    "truth": ["yes", "no"],
    "bytes": ["raw"],
}
_LITERALS = {
    "text": ["''", "'a'", "'A'", "'\\u00e4'", "'a b'", "'0'", "NULL"],
    "date": ["DATE '0001-01-01'", "DATE '2024-02-29'", "DATE '9999-12-31'", "NULL"],
    "local": ["NULL"],
    "instant": ["NULL"],
    "integer": ["0", "1", "-1", "2", "2147483647", "2147483648", "NULL", "(-3)"],
    "decimal": ["0.5", "-1.50", "0.00", "1.005", "99999.9", "NULL"],
    "double": ["CAST(0 AS DOUBLE)", "CAST(3 AS DOUBLE)", "-CAST(0 AS DOUBLE)", "NULL"],
    "truth": ["TRUE", "FALSE", "nullif(TRUE, TRUE)"],
    "bytes": ["NULL"],
}
_PATTERNS = ["'a%'", "'%'", "'_'", "'%b'", "''", "'A_'", "'%\\u00e4%'"]
_FRAMES = [
    "", "", " ROWS BETWEEN 2 PRECEDING AND CURRENT ROW", " ROWS BETWEEN 1 FOLLOWING AND 2 FOLLOWING",
    " ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING", " RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW",
]  # fmt: skip


class Generated:
    """`o`: the alias whose columns are meant."""

    def __init__(self, seed: int) -> None:
        self.choose = random.Random(seed)

    def of(self, kind: str, deep: int, alias: str = "o") -> str:
        choose = self.choose
        if deep <= 0 or choose.random() < 0.2:
            if choose.random() < 0.75:
                return f"{alias}.{choose.choice(_COLUMNS[kind])}"
            return choose.choice(_LITERALS[kind])
        if choose.random() < 0.3:
            return self._any(kind, deep - 1, alias)
        made: dict[str, Callable[[int, str], str]] = {
            "text": self._text, "date": self._date, "integer": self._integer, "decimal": self._decimal,
            "double": self._double, "truth": self._truth,
        }  # fmt: skip
        return made[kind](deep - 1, alias) if kind in made else self._any(kind, deep - 1, alias)

    def _any(self, kind: str, deep: int, alias: str) -> str:
        """Of any type."""
        one, two = (self.of(self._near(kind), deep, alias) for _ in range(2))
        return self.choose.choice(
            [
                f"coalesce({one}, {two})",
                f"nullif({one}, {two})",
                f"CASE WHEN {self.of('truth', deep, alias)} THEN {one} ELSE {two} END",
                f"CASE {self.of('integer', deep, alias)} WHEN {self.of('integer', deep, alias)} THEN {one}"
                f" WHEN 1 THEN {two} END",
                f"({one})",
            ]
        )

    def _near(self, kind: str) -> str:
        """Integers and decimals stand together."""
        return "integer" if kind == "decimal" and self.choose.random() < 0.4 else kind

    def _text(self, deep: int, alias: str) -> str:
        kind = self.choose.choice(["date", "integer", "text"])
        if self.choose.random() < 0.5:
            return f"CAST({self.of(kind, deep, alias)} AS STRING)"
        return f"({self.of('text', deep, alias)} || {self.of('text', deep, alias)})"

    def _date(self, deep: int, alias: str) -> str:
        kind = self.choose.choice(["local", "date"])
        return self.choose.choice(["CAST({} AS DATE)", "to_date({})", "DATE({})"]).format(self.of(kind, deep, alias))

    def _integer(self, deep: int, alias: str) -> str:
        choose = self.choose
        one, two = (self.of("integer", deep, alias) for _ in range(2))
        part = choose.choice(["year", "month", "day"])
        return choose.choice(
            [
                f"({one} {choose.choice('+-*')} {two})",
                f"(-{one})",
                f"abs({one})",
                f"{part}({self.of(choose.choice(['date', 'local']), deep, alias)})",
                f"length({self.of('text', deep, alias)})",
                f"CAST({self.of('truth', deep, alias)} AS BIGINT)",
            ]
        )

    def _decimal(self, deep: int, alias: str) -> str:
        choose = self.choose
        one, two = self.of("decimal", deep, alias), self.of(self._near("decimal"), deep, alias)
        if choose.random() < 0.3:
            return choose.choice([f"(-{one})", f"abs({one})", f"CAST({one} AS DECIMAL(38,10))"])
        return f"({one} {choose.choice('+-*')} {two})"

    def _double(self, deep: int, alias: str) -> str:
        choose = self.choose
        one, two = (self.of("double", deep, alias) for _ in range(2))
        return choose.choice(
            [
                f"({one} {choose.choice('+-*')} {two})",
                f"(-{one})",
                f"abs({one})",
                f"CAST({alias}.rough AS DOUBLE)",
                f"CAST({self.of('integer', deep, alias)} AS DOUBLE)",
            ]
        )

    def _truth(self, deep: int, alias: str) -> str:
        choose = self.choose
        kind = choose.choice(KINDS)
        one, two, three = (self.of(self._near(kind), deep, alias) for _ in range(3))
        a, b = (self.of("truth", deep, alias) for _ in range(2))
        return choose.choice(
            [
                f"({one} {choose.choice(['=', '<>', '<', '<=', '>', '>=', '<=>'])} {two})",
                f"({one} {choose.choice(['IN', 'NOT IN'])} ({two}, {three}))",
                f"({one} {choose.choice(['', 'NOT '])}BETWEEN {two} AND {three})",
                f"({a} {choose.choice(['AND', 'OR'])} {b})",
                f"(NOT {a})",
                f"({one} IS {choose.choice(['', 'NOT '])}NULL)",
                f"({a} IS {choose.choice(['', 'NOT '])}{choose.choice(['TRUE', 'FALSE'])})",
                f"({self.of('text', deep, alias)}{choose.choice(['', ' NOT'])} LIKE {choose.choice(_PATTERNS)})",
            ]
        )

    def query(self) -> str:
        """Of the table {odd}."""
        return self.choose.choice(
            [self._values, self._values, self._windows, self._groups, self._union, self._joined, self._sub_queries,
             self._first]
        )()  # fmt: skip

    def _kinds(self, count: int) -> list[str]:
        return self.choose.choices(KINDS, k=count)

    def _where(self) -> str:
        return f" WHERE {self.of('truth', 3)}" if self.choose.random() < 0.4 else ""

    def _values(self) -> str:
        values = [f"{self.of(kind, 3)} AS c{place}" for place, kind in enumerate(self._kinds(3))]
        return f"SELECT o.id, {', '.join(values)} FROM {{odd}} o{self._where()}"

    def _over(self) -> str:
        choose = self.choose
        part = f"PARTITION BY {self.of(choose.choice(['text', 'integer', 'truth', 'date', 'decimal']), 1)} "
        order = f"{self.of(choose.choice(KINDS), 1)}{choose.choice(['', ' DESC', ' NULLS LAST', ' DESC NULLS FIRST'])}"
        return f"{choose.choice(['', part])}ORDER BY {order}, o.id"

    def _windows(self) -> str:
        values = []
        for place in range(3):
            choose = self.choose
            kind = choose.choice(KINDS)
            value = self.of(kind, 2)
            frame = choose.choice(_FRAMES)
            number = self._summed()
            default = choose.choice(["", f", {choose.randrange(3)}", f", 1, {self.of(self._near(kind), 1)}"])
            values.append(
                choose.choice(
                    [
                        f"{choose.choice(['row_number', 'rank', 'dense_rank'])}() OVER ({self._over()})",
                        f"{choose.choice(['lag', 'lead'])}({value}{default}) OVER ({self._over()})",
                        f"{choose.choice(['first_value', 'last_value', 'min', 'max', 'count'])}({value})"
                        f" OVER ({self._over()}{frame})",
                        f"{choose.choice(['sum', 'avg'])}({number}) OVER ({self._over()}{frame})",
                    ]
                )
                + f" AS c{place}"
            )
        return f"SELECT o.id, {', '.join(values)} FROM {{odd}} o{self._where()}"

    def _summed(self) -> str:
        """Spark's avg of integers beyond 2^53 depends on the order of rows."""
        choose = self.choose
        offered = [self.of("decimal", 1), "o.few", f"{self.of('text', 1)} || 'a'", "o.small * 3"]
        found = choose.choice(offered)
        return f"length({found})" if "||" in found else found

    def _aggregate(self) -> str:
        choose = self.choose
        name = choose.choice(["count", "min", "max", "sum", "avg", "count(DISTINCT", "count(*)"])
        if name == "count(*)":
            return name
        if name in ("sum", "avg"):
            return f"{name}({self._summed()})"
        value = self.of(choose.choice(KINDS), 2)
        return f"count(DISTINCT {value})" if name.endswith("DISTINCT") else f"{name}({value})"

    def _groups(self) -> str:
        choose = self.choose
        groups = [self.of(choose.choice(["text", "integer", "truth", "date", "decimal", "bytes"]), 2) for _ in range(2)]
        chosen = [f"{group} AS g{place}" for place, group in enumerate(groups)]
        chosen += [f"{self._aggregate()} AS a{place}" for place in range(2)]
        having = choose.choice(["", f" HAVING {self._aggregate()} IS NOT NULL AND count(*) > 1"])
        return f"SELECT {', '.join(chosen)} FROM {{odd}} o{self._where()} GROUP BY {', '.join(groups)}{having}"

    def _union(self) -> str:
        choose = self.choose
        kinds = [choose.choice(["text", "integer", "decimal", "date", "truth"]) for _ in range(2)]
        sides = [
            "SELECT " + ", ".join(f"{self.of(self._near(kind), 2)} AS c{place}" for place, kind in enumerate(kinds))
            + f" FROM {{odd}} o{self._where()}"
            for _ in range(2)
        ]  # fmt: skip
        word = choose.choice(["UNION", "UNION ALL", "INTERSECT", "EXCEPT", "INTERSECT ALL", "EXCEPT ALL"])
        return f" {word} ".join(sides)

    def _joined(self) -> str:
        choose = self.choose
        kind = self.choose.choice(["text", "integer", "decimal", "double", "truth", "date", "bytes"])
        on = f"{self.of(self._near(kind), 1)} {choose.choice(['=', '<=>', '<'])} {self.of(kind, 1, 'q')}"
        on += choose.choice(["", f" AND {self.of('truth', 2, 'q')}", " AND o.small = q.few"])
        word = choose.choice(["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN"])
        columns = (
            "o.id"
            if word.startswith(("LEFT SEMI", "LEFT ANTI"))
            else f"o.id, q.id AS q, {self.of('decimal', 1, 'q')} AS v"
        )
        return f"SELECT {columns} FROM {{odd}} o {word} {{odd}} q ON {on}"

    def _sub_queries(self) -> str:
        choose = self.choose
        same = f"q.{choose.choice(['few', 'small'])} = o.{choose.choice(['few', 'small'])}"
        name, column = choose.choice(["max", "min", "sum", "count", "avg"]), choose.choice(["price", "few", "wide"])
        value = f"(SELECT {name}(q.{column}) FROM {{odd}} q WHERE {same})"
        kind = choose.choice(["integer", "text", "decimal", "date"])
        within = f"{self.of(kind, 1)} {choose.choice(['IN', 'NOT IN'])} (SELECT {self.of(kind, 1, 'q')} FROM {{odd}} q"
        within += f" WHERE {choose.choice(['q.yes', same, self.of('truth', 2, 'q')])})"
        exists = (
            f"{choose.choice(['', 'NOT '])}EXISTS (SELECT * FROM {{odd}} q WHERE {same} AND {self.of('truth', 2, 'q')})"
        )
        where = choose.choice([within, exists, f"{within} OR {exists}", f"({within}) AND NOT ({exists})"])
        when = choose.choice([within, exists, f"{within} OR o.yes"])
        return f"SELECT o.id, {value} AS v, CASE WHEN {when} THEN 1 ELSE 0 END AS w FROM {{odd}} o WHERE {where}"

    def _first(self) -> str:
        choose = self.choose
        order = ", ".join(
            f"c{place}{choose.choice(['', ' DESC', ' NULLS LAST', ' DESC NULLS FIRST'])}" for place in range(2)
        )
        values = [f"{self.of(kind, 2)} AS c{place}" for place, kind in enumerate(self._kinds(2))]
        return (
            f"WITH w AS (SELECT o.id, {', '.join(values)} FROM {{odd}} o{self._where()})"
            f" SELECT w.id, w.c0, w.c1 FROM w ORDER BY {order}, id LIMIT {choose.randrange(1, 12)}"
        )
