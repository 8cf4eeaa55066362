"""The tables of a run, by ingredient, and the keys by which the workload finds their rows."""

from collections.abc import Callable

from tests.churn.kind import KEYS, Dice, Shape, number


def day(dice: Dice) -> str:
    return f"'2024-{dice.randrange(1, 13):02}-{dice.randrange(1, 29):02}'"


def moment(dice: Dice) -> str:
    return (
        f"'2024-03-{dice.randrange(1, 29):02} 12:{dice.randrange(12):02}:07.{dice.choice(['25', '500001', '999999'])}'"
    )


def word(dice: Dice) -> str:
    return f"'{dice.choice(['a', 'B', 'ä', 'Wort'])} {dice.randrange(KEYS // 4)}'"


def kind(dice: Dice) -> str:
    return f"'{dice.choice('cab')}'"


def code(dice: Dice) -> str:
    return f"X'{dice.randrange(KEYS):04X}00FF00FF'"


def reference(dice: Dice) -> str:
    return "NULL" if dice.random() < 0.1 else number(dice)


ID = "id BIGINT NOT NULL PRIMARY KEY"
BY_ID: dict[str, Callable[[Dice], str]] = {"id": number}
_SWAPPED = Shape(f"{ID}, v INT NULL, note VARCHAR(40) NULL", BY_ID)
_PARTS = "PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (150), PARTITION p1 VALUES LESS THAN (300), PARTITION p2 VALUES LESS THAN MAXVALUE)"

TABLES: dict[str, dict[str, Shape]] = {
    "changes": {
        "daily": Shape("day DATE NOT NULL, part INT NOT NULL, v INT NULL, PRIMARY KEY (day, part)", {"day": day, "part": lambda dice: str(dice.randrange(4))}),
        "events": Shape("at DATETIME(6) NOT NULL PRIMARY KEY, v INT NULL, note TEXT NULL", {"at": moment}),
        "codes": Shape("v INT NULL, code VARBINARY(12) NOT NULL, n INT UNSIGNED NULL, UNIQUE KEY (code)", {"code": code}),
        "bag": Shape("a INT NULL, b VARCHAR(20) NULL", {}),
    },
    "convert": {
        "numbers": Shape(f"{ID}, small INT NULL, price DECIMAL(12,4) NULL, ratio DOUBLE NULL, whole BIGINT NULL, n INT NULL", BY_ID),
        "moments": Shape(f"{ID}, dt DATETIME(6) NULL, ts TIMESTAMP(3) NULL, t TIME(3) NULL, d DATE NULL, y YEAR NULL", BY_ID),
        "words": Shape("name VARCHAR(30) NOT NULL, kind ENUM('c','a','b') NOT NULL, tags SET('x','y','z') NULL, c CHAR(10) NULL, txt TEXT NULL, v VARCHAR(40) NULL, PRIMARY KEY (name, kind)", {"name": word, "kind": kind}),
        "blobs": Shape(f"{ID}, fixed BINARY(6) NULL, flexible VARBINARY(20) NULL, bits BIT(16) NULL, large BLOB NULL", BY_ID),
    },
    "lossless": {"wide": Shape(f"{ID}, n TINYINT NULL, f FLOAT NULL, v VARCHAR(10) NULL, p DECIMAL(6,2) NULL", BY_ID)},
    "columns": {"growing": Shape(f"{ID}, c0 INT NULL, c1 VARCHAR(20) NULL", BY_ID)},
    "computed": {"computed": Shape(f"{ID}, v INT NULL", BY_ID)},
    "swap": {"swap_a": _SWAPPED, "swap_b": _SWAPPED},
    "away": {"away": _SWAPPED, "away_bag": Shape("a INT NULL, b VARCHAR(20) NULL", {})},
    "truncate": {"emptied": _SWAPPED},
    "partitions": {"parted": Shape(f"{ID}, v INT NULL, note VARCHAR(40) NULL", BY_ID, _PARTS)},
    "generated": {"made": Shape(f"{ID}, a INT NULL, b INT NULL, s BIGINT AS (a + b) STORED, m BIGINT AS (a * 2) VIRTUAL", BY_ID)},
    "versioned": {"versioned": Shape(f"{ID}, v INT NULL, note VARCHAR(40) NULL", BY_ID, "WITH SYSTEM VERSIONING")},
    "cascade": {
        "fk_a": Shape(f"{ID}, v INT NULL", BY_ID),
        "fk_b": Shape(f"{ID}, a_id BIGINT NULL, v INT NULL, FOREIGN KEY (a_id) REFERENCES fk_a (id) ON DELETE CASCADE ON UPDATE CASCADE", BY_ID, values={"a_id": reference}),
        "fk_c": Shape(f"{ID}, b_id BIGINT NULL, v INT NULL, FOREIGN KEY (b_id) REFERENCES fk_b (id) ON DELETE CASCADE ON UPDATE CASCADE", BY_ID, values={"b_id": reference}),
        "fk_d": Shape(f"{ID}, c_id BIGINT NULL, v INT NULL, FOREIGN KEY (c_id) REFERENCES fk_c (id) ON DELETE SET NULL ON UPDATE CASCADE", BY_ID, values={"c_id": reference}),
        "fk_self": Shape(f"{ID}, up_id BIGINT NULL, v INT NULL, FOREIGN KEY (up_id) REFERENCES fk_self (id) ON DELETE CASCADE", BY_ID, values={"up_id": reference}),
    },
}  # fmt: skip
#: made beside them, not synced
ASIDE = {"partitions": (f"CREATE TABLE parted_spare ({ID}, v INT NULL, note VARCHAR(40) NULL)",)}
