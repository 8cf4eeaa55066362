"""Steps of DDL on PostgreSQL."""

from tests.churn.kind import Dice, Names, Step
from tests.churn.postgresql.tables import ID, partitioned

_NUMBERS = ["smallint", "int", "bigint", "double precision", "numeric(12,4)", "numeric(14,2)"]
_MOMENTS = ["timestamp", "timestamp(0)", "timestamp(3)", "timestamptz", "timestamptz(3)", "date"]
#: by table and column, what it may become, and by which expression
_CONVERSIONS: dict[str, dict[str, list[tuple[str, str]]]] = {
    "numbers": {
        "small": [(kind, f"small::{kind}") for kind in _NUMBERS],
        "price": [(kind, f"price::{kind}") for kind in _NUMBERS],
        "ratio": [(kind, f"ratio::{kind}") for kind in [*_NUMBERS, "real"]],
        "whole": [(kind, f"whole::{kind}") for kind in _NUMBERS],
    },
    "moments": {
        "ts": [(kind, f"ts::{kind}") for kind in _MOMENTS],
        "tz": [(kind, f"tz::{kind}") for kind in _MOMENTS],
        "d": [(kind, f"d::{kind}") for kind in _MOMENTS],
    },
    "words": {
        "c": [(kind, f"left(c::text, 4)::{kind}") for kind in ("char(10)", "char(4)", "varchar(10)", "text")],
        "txt": [(kind, f"left(txt, 12)::{kind}") for kind in ("text", "varchar(12)", "varchar(40)")],
        "v": [(kind, f"left(v, 5)::{kind}") for kind in ("varchar(40)", "varchar(5)", "text", "char(8)")],
    },
}
_WIDER = {
    "n": ["smallint", "int", "bigint"],
    "f": ["real", "double precision"],
    "v": ["varchar(10)", "varchar(30)", "varchar(60)", "text"],
    "p": ["numeric(6,2)", "numeric(10,2)", "numeric(14,4)"],
}
_TYPES = (
    "int",
    "varchar(20)",
    "double precision",
    "date",
    "bytea",
    "numeric(9,3)",
    "int NOT NULL DEFAULT 4",
    "text DEFAULT 'as ever'",
    "timestamptz DEFAULT now()",
)
_ADDED = {
    "u": "uuid DEFAULT gen_random_uuid()",
    "r": "double precision DEFAULT random()",
    "at": "timestamptz NOT NULL DEFAULT clock_timestamp()",
    "serial": "bigserial",
    "g": "bigint GENERATED ALWAYS AS (v + 1) STORED",
    "plain": "int NOT NULL DEFAULT 3",
}
_PARTED_1 = "parted_1 " + partitioned()


def _together(dice: Dice, *statements: str) -> list[str]:
    """One by one, in one transaction, or in one that is rolled back."""
    match dice.randrange(6):
        case 0 | 1:
            return ["; ".join(["BEGIN", *statements, "COMMIT"])]
        case 2:
            return ["; ".join(["BEGIN", *statements, "ROLLBACK"])]
        case _:
            return list(statements)


def converting(dice: Dice, columns: Names) -> list[str]:
    table = dice.choice(sorted(_CONVERSIONS))
    column = dice.choice(sorted(_CONVERSIONS[table]))
    kind, using = dice.choice(_CONVERSIONS[table][column])
    return _together(dice, f"ALTER TABLE {table} ALTER {column} TYPE {kind} USING {using}")


def lossless(dice: Dice, columns: Names) -> list[str]:
    """A column from its narrowest type to its widest, while it is written."""
    column = dice.choice(sorted(_WIDER))
    narrowest, *wider = _WIDER[column]
    anew = [f"ALTER TABLE wide DROP COLUMN IF EXISTS {column}", f"ALTER TABLE wide ADD COLUMN {column} {narrowest}"]
    return [*anew, *(f"ALTER TABLE wide ALTER {column} TYPE {kind}" for kind in wider)]


def moving_columns(dice: Dice, columns: Names) -> list[str]:
    names = [name for name in columns("growing") if name != "id"]
    free = [name for name in ("c0", "c1", "c2", "c3", "c4", "c5") if name not in names]
    touch = f"UPDATE growing SET id = id WHERE id % 7 = {dice.randrange(7)}"
    match dice.randrange(5):
        case 0 | 1 if free:
            added = f"ALTER TABLE growing ADD COLUMN {dice.choice(free)} {dice.choice(_TYPES)}"
            return _together(dice, touch, added, touch)
        case 2 if names and free:
            return _together(dice, f"ALTER TABLE growing RENAME COLUMN {dice.choice(names)} TO {dice.choice(free)}")
        case 3 if len(names) > 1:
            one, other = dice.sample(names, 2)
            renamed = [(one, "x"), (other, one), ("x", other)]
            return _together(dice, *(f"ALTER TABLE growing RENAME COLUMN {a} TO {b}" for a, b in renamed))
        case _ if len(names) > 1:
            name = dice.choice(names)
            again = dice.choice([[], [f"ALTER TABLE growing ADD COLUMN {name} {dice.choice(_TYPES)}", touch]])
            return _together(dice, f"ALTER TABLE growing DROP COLUMN {name}", *again)
        case _:
            return []


def computing(dice: Dice, columns: Names) -> list[str]:
    name = dice.choice(sorted(_ADDED))
    drop = f"ALTER TABLE computed DROP COLUMN IF EXISTS {name}"
    return _together(dice, drop, f"ALTER TABLE computed ADD COLUMN {name} {_ADDED[name]}")


def swapping(dice: Dice, columns: Names) -> list[str]:
    renamed = [("swap_a", "swap_x"), ("swap_b", "swap_a"), ("swap_x", "swap_b")]
    statements = [f"ALTER TABLE {one} RENAME TO {other}" for one, other in renamed]
    return dice.choice([statements, ["; ".join(["BEGIN", *statements, "COMMIT"])]])


def going_away(dice: Dice, columns: Names) -> list[str]:
    table, column = dice.choice([("away", "note"), ("away_bag", "b")])
    gone, away, back = dice.choice(
        [
            (f"{table}_gone", f"ALTER TABLE {table} RENAME TO {table}_gone", f"RENAME TO {table}"),
            (f"aside.{table}", f"ALTER TABLE {table} SET SCHEMA aside", "SET SCHEMA public"),
        ]
    )
    few = f"ctid = ANY (ARRAY(SELECT ctid FROM {gone} LIMIT 20))"
    meanwhile = f"UPDATE {gone} SET {column} = 'meanwhile {dice.randrange(99)}' WHERE {few}"
    statements = [away, meanwhile, f"ALTER TABLE {gone} {back}"]
    return dice.choice([statements, ["; ".join(["BEGIN", *statements, "COMMIT"])]])


def replacing(dice: Dice, columns: Names) -> list[str]:
    """A table of the same name, with its first rows."""
    more = dice.choice(["", ", extra int DEFAULT 5", ", v2 text"])
    kind = dice.choice(["int", "bigint", "text"])
    made = [
        "DROP TABLE replaced",
        f"CREATE TABLE replaced ({ID}, v {kind}, note varchar(40){more})",
        f"INSERT INTO replaced (id, note) SELECT n, 'anew {dice.randrange(99)}' FROM generate_series(1, 900, 3) AS n",
    ]
    return _together(dice, *made)


def truncating(dice: Dice, columns: Names) -> list[str]:
    rows = f"INSERT INTO emptied SELECT n, n, 'behind' FROM generate_series({dice.randrange(200)}, 300) AS n"
    statements = dice.choice(
        [
            ("TRUNCATE emptied",),
            ("TRUNCATE emptied, emptied_too",),
            ("DELETE FROM emptied WHERE id % 3 = 0", "TRUNCATE emptied RESTART IDENTITY CASCADE", rows),
            ("TRUNCATE emptied_too", "INSERT INTO emptied_too VALUES (5, 5, 'once')", "TRUNCATE emptied_too"),
        ]
    )
    return _together(dice, *statements)


def partitioning(dice: Dice, columns: Names) -> list[str]:
    into = "DELETE FROM parted_2 WHERE id BETWEEN 150 AND 299"
    attach = ["BEGIN", "LOCK TABLE parted", into, f"ALTER TABLE parted ATTACH PARTITION {_PARTED_1}", "COMMIT"]
    match dice.randrange(6):
        case 0:
            return _together(dice, f"TRUNCATE parted_{dice.randrange(3)}")
        case 1:
            return [
                "ALTER TABLE parted DETACH PARTITION parted_1",
                f"UPDATE parted_1 SET note = 'meanwhile {dice.randrange(99)}' WHERE id % 3 = 0",
                "; ".join(attach),
            ]
        case 2:
            rows = ", ".join(f"({n}, {dice.randrange(99)}, 'spare')" for n in dice.sample(range(150, 300), 20))
            names = [("parted_1", "parted_x"), ("parted_spare", "parted_1"), ("parted_x", "parted_spare")]
            renamed = [f"ALTER TABLE {one} RENAME TO {other}" for one, other in names]
            swap = ["BEGIN", "ALTER TABLE parted DETACH PARTITION parted_1", *renamed, *attach[1:]]
            return ["TRUNCATE parted_spare", f"INSERT INTO parted_spare VALUES {rows}", "; ".join(swap)]
        case 3:
            made = f"CREATE TABLE parted_1 PARTITION OF parted {partitioned()}"
            return ["; ".join(["BEGIN", "LOCK TABLE parted", "DROP TABLE parted_1", into, made, "COMMIT"])]
        case 4:
            return _together(
                dice, f"UPDATE parted SET id = (id + 150) % 400 + 1000 WHERE id % 50 = {dice.randrange(50)}"
            )
        case _:
            return [f"UPDATE parted_0 SET note = 'itself' WHERE id % 9 = {dice.randrange(9)}"]


def identifying(dice: Dice, columns: Names) -> list[str]:
    kind = dice.choice(["FULL", "DEFAULT", "USING INDEX identified_n_key"])
    touch = f"UPDATE identified SET v = {dice.randrange(99)} WHERE id % 5 = {dice.randrange(5)}"
    return _together(dice, f"ALTER TABLE identified REPLICA IDENTITY {kind}", touch)


def rekeying(dice: Dice, columns: Names) -> list[str]:
    key = dice.choice(["id", "id, part", "part, id"])
    once = "DELETE FROM rekeyed AS one USING rekeyed AS other WHERE one.id = other.id AND one.ctid < other.ctid"
    drop, add = "DROP CONSTRAINT rekeyed_pkey", f"ADD CONSTRAINT rekeyed_pkey PRIMARY KEY ({key})"
    return ["; ".join(["BEGIN", "LOCK TABLE rekeyed", once, f"ALTER TABLE rekeyed {drop}, {add}", "COMMIT"])]


def generating(dice: Dice, columns: Names) -> list[str]:
    expression = dice.choice(["a + b", "a - b", "coalesce(a, 0) * 2"])
    match dice.randrange(3):
        case 0:
            made = f"s bigint GENERATED ALWAYS AS ({expression}) STORED"
            return _together(dice, "ALTER TABLE made DROP COLUMN IF EXISTS s", f"ALTER TABLE made ADD COLUMN {made}")
        case 1:
            return _together(dice, f"ALTER TABLE made ALTER w TYPE {dice.choice(['int', 'bigint', 'smallint'])}")
        case _:
            return _together(dice, "ALTER TABLE made ALTER s DROP EXPRESSION IF EXISTS")


def labelling(dice: Dice, columns: Names) -> list[str]:
    old = dice.choice(["sad", "ok", "glücklich", "sadder"])
    return dice.choice(
        [
            [f"ALTER TYPE mood ADD VALUE IF NOT EXISTS '{dice.choice('abcd')}'"],
            [
                f"ALTER TYPE mood RENAME VALUE '{old}' TO '{old}der'",
                f"ALTER TYPE mood RENAME VALUE '{old}der' TO '{old}'",
            ],
            ["ALTER TYPE mood RENAME VALUE 'sad' TO 'sadder'"],
            ["ALTER TYPE mood RENAME VALUE 'sadder' TO 'sad'"],
        ]
    )


def composing(dice: Dice, columns: Names) -> list[str]:
    name = dice.choice("cd")
    return dice.choice(
        [
            [f"ALTER TYPE pair ADD ATTRIBUTE {name} int CASCADE"],
            [f"ALTER TYPE pair DROP ATTRIBUTE IF EXISTS {name} CASCADE"],
        ]
    )


def keeping(dice: Dice, columns: Names) -> list[str]:
    """Parents' rows in bulk, beside those of the workload."""
    least = dice.randrange(300)
    statement = dice.choice(
        [
            f"DELETE FROM fk_a WHERE id BETWEEN {least} AND {least + 40}",
            f"UPDATE fk_a SET id = -id WHERE id BETWEEN {least} AND {least + 9}",
            f"DELETE FROM fk_self WHERE id BETWEEN {least} AND {least + 20}",
        ]
    )
    return _together(dice, statement)


def filing(dice: Dice, columns: Names) -> list[str]:
    """New files with the same rows."""
    return [dice.choice(["VACUUM FULL settled", "CLUSTER settled USING settled_pkey", "REINDEX TABLE settled"])]


#: by ingredient
STEPS: dict[str, tuple[Step, ...]] = {
    "convert": (converting,),
    "lossless": (lossless,),
    "columns": (moving_columns,),
    "computed": (computing,),
    "swap": (swapping,),
    "away": (going_away,),
    "replace": (replacing,),
    "truncate": (truncating,),
    "partitions": (partitioning,),
    "identity": (identifying, rekeying),
    "generated": (generating,),
    "labels": (labelling,),
    "composites": (composing,),
    "cascade": (keeping,),
    "files": (filing,),
}
