"""What a look at a server's catalog shows, and what it may not show yet."""

from contextlib import closing
from pathlib import Path

from agent.sources.postgresql.first_names import FirstNames
from agent.sources.postgresql.server.connection import connect, facts_of
from agent.sources.postgresql.server.made_lists import MadeLists
from agent.sources.postgresql.stream.looks import Looks
from tests.agent.postgresql.logged import held_commits
from tests.agent.postgresql.sources import config_of
from tests.postgres import SourceServer

TABLE = ("public", "t")


def test_look_when_a_commit_is_logged_and_not_visible_then_it_is_not_whole(
    postgres: SourceServer, tmp_path: Path
) -> None:
    postgres.run(
        "GRANT CREATE ON DATABASE shop TO menura",
        "CREATE TABLE t (id int PRIMARY KEY)",
        "ALTER TABLE t OWNER TO menura",
        database="shop",
    )
    config = config_of(postgres)
    looks = Looks(config, MadeLists(tmp_path, config.name), FirstNames(tmp_path, config.name, config.filter))
    with closing(connect(config.replication, config.name)) as connection:
        facts = facts_of(connection, config.name)
        assert looks.look(connection, facts, [TABLE]).is_whole
        with held_commits(postgres, "ALTER TABLE t ADD COLUMN v text"):
            held = looks.look(connection, facts, [TABLE])
            assert [one.name for one in held.definitions[TABLE].attributes] == ["id"]
            assert not held.is_whole
        later = looks.look(connection, facts, [TABLE])
    assert [one.name for one in later.definitions[TABLE].attributes] == ["id", "v"]
    assert later.is_whole
