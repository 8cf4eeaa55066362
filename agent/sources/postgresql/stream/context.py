"""What a stream is made of before it begins: its server, where its tables stand, and who takes what it says.

Made anew for each Replicate. `stream.reader` makes the stream's parts of it; each takes from it what it needs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from agent.capture.cuts import CutSettings
from agent.capture.sink import Sink
from agent.capture.stale_tables import StaleTables
from agent.snapshot.coordinator import SnapshotCoordinator
from agent.sources.postgresql.config import PostgresqlConfig
from agent.sources.postgresql.first_names import FirstNames
from agent.sources.postgresql.known_definitions import KnownDefinitions
from agent.sources.postgresql.native.decoder import PgoutputDecoder
from agent.sources.postgresql.positions import WalPosition
from agent.sources.postgresql.seen_transactions import SeenTransactions
from agent.sources.postgresql.stream.catalog_reader import CatalogReader
from agent.sources.postgresql.stream.definition_store import DefinitionStore, Known
from agent.sources.postgresql.stream.looks import Look
from agent.table_positions import Stop, Table, TablePositions


@dataclass(frozen=True, slots=True)
class StreamContext:
    config: PostgresqlConfig
    decoder: PgoutputDecoder
    table_positions: TablePositions[WalPosition]
    sink: Sink
    coordinator: SnapshotCoordinator
    stale: StaleTables
    settings: CutSettings
    #: monotone seconds
    clock: Callable[[], float]
    seen: SeenTransactions
    #: what dumps compare with
    shared: KnownDefinitions
    names: FirstNames
    store: DefinitionStore
    #: of each table where it begins
    known: Mapping[Table, Known]
    #: tables of which that was lost: why
    lost: Mapping[Table, str]
    catalog: CatalogReader
    #: the newest look at the catalog that nobody has taken yet
    take_look: Callable[[], Look | None]
    look_soon: Callable[[], None]
    #: tables that an earlier reading could not read on from these places
    pending_stops: Mapping[Table, Stop[WalPosition]]
    #: tables that may begin once transactions of before they were published are over
    unsettled: frozenset[Table]
