"""Random queries of what views on a schedule may have, over the table `odd_values`; each is of its seed alone.

An expression is made of the type that is wanted, with the parentheses that Spark SQL's precedence needs, and now and
then with more. What the compiler refuses is refused for its reason, and whoever asks takes another seed.
"""

import random
from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

#: what is wanted: a kind of value
KINDS = ("text", "date", "local", "instant", "integer", "decimal", "double", "truth", "bytes")
_GROUPED = ("text", "integer", "truth", "date", "decimal", "bytes")
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
    "text": ["''", "'a'", "'A'", "'\\u00e4'", "'a b'", "'0'", "'a' 'b'", "NULL"],
    "date": ["DATE '0001-01-01'", "DATE '2024-02-29'", "DATE '9999-12-31'", "NULL"],
    "local": ["NULL"],
    "instant": ["NULL"],
    "integer": ["0", "1", "-1", "2", "2147483647", "2147483648", "NULL", "(-3)", "5L", "-7L", "0L"],
    "decimal": ["0.5", "-1.50", "0.00", "1.005", "99999.9", "NULL", "0.5BD", "3BD", ".25"],
    "double": ["CAST(0 AS DOUBLE)", "CAST(3 AS DOUBLE)", "-CAST(0 AS DOUBLE)", "NULL", "2D", "0.5D", "-1.5D", "1e2"],
    "truth": ["TRUE", "FALSE", "nullif(TRUE, TRUE)"],
    "bytes": ["NULL"],
}
_PATTERNS = ["'a%'", "'%'", "'_'", "'%b'", "''", "'A_'", "'%\\u00e4%'"]
_FRAMES = [
    "", "", " ROWS BETWEEN 2 PRECEDING AND CURRENT ROW", " ROWS BETWEEN 1 FOLLOWING AND 2 FOLLOWING",
    " ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING", " RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW",
]  # fmt: skip
_ORDERS = ["", " ASC", " DESC", " NULLS LAST", " NULLS FIRST", " DESC NULLS FIRST", " DESC NULLS LAST"]
_SETS = ["UNION", "UNION ALL", "INTERSECT", "EXCEPT", "INTERSECT ALL", "EXCEPT ALL"]
_JOINS = [
    "JOIN",
    "LEFT JOIN",
    "RIGHT JOIN",
    "FULL JOIN",
    "LEFT SEMI JOIN",
    "LEFT ANTI JOIN",
    "INNER JOIN",
    "CROSS JOIN",
]
#: how often parentheses stand where none are needed
_NEEDLESS = 0.15


class Level(IntEnum):
    """How strongly a part's outermost word binds."""

    ANY = 0
    OR = 1
    AND = 2
    NOT = 3
    COMPARED = 4
    ADDED = 5
    MULTIPLIED = 6
    SIGNED = 7
    ATOM = 8


class Part(NamedTuple):
    text: str
    level: Level = Level.ATOM


class Generated:
    """`o`: the alias whose columns are meant."""

    def __init__(self, seed: int) -> None:
        self.choose = random.Random(seed)
        #: whether columns stand with their table; a query of one table may leave it out
        self._is_named = True

    def of(self, kind: str, deep: int, alias: str = "o", level: Level = Level.ANY) -> str:
        """To stand where what binds less than `level` needs parentheses."""
        text, own = self._part(kind, deep, alias)
        return f"({text})" if own < level or self.choose.random() < _NEEDLESS else text

    def _part(self, kind: str, deep: int, alias: str) -> Part:
        choose = self.choose
        if deep <= 0 or choose.random() < 0.2:
            if choose.random() < 0.75:
                return Part(self._column(alias, choose.choice(_COLUMNS[kind])))
            literal = choose.choice(_LITERALS[kind])
            return Part(literal, Level.SIGNED if literal.startswith("-") else Level.ATOM)
        if choose.random() < 0.3:
            return self._any(kind, deep - 1, alias)
        made: dict[str, Callable[[int, str], Part]] = {
            "text": self._text, "date": self._date, "integer": self._integer, "decimal": self._decimal,
            "double": self._double, "truth": self._truth,
        }  # fmt: skip
        return made[kind](deep - 1, alias) if kind in made else self._any(kind, deep - 1, alias)

    def _column(self, alias: str, name: str) -> str:
        return f"{alias}.{name}" if self._is_named else name

    def _any(self, kind: str, deep: int, alias: str) -> Part:
        """Of any type."""
        one, two = (self.of(self._near(kind), deep, alias) for _ in range(2))
        whens = [f"WHEN {self.of('truth', deep, alias)} THEN {each}" for each in (one, two)]
        return Part(
            self.choose.choice(
                [
                    f"coalesce({one}, {two})",
                    f"nullif({one}, {two})",
                    f"CASE {whens[0]} ELSE {two} END",
                    f"CASE {' '.join(whens)}{self.choose.choice(['', ' ELSE NULL'])} END",
                    f"CASE {self.of('integer', deep, alias)} WHEN {self.of('integer', deep, alias)} THEN {one}"
                    f" WHEN 1 THEN {two} END",
                    f"({one})",
                ]
            )
        )

    def _near(self, kind: str) -> str:
        """Integers and decimals stand together."""
        return "integer" if kind == "decimal" and self.choose.random() < 0.4 else kind

    def _text(self, deep: int, alias: str) -> Part:
        choose = self.choose
        kind = choose.choice(["date", "integer", "text"])
        if choose.random() < 0.5:
            word = choose.choice(["CAST", "CAST", "TRY_CAST"])
            return Part(f"{word}({self.of(kind, deep, alias)} AS STRING)")
        one, two = self.of("text", deep, alias, Level.ADDED), self.of("text", deep, alias, Level.MULTIPLIED)
        return choose.choice([Part(f"{one} || {two}", Level.ADDED), Part(f"concat({one}, {two})")])

    def _date(self, deep: int, alias: str) -> Part:
        kind = self.choose.choice(["local", "date"])
        form = self.choose.choice(["CAST({} AS DATE)", "to_date({})", "DATE({})"])
        return Part(form.format(self.of(kind, deep, alias)))

    def _signed(self, kind: str, deep: int, alias: str) -> Part:
        sign = self.choose.choice(["-", "- ", "-", "+"])
        inner = self.of(kind, deep, alias, Level.SIGNED)
        return Part(f"{sign} {inner}" if inner.startswith(("-", "+")) else f"{sign}{inner}", Level.SIGNED)

    def _arithmetic(self, kinds: tuple[str, str], deep: int, alias: str) -> Part:
        """Of numbers; at the left what binds as strongly needs no parentheses."""
        sign = self.choose.choice("+-*")
        level = Level.MULTIPLIED if sign == "*" else Level.ADDED
        one = self.of(kinds[0], deep, alias, level)
        return Part(f"{one} {sign} {self.of(kinds[1], deep, alias, Level(level + 1))}", level)

    def _integer(self, deep: int, alias: str) -> Part:
        choose = self.choose
        part = choose.choice(["year", "month", "day"])
        return choose.choice(
            [
                lambda: self._arithmetic(("integer", "integer"), deep, alias),
                lambda: self._arithmetic(("integer", "integer"), deep, alias),
                lambda: self._signed("integer", deep, alias),
                lambda: Part(f"abs({self.of('integer', deep, alias)})"),
                lambda: Part(f"{part}({self.of(choose.choice(['date', 'local']), deep, alias)})"),
                lambda: Part(f"length({self.of('text', deep, alias)})"),
                lambda: Part(f"CAST({self.of(choose.choice(['truth', 'integer']), deep, alias)} AS BIGINT)"),
            ]
        )()

    def _decimal(self, deep: int, alias: str) -> Part:
        choose = self.choose
        if choose.random() < 0.7:
            return self._arithmetic(("decimal", self._near("decimal")), deep, alias)
        one = self.of("decimal", deep, alias)
        cast = Part(f"CAST({one} AS DECIMAL({choose.choice(['38,10', '20,5', '30,2', '12,4'])}))")
        return choose.choice([self._signed("decimal", deep, alias), Part(f"abs({one})"), cast])

    def _double(self, deep: int, alias: str) -> Part:
        choose = self.choose
        return choose.choice(
            [
                lambda: self._arithmetic(("double", "double"), deep, alias),
                lambda: self._signed("double", deep, alias),
                lambda: Part(f"abs({self.of('double', deep, alias)})"),
                lambda: Part(f"CAST({self._column(alias, 'rough')} AS DOUBLE)"),
                lambda: Part(f"CAST({self.of('integer', deep, alias)} AS DOUBLE)"),
            ]
        )()

    def _truth(self, deep: int, alias: str) -> Part:
        choose = self.choose
        kind = choose.choice(KINDS)
        # now and then a comparison of a comparison, which Spark SQL reads from the left
        level = Level.COMPARED if choose.random() < 0.02 else Level.ADDED
        one = self.of(self._near(kind), deep, alias, level)
        two, three = (self.of(self._near(kind), deep, alias, Level.ADDED) for _ in range(2))
        a, b = self.of("truth", deep, alias, Level.AND), self.of("truth", deep, alias, Level.NOT)
        word, negated = choose.choice(["AND", "OR"]), choose.choice(["", "NOT "])
        if word == "OR":
            a, b = self.of("truth", deep, alias, Level.OR), self.of("truth", deep, alias, Level.AND)
        sign = choose.choice(["=", "<>", "!=", "==", "<", "<=", ">", ">=", "<=>"])
        true = choose.choice(["TRUE", "FALSE"])
        return choose.choice(
            [
                Part(f"{one} {sign} {two}", Level.COMPARED),
                Part(f"{one} {negated}IN ({two}, {three})", Level.COMPARED),
                Part(f"{one} {negated}BETWEEN {two} AND {three}", Level.COMPARED),
                Part(f"{a} {word} {b}", Level.AND if word == "AND" else Level.OR),
                Part(f"NOT {self.of('truth', deep, alias, Level.NOT)}", Level.NOT),
                Part(f"{one} IS {negated}NULL", Level.COMPARED),
                Part(f"{self.of('truth', deep, alias, Level.ADDED)} IS {negated}{true}", Level.COMPARED),
                Part(
                    f"{self.of('text', deep, alias, Level.ADDED)} {negated}LIKE {choose.choice(_PATTERNS)}",
                    Level.COMPARED,
                ),
            ]
        )

    def query(self) -> str:
        """Of the table {odd}."""
        return self.choose.choice(
            [self._values, self._values, self._windows, self._groups, self._groups, self._having, self._union,
             self._joined, self._sub_queries, self._first, self._distinct, self._many_joined]
        )()  # fmt: skip

    def _kinds(self, count: int) -> list[str]:
        return self.choose.choices(KINDS, k=count)

    def _where(self) -> str:
        return f" WHERE {self.of('truth', 3)}" if self.choose.random() < 0.4 else ""

    def _names(self, count: int) -> list[str]:
        """Of columns of the query: now and then those of the table's own."""
        if self.choose.random() < 0.8:
            return [f"c{place}" for place in range(count)]
        return self.choose.sample(["few", "small", "word", "yes", "price", "born"], count)

    def _values(self) -> str:
        self._is_named = self.choose.random() < 0.7
        names = self._names(3)
        values = [f"{self.of(kind, 3)} AS {name}" for name, kind in zip(names, self._kinds(3), strict=True)]
        return f"SELECT o.id, {', '.join(values)} FROM {{odd}} o{self._where()}"

    def _distinct(self) -> str:
        kinds = [self.choose.choice(_GROUPED) for _ in range(2)]
        values = [f"{self.of(kind, 2)} AS c{place}" for place, kind in enumerate(kinds)]
        return f"SELECT DISTINCT {', '.join(values)} FROM {{odd}} o{self._where()}"

    def _over(self) -> str:
        choose = self.choose
        part = f"PARTITION BY {self.of(choose.choice(['text', 'integer', 'truth', 'date', 'decimal']), 1)} "
        order = f"{self.of(choose.choice(KINDS), 1)}{choose.choice(_ORDERS)}"
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
                + choose.choice(["", "", " + 1", " * 0.5"])
                + f" AS c{place}"
            )
        return f"SELECT o.id, {', '.join(values)} FROM {{odd}} o{self._where()}"

    def _summed(self, alias: str = "o") -> str:
        """Spark's avg of integers beyond 2^53 depends on the order of rows."""
        choose = self.choose
        offered = [self.of("decimal", 1, alias), f"{alias}.few", f"{self.of('text', 1, alias)} || 'a'",
                   f"{alias}.small * 3"]  # fmt: skip
        found = choose.choice(offered)
        return f"length({found})" if "||" in found else found

    def _aggregate(self, alias: str = "o") -> str:
        choose = self.choose
        name = choose.choice(["count", "min", "max", "sum", "avg", "count(DISTINCT", "count(*)"])
        if name == "count(*)":
            return name
        if name in ("sum", "avg"):
            return f"{name}({self._summed(alias)})"
        value = self.of(choose.choice(KINDS), 2, alias)
        return f"count(DISTINCT {value})" if name.endswith("DISTINCT") else f"{name}({value})"

    def _groups(self) -> str:
        choose = self.choose
        groups = [self.of(choose.choice(_GROUPED), 2) for _ in range(2)]
        chosen = [f"{group} AS g{place}" for place, group in enumerate(groups)]
        chosen += [f"{self._aggregate()} AS a{place}" for place in range(2)]
        if choose.random() < 0.3:
            chosen.append(f"{choose.choice(['sum', 'max', 'count'])}(count(*)) OVER (ORDER BY g0 NULLS LAST, g1) AS w")
            chosen[-1] = chosen[-1].replace("g0", groups[0]).replace("g1", groups[1])
        having = choose.choice(["", f" HAVING {self._aggregate()} IS NOT NULL AND count(*) > 1"])
        named = ", ".join(choose.choice([groups, groups, groups, ["g0", "g1"], ["1", "2"]]))
        return f"SELECT {', '.join(chosen)} FROM {{odd}} o{self._where()} GROUP BY {named}{having}"

    def _having(self) -> str:
        """HAVING with sub-queries that name the groups, and sub-queries whose HAVING names the query around them."""
        choose = self.choose
        group, other = choose.sample(["few", "small", "yes", "price"], 2)
        within = {"few": "few", "small": "small", "yes": "no", "price": "wide"}[group]
        count = choose.choice(["count(*)", "max(o.few)", "min(o.small)", "count(o.word)"])
        same = choose.choice([f"q.{group} = o.{group}", f"q.{within} = o.{group}", f"q.{group} <=> o.{group}"])
        value = f"(SELECT {choose.choice(['max', 'min', 'count'])}(q.few) FROM {{odd}} q WHERE {same})"
        exists = f"EXISTS (SELECT * FROM {{odd}} q WHERE {same} AND {self.of('truth', 1, 'q', Level.AND)})"
        many = f"EXISTS (SELECT 1 FROM {{odd}} q WHERE {same} GROUP BY q.{other} HAVING count(*) > 1)"
        inner = f"(SELECT {self._aggregate('q')} FROM {{odd}} q HAVING count(*) > o.{group})"
        having = choose.choice(
            [
                f"{count} {choose.choice(['=', '<', '>=', '<>'])} {value}",
                f"{choose.choice(['', 'NOT '])}{exists}",
                f"{exists} OR {count} > 3",
                f"NOT {many} AND count(*) > 0",
                many,
                f"{count} {choose.choice(['IN', 'NOT IN'])} (SELECT q.few FROM {{odd}} q WHERE {same})",
                f"{count} {choose.choice(['IN', 'NOT IN'])} (SELECT q.few FROM {{odd}} q WHERE q.yes)",
                f"{value} IS {choose.choice(['', 'NOT '])}NULL",
            ]
        )
        if choose.random() < 0.2:
            return f"SELECT o.id, {inner} AS v FROM {{odd}} o{self._where()}"
        chosen = choose.choice([f"{value} AS v", f"{count} AS v", f"CASE WHEN {exists} THEN {count} ELSE 0 END AS v"])
        return f"SELECT o.{group} AS g0, {chosen} FROM {{odd}} o{self._where()} GROUP BY o.{group} HAVING {having}"

    def _union(self) -> str:
        choose = self.choose
        kinds = [choose.choice(["text", "integer", "decimal", "date", "truth"]) for _ in range(2)]
        sides = [
            "SELECT " + ", ".join(f"{self.of(self._near(kind), 2)} AS c{place}" for place, kind in enumerate(kinds))
            + f" FROM {{odd}} o{self._where()}"
            for _ in range(choose.choice([2, 2, 3]))
        ]  # fmt: skip
        found = sides[0]
        for side in sides[1:]:
            found += f" {choose.choice(_SETS)} {side}"
        if choose.random() < 0.2:
            found += f" ORDER BY c0{choose.choice(_ORDERS)}, c1 LIMIT {choose.randrange(1, 12)}"
        return found

    def _joined(self) -> str:
        choose = self.choose
        word = choose.choice(_JOINS)
        kind = self.choose.choice(["text", "integer", "decimal", "double", "truth", "date", "bytes"])
        on = f"{self.of(self._near(kind), 1, level=Level.ADDED)} {choose.choice(['=', '<=>', '<'])} "
        on += self.of(kind, 1, "q", Level.ADDED)
        on += choose.choice(["", f" AND {self.of('truth', 2, 'q', Level.NOT)}", " AND o.small = q.few"])
        columns = (
            "o.id"
            if word.startswith(("LEFT SEMI", "LEFT ANTI"))
            else f"o.id, q.id AS q, {self.of('decimal', 1, 'q')} AS v"
        )
        on = f" WHERE {on}" if word == "CROSS JOIN" else f" ON {on}"
        return f"SELECT {columns} FROM {{odd}} o {word} {{odd}} q{on}"

    def _many_joined(self) -> str:
        """Three tables, also by commas."""
        choose = self.choose
        first, second = (choose.choice([*_JOINS[:4], "INNER JOIN", ","]) for _ in range(2))
        text, left = "FROM {odd} o", ["o"]
        conditions = []
        for word, alias in ((first, "q"), (second, "r")):
            condition = f"{alias}.{choose.choice(['few', 'id'])} = {choose.choice(left)}.{choose.choice(['few', 'id'])}"
            condition += choose.choice(["", f" AND {self.of('truth', 1, alias, Level.NOT)}"])
            text += f"{word} {{odd}} {alias}" if word == "," else f" {word} {{odd}} {alias} ON {condition}"
            conditions += [condition] if word == "," else []
            left.append(alias)
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        return f"SELECT o.id, q.id AS q, r.id AS r {text}{where}"

    def _sub_queries(self) -> str:
        choose = self.choose
        same = f"q.{choose.choice(['few', 'small'])} = o.{choose.choice(['few', 'small'])}"
        name, column = choose.choice(["max", "min", "sum", "count", "avg"]), choose.choice(["price", "few", "wide"])
        value = f"(SELECT {name}(q.{column}) FROM {{odd}} q WHERE {same})"
        kind = choose.choice(["integer", "text", "decimal", "date"])
        within = f"{self.of(kind, 1, level=Level.ADDED)} {choose.choice(['IN', 'NOT IN'])}"
        within += f" (SELECT {self.of(kind, 1, 'q')} FROM {{odd}} q"
        within += f" WHERE {choose.choice(['q.yes', same, self.of('truth', 2, 'q')])})"
        inner = self.of("truth", 2, "q", Level.NOT)
        exists = f"{choose.choice(['', 'NOT '])}EXISTS (SELECT * FROM {{odd}} q WHERE {same} AND {inner})"
        where = choose.choice([within, exists, f"{within} OR {exists}", f"({within}) AND NOT ({exists})",
                               f"NOT {within} AND {exists}", f"{value} > 1"])  # fmt: skip
        when = choose.choice([within, exists, f"{within} OR o.yes"])
        return f"SELECT o.id, {value} AS v, CASE WHEN {when} THEN 1 ELSE 0 END AS w FROM {{odd}} o WHERE {where}"

    def _first(self) -> str:
        """Rows by an order, of a name of WITH or of the table itself."""
        choose = self.choose
        values = [f"{self.of(kind, 2)} AS c{place}" for place, kind in enumerate(self._kinds(2))]
        limit = f"LIMIT {choose.randrange(1, 12)}"
        if choose.random() < 0.5:
            by = [
                choose.choice([f"c{place}", f"c{place}", f"(c{place})", "o.id", str(place + 2)]) for place in range(2)
            ]
            order = ", ".join(f"{each}{choose.choice(_ORDERS)}" for each in by)
            return f"SELECT o.id, {', '.join(values)} FROM {{odd}} o{self._where()} ORDER BY {order}, o.id {limit}"
        order = ", ".join(f"c{place}{choose.choice(_ORDERS)}" for place in range(2))
        return (
            f"WITH w AS (SELECT o.id, {', '.join(values)} FROM {{odd}} o{self._where()})"
            f" SELECT w.id, w.c0, w.c1 FROM w ORDER BY {order}, id {limit}"
        )
