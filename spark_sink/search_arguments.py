"""Where indexes are, as options of `menura search`: a folder, or an OpenSearch."""

import argparse
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_sink.search.opensearch.cluster import Cluster


def add_where(command: argparse.ArgumentParser) -> None:
    where = command.add_mutually_exclusive_group(required=True)
    where.add_argument("--folder", type=Path, metavar="FOLDER", help="of indexes")
    where.add_argument("--opensearch", metavar="URL", help="which has the indexes instead: https://HOST:PORT")
    command.add_argument(
        "--opensearch-login", type=Path, metavar="FILE", help="with USER:PASSWORD, or Bearer TOKEN; needs https"
    )
    command.add_argument(
        "--opensearch-ca",
        type=Path,
        metavar="FILE",
        help="whose certificates are good (default: those that the system trusts)",
    )
    command.add_argument(
        "--opensearch-prefix",
        default="menura",
        metavar="NAME",
        help="of the names of indexes; each lake has another one (default: %(default)s)",
    )


@contextmanager
def where_of(arguments: argparse.Namespace) -> "Iterator[Path | Cluster]":
    """Raises `SinkSettingInvalid`."""
    from spark_sink.search.opensearch.cluster import Cluster  # noqa: PLC0415  (only who has the package)

    if arguments.opensearch is None:
        yield arguments.folder
        return
    of = arguments
    with closing(Cluster(of.opensearch, of.opensearch_login, of.opensearch_ca, of.opensearch_prefix)) as cluster:
        yield cluster
