"""Steps of DDL on MySQL and MariaDB."""

from tests.churn.kind import Dice, Names, Step

#: by table and column, what it may become
_CONVERSIONS: dict[str, dict[str, list[str]]] = {
    "numbers": {
        "small": ["TINYINT", "SMALLINT", "INT", "INT UNSIGNED", "BIGINT", "DOUBLE", "DECIMAL(8,2)", "INT NOT NULL"],
        "price": ["DECIMAL(12,4)", "DECIMAL(12,2)", "DECIMAL(6,4)", "INT", "DOUBLE", "VARCHAR(30)"],
        "ratio": ["DOUBLE", "FLOAT", "INT", "DECIMAL(20,6)"],
        "whole": ["BIGINT", "BIGINT UNSIGNED", "INT", "DOUBLE", "VARCHAR(30)", "BIGINT NOT NULL"],
        "n": ["INT", "INT NOT NULL", "INT NOT NULL DEFAULT 7", "MEDIUMINT UNSIGNED"],
    },
    "moments": {
        "dt": ["DATETIME(6)", "DATETIME", "DATETIME(3)", "DATE", "TIMESTAMP NULL", "VARCHAR(40)"],
        "ts": ["TIMESTAMP(3) NULL", "TIMESTAMP NULL", "DATETIME(3)", "DATE"],
        "t": ["TIME(3)", "TIME", "TIME(6)"],
        "d": ["DATE", "DATETIME", "VARCHAR(20)", "DATE NOT NULL"],
        "y": ["YEAR", "INT"],
    },
    "words": {
        "tags": ["SET('x','y','z')", "SET('z','x')", "SET('x','y','z','w')", "VARCHAR(20)"],
        "c": ["CHAR(10)", "CHAR(4)", "VARCHAR(10)", "BINARY(10)", "CHAR(10) CHARACTER SET latin1"],
        "txt": ["TEXT", "INT", "DATE", "VARCHAR(12)", "TEXT CHARACTER SET latin1", "LONGTEXT"],
        "v": ["VARCHAR(40)", "VARCHAR(5)", "VARCHAR(40) CHARACTER SET latin1", "VARCHAR(40) NOT NULL", "CHAR(8)"],
    },
    "blobs": {
        "fixed": ["BINARY(6)", "BINARY(8)", "BINARY(3)", "VARBINARY(6)", "CHAR(6) CHARACTER SET latin1"],
        "flexible": ["VARBINARY(20)", "VARBINARY(4)", "BLOB"],
        "bits": ["BIT(16)", "BIT(8)", "BIT(24)", "INT"],
        "large": ["BLOB", "VARCHAR(20) CHARACTER SET latin1", "LONGBLOB"],
    },
    "wide": {
        "n": ["TINYINT", "SMALLINT", "INT", "BIGINT"],
        "f": ["FLOAT", "DOUBLE"],
        "v": ["VARCHAR(10)", "VARCHAR(30)", "VARCHAR(60)", "TEXT"],
        "p": ["DECIMAL(6,2)", "DECIMAL(10,2)", "DECIMAL(14,4)"],
    },
}
_TYPES = ("INT", "VARCHAR(20)", "DOUBLE", "DATE", "VARBINARY(9)", "DECIMAL(9,3)", "INT NOT NULL DEFAULT 4")
_ADDED = {
    "u": "CHAR(36) DEFAULT (uuid())",
    "r": "DOUBLE DEFAULT (rand())",
    "at": "DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)",
    "serial": "BIGINT NOT NULL AUTO_INCREMENT UNIQUE",
    "g": "BIGINT AS (v + 1) STORED",
    "plain": "INT NOT NULL DEFAULT 3",
}


def converting(dice: Dice, columns: Names, tables: tuple[str, ...]) -> list[str]:
    table = dice.choice(tables)
    column = dice.choice(sorted(_CONVERSIONS[table]))
    algorithm = dice.choice(["", "", ", ALGORITHM=COPY"])
    return [f"ALTER TABLE {table} MODIFY {column} {dice.choice(_CONVERSIONS[table][column])}{algorithm}"]


def lossless(dice: Dice, columns: Names) -> list[str]:
    """A column from its narrowest type to its widest, while it is written."""
    column = dice.choice(sorted(_CONVERSIONS["wide"]))
    narrowest, *wider = _CONVERSIONS["wide"][column]
    if column not in columns("wide"):
        return [f"ALTER TABLE wide ADD COLUMN {column} {narrowest} NULL"]
    anew = [f"ALTER TABLE wide DROP COLUMN {column}", f"ALTER TABLE wide ADD COLUMN {column} {narrowest} NULL"]
    return [*anew, *(f"ALTER TABLE wide MODIFY {column} {kind} NULL" for kind in wider)]


def members(dice: Dice, columns: Names) -> list[str]:
    """The key's enum too."""
    order = ", ".join(f"'{member}'" for member in dice.sample(["a", "b", "c"], 3))
    return [f"ALTER TABLE words MODIFY kind ENUM({order}) NOT NULL"]


def moving_columns(dice: Dice, columns: Names) -> list[str]:
    names = [name for name in columns("growing") if name != "id"]
    free = [name for name in ("c0", "c1", "c2", "c3", "c4", "c5") if name not in names]
    place = dice.choice(["", " FIRST", " AFTER id"])
    match dice.randrange(4):
        case 0 | 1 if free:
            return [f"ALTER TABLE growing ADD COLUMN {dice.choice(free)} {dice.choice(_TYPES)}{place}"]
        case 2 if names and free:
            return [f"ALTER TABLE growing RENAME COLUMN {dice.choice(names)} TO {dice.choice(free)}"]
        case _ if len(names) > 1:
            return [f"ALTER TABLE growing DROP COLUMN {dice.choice(names)}"]
        case _:
            return []


def computing(dice: Dice, columns: Names) -> list[str]:
    name = dice.choice(sorted(_ADDED))
    drop = [f"ALTER TABLE computed DROP COLUMN {name}"] if name in columns("computed") else []
    return [*drop, f"ALTER TABLE computed ADD COLUMN {name} {_ADDED[name]}"]


def swapping(dice: Dice, columns: Names) -> list[str]:
    return ["RENAME TABLE swap_a TO swap_x, swap_b TO swap_a, swap_x TO swap_b"]


def going_away(dice: Dice, columns: Names) -> list[str]:
    table, column = dice.choice([("away", "note"), ("away_bag", "b")])
    meanwhile = f"UPDATE {table}_gone SET {column} = 'meanwhile {dice.randrange(99)}' LIMIT 20"
    return [f"RENAME TABLE {table} TO {table}_gone", meanwhile, f"RENAME TABLE {table}_gone TO {table}"]


def truncating(dice: Dice, columns: Names) -> list[str]:
    return ["TRUNCATE TABLE emptied"]


def partitioning(dice: Dice, columns: Names) -> list[str]:
    match dice.randrange(4):
        case 0:
            return [f"ALTER TABLE parted TRUNCATE PARTITION p{dice.randrange(3)}"]
        case 1:
            rows = ", ".join(f"({n}, {dice.randrange(99)}, 'spare')" for n in dice.sample(range(150, 300), 20))
            return [
                "TRUNCATE TABLE parted_spare",
                f"INSERT INTO parted_spare VALUES {rows}",
                "ALTER TABLE parted EXCHANGE PARTITION p1 WITH TABLE parted_spare",
            ]
        case 2:
            return [
                "ALTER TABLE parted DROP PARTITION p1",
                "ALTER TABLE parted REORGANIZE PARTITION p2 INTO (PARTITION p1 VALUES LESS THAN (300),"
                " PARTITION p2 VALUES LESS THAN MAXVALUE)",
            ]
        case _:
            return ["ALTER TABLE parted REBUILD PARTITION p0"]


def generating(dice: Dice, columns: Names) -> list[str]:
    match dice.randrange(3):
        case 0:
            return [f"ALTER TABLE made MODIFY s BIGINT AS (a {dice.choice('+-*')} b) STORED"]
        case 1:
            return [f"ALTER TABLE made MODIFY m BIGINT AS (a * {dice.randrange(2, 9)}) VIRTUAL"]
        case _:
            return [f"ALTER TABLE made MODIFY b {dice.choice(['INT', 'BIGINT', 'SMALLINT'])}"]


def versioning(dice: Dice, columns: Names) -> list[str]:
    if dice.random() < 0.5:
        return ["DELETE HISTORY FROM versioned"]
    return [
        "ALTER TABLE versioned DROP SYSTEM VERSIONING",
        "ALTER TABLE versioned ADD SYSTEM VERSIONING",
    ]


def keeping(dice: Dice, columns: Names) -> list[str]:
    """Parents' rows in bulk, beside those of the workload."""
    least = dice.randrange(300)
    return [
        dice.choice(
            [
                f"DELETE FROM fk_a WHERE id BETWEEN {least} AND {least + 40}",
                f"UPDATE IGNORE fk_a SET id = id + 1000 WHERE id BETWEEN {least} AND {least + 9} ORDER BY id DESC",
                f"DELETE FROM fk_self WHERE id BETWEEN {least} AND {least + 20}",
            ]
        )
    ]


#: by ingredient
STEPS: dict[str, tuple[Step, ...]] = {
    "convert": (lambda dice, columns: converting(dice, columns, ("numbers", "moments", "words", "blobs")), members),
    "lossless": (lossless,),
    "columns": (moving_columns,),
    "computed": (computing,),
    "swap": (swapping,),
    "away": (going_away,),
    "truncate": (truncating,),
    "partitions": (partitioning,),
    "generated": (generating,),
    "versioned": (versioning,),
    "cascade": (keeping,),
}
