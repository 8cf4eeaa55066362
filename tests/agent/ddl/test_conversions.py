# ruff: noqa: E501  (tables)
"""What the table of lossless conversions says is what real servers do to the values at the edges of each type.

Pairs of types are drawn with a seed; the server converts a column of each with every value, and what the lake holds
before is compared with what it would hold after. MENURA_CONVERSIONS: how many pairs of each server (default 72), or
"all" (`make conversions`); MENURA_CONVERSIONS_SEED: another draw.
"""

import os
import random
import re
from collections import Counter
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

import pytest
from menura.types import lake_format, wider_format

from agent.sources.mysql.ddl.conversions import lost
from agent.sources.mysql.ddl.sql_modes import Session
from agent.sources.mysql.types import arrow_format
from tests.agent.ddl.conversion_cases import TYPES, Type
from tests.agent.ddl.converting import (
    AT_ONCE,
    COPIED,
    FIXED_ZONE,
    IGNORED,
    IN_PLACE,
    LAX,
    PADDED,
    ROUNDED,
    STRICT,
    STRICTER,
    TRUNCATED,
    Conversion,
    Converter,
    definition,
    session_of,
)
from tests.servers import TESTED, server

PAIRS = os.environ.get("MENURA_CONVERSIONS", "72")
SEED = int(os.environ.get("MENURA_CONVERSIONS_SEED", "1"))
#: values that a strict server is given one by one, of those that another changes
_SINGLY = 6

MODES = {
    "mysql": (COPIED, IN_PLACE, AT_ONCE, PADDED, TRUNCATED, FIXED_ZONE),
    "mariadb": (COPIED, IN_PLACE, AT_ONCE, PADDED, IGNORED, ROUNDED, FIXED_ZONE),
}


@dataclass(frozen=True)
class Kept:
    """Pairs that keep the values tried on every server, and that the table doesn't call lossless all the same."""

    before: str
    after: str
    why: str


_REALS = r"(FLOAT|DOUBLE)\(.*"
NOT_IN_THE_TABLE = (
    Kept(r"(FLOAT|DOUBLE).*", _REALS, "no server rounds in an ALTER that makes (M,D) of the same type, but in later writes"),
    Kept(r"BIT.*", r"(VAR)?CHAR.*", "a TEXT gets the bits instead of the number, and a CHAR of utf32 not all digits"),
    Kept(r"\w*INT.*|DECIMAL.*", "JSON", "rare"),
    Kept(r"(VAR)?BINARY.*|\w*BLOB.*", r"VECTOR.*", "rare"),
    Kept(r"LONG(TEXT|BLOB).*", r"MEDIUM(TEXT|BLOB).*", "no value of 16 MB is tried"),
    Kept(r"(LONG|MEDIUM)TEXT.*|JSON|SET.*", r"(MEDIUM|TINY)?TEXT.*", "no value of that length is tried"),
    Kept(r".* CHARACTER SET (ujis|euckr|gbk|sjis|utf32|utf8mb4|ascii).*|JSON", r".* CHARACTER SET .*",
         "servers take bytes that are no text in some multi-byte charsets; not all of those are tried"),
    Kept(r"(ENUM|SET).*", r"(ENUM|SET).*", "the definition does not say by which collation members are equal"),
    Kept(r"(ENUM|SET).*", r"\w+\(?\d*\)? CHARACTER SET .*",
         "a member of a charset that lacks its characters can't be chosen, or no value with it is tried"),
    Kept(r"(GEOMETRY|POINT|LINESTRING|MULTIPOINT)", r"GEOMETRYCOLLECTION", "no shape is tried that MariaDB refuses there"),
)  # fmt: skip


@dataclass
class Seen:
    """What became of pairs on one server."""

    alters: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    #: (mode, before, after): whether every value was kept, where the table says that some may be lost
    kept: dict[tuple[str, str, str], bool] = field(default_factory=dict)


def units(chance: random.Random) -> list[tuple[Type, list[Type]]]:
    """Each type with those that the lake's column could take for it, by twelves, in any order."""
    formats = {
        type_: lake_format(arrow_format(definition(type_, mariadb=type_.flavor == "mariadb").type)) for type_ in TYPES
    }
    found = []
    for before in TYPES:
        afters = [a for a in TYPES if a is not before and wider_format(formats[before], formats[a]) is not None]
        chance.shuffle(afters)
        found += [(before, afters[start : start + 12]) for start in range(0, len(afters), 12)]
    chance.shuffle(found)
    return found


def judge(seen: Seen, conversion: Conversion, session: Session) -> str:
    """The table's verdict on a conversion, compared with what happened."""
    why = lost(definition(conversion.before, session.mariadb), definition(conversion.after, session.mariadb), session)
    if conversion.changed and not why:
        example = conversion.changed[0]
        seen.wrong.append(f"{conversion.mode.name}: {conversion.before} to {conversion.after}: {example}")
    return why


def run_unit(converter: Converter, seen: Seen, before: Type, afters: list[Type], chance: random.Random) -> None:
    mariadb = converter.server.flavor == "mariadb"
    lax = list(converter.convert(before, afters, LAX))
    for conversion in lax:
        why = judge(seen, conversion, session_of(LAX, mariadb=mariadb))
        if why and not conversion.refused:
            seen.kept[LAX.name, str(before), str(conversion.after)] = conversion.kept
        word = "refused" if conversion.refused else "lossless" if not why else "lost" if conversion.changed else "kept"
        seen.verdicts[word] += 1
    for mode in (STRICT, STRICTER):
        items = []
        for conversion in lax:
            rows = conversion.changed_rows
            items += [(conversion.after, row) for row in chance.sample(rows, min(_SINGLY, len(rows)))]
        for alone in converter.singly(before, items, mode):
            judge(seen, alone, session_of(mode, mariadb=mariadb))
    mode = chance.choice(MODES[converter.server.flavor])
    for conversion in converter.convert(before, afters, mode):
        judge(seen, conversion, session_of(mode, mariadb=mariadb))


def is_listed(before: str, after: str) -> bool:
    return any(re.fullmatch(one.before, before) and re.fullmatch(one.after, after) for one in NOT_IN_THE_TABLE)


@pytest.fixture(scope="module")
def converters(tmp_path_factory):
    """Of each server: flavor and release, a converter."""
    fast = {"innodb_flush_log_at_trx_commit": "0", "innodb_doublewrite": "0", "innodb_flush_method": "nosync"}
    fast["skip_log_bin"] = ""

    with ExitStack() as stack:
        found = {}
        for flavor, release in TESTED:
            folder = tmp_path_factory.mktemp(f"{flavor}{release}")
            running = stack.enter_context(server(flavor, folder, release=release, **fast))
            running.run("CREATE DATABASE t CHARACTER SET utf8mb4")
            found[flavor, release] = stack.enter_context(closing(Converter(running)))
        yield found


@pytest.mark.long
def test_conversions_when_servers_make_them_then_lossless_ones_keep_every_value_and_no_other_does(converters):
    seen: dict[tuple[str, str], Seen] = {}
    for key, converter in converters.items():
        chance = random.Random(SEED)
        seen[key] = Seen()
        pairs = 0
        for before, drawn in units(chance):
            if PAIRS != "all" and pairs >= int(PAIRS):
                break
            afters = [type_ for type_ in drawn if type_.is_on(key[0], converter.version)]
            pairs += len(drawn)
            if before.is_on(key[0], converter.version):
                run_unit(converter, seen[key], before, afters, random.Random(f"{SEED} {before} {drawn[0]}"))
        seen[key].alters = converter.alters
        print(f"{'-'.join(filter(None, key))}: {pairs} pairs, {converter.alters} ALTERs, {dict(seen[key].verdicts)}")  # noqa: T201
    wrong = [f"{key}: {found}" for key, one in seen.items() for found in one.wrong]
    assert not wrong, f"{len(wrong)} differ:\n" + "\n".join(wrong[:40])

    everywhere: dict[tuple[str, str, str], list[bool]] = {}
    for one in seen.values():
        for pair, kept in one.kept.items():
            everywhere.setdefault(pair, []).append(kept)
    needless = [pair for pair, kept in everywhere.items() if all(kept) and not is_listed(*pair[1:])]
    assert not needless, f"{len(needless)} pairs keep all values and are called lossy:\n" + "\n".join(
        map(str, needless[:60])
    )
    if PAIRS == "all":
        assert sum(one.alters for one in seen.values()) > 20_000


def test_halves_of_surrogate_pairs_when_another_charset_writes_them_then_the_conversion_is_not_lossless(converters):
    charsets = ("CHAR(10) CHARACTER SET ucs2", *(f"VARCHAR(300) CHARACTER SET {name}" for name in ("utf32", "utf8mb3")))
    texts = [type_ for type_ in TYPES if type_.definition in charsets]
    for (flavor, release), converter in converters.items():
        seen = Seen()
        for before in texts:
            halves = [at for at, value in enumerate(before.values) if re.search(r"'(D800|0000D800|EDA080)'", value)]
            items = [(after, at) for after in texts if after is not before for at in halves]
            assert items, before
            for mode in (LAX, STRICT):
                for conversion in converter.singly(before, items, mode):
                    judge(seen, conversion, session_of(mode, mariadb=flavor == "mariadb"))
        assert not seen.wrong, (flavor, release, seen.wrong)
