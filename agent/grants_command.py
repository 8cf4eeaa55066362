"""`menura agent grants`: the least that the agent's account needs at a server, as statements for its administrator."""

import argparse

from agent.errors import ConfigError

HELP = "print the least grants that the agent needs at a server"


def add_options(command: argparse.ArgumentParser) -> None:
    command.set_defaults(log_level="error")
    command.add_argument(
        "--flavor",
        required=True,
        metavar="FLAVOR",
        help="of the server, as its kind of source calls it; another word shows which there are",
    )
    command.add_argument("--user", default="menura", metavar="NAME", help="of the account (default: %(default)s)")
    command.add_argument("--host", default="", metavar="HOST", help="from where it logs in (default: any)")
    command.add_argument("--database", default="", metavar="NAME", help="of a source that is one database")
    only = "a database or schema whose rows it may read, in place of all; repeatable"
    command.add_argument("--only", action="append", default=[], metavar="NAME", help=only)


def run(arguments: argparse.Namespace) -> int:
    """Print them. Raises `ConfigError`."""
    from agent.doctor.source_doctor import doctors  # noqa: PLC0415  (an agent that runs keeps none of it)

    known = {flavor: doctor for doctor in doctors().values() for flavor in doctor.flavors}
    if arguments.flavor not in known:
        raise ConfigError(
            "reading the command",
            f"no kind of source knows the flavor {arguments.flavor!r}",
            remedy=f"Give --flavor {', '.join(sorted(known))}",
        )
    named = arguments.user, arguments.host, arguments.database, arguments.only
    print("\n".join(known[arguments.flavor].grants(arguments.flavor, *named)))
    return 0
