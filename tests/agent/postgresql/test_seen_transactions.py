"""What a snapshot is known to show, beside a model of a server that commits, and shows what it committed later."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from agent.sources.postgresql.positions import WalPosition
from agent.sources.postgresql.seen_transactions import SeenTransactions, Snapshot

START = WalPosition(1000, "7300000000000000001", 1, 5)


@dataclass
class Server:
    """Transactions begin, write their commit records, and are visible some time later, in any order."""

    next_xid: int
    lsn: int = START.lsn
    first_xid: int = 0
    running: list[int] = field(default_factory=list)
    #: id, place of its commit record; not visible yet
    committing: list[tuple[int, int]] = field(default_factory=list)
    #: id, commit LSN, end LSN, in the log's order
    log: list[tuple[int, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.first_xid = self.next_xid

    def begin(self) -> None:
        self.running.append(self.next_xid)
        self.next_xid += 1

    def commit(self, which: int) -> None:
        if self.running:
            xid = self.running.pop(which % len(self.running))
            self.committing.append((xid, self.lsn))
            self.log.append((xid % (1 << 32), self.lsn, self.lsn + 8))
            self.lsn += 10

    def show(self, which: int) -> None:
        if self.committing:
            self.committing.pop(which % len(self.committing))

    def snapshot(self) -> Snapshot:
        active = {*self.running, *(xid for xid, _ in self.committing)}
        xmax = (
            max((xid for xid in range(self.first_xid, self.next_xid) if xid not in active), default=self.first_xid - 1)
            + 1
        )
        listed = frozenset(xid for xid in active if xid < xmax)
        return Snapshot(min(listed, default=xmax), xmax, listed, self.next_xid)

    def hidden_before(self, position: WalPosition) -> list[int]:
        return [lsn for _, lsn in self.committing if lsn < position.lsn]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["begin", "commit", "commit", "show", "read", "prune", "chunk", "again", "killed", "idle"]),
        st.integers(0, 50),
    ),
    max_size=120,
)


@given(steps=STEPS, first_xid=st.sampled_from([3, (1 << 32) - 5, (1 << 40) + 7]), most=st.sampled_from([2, 1000]))
def test_low_when_commits_become_visible_in_any_order_then_no_change_below_it_is_hidden(
    steps: list[tuple[str, int]], first_xid: int, most: int
) -> None:
    server, seen, read, taken = Server(first_xid), SeenTransactions(most), 0, START
    seen.begin(START, server.snapshot())
    for step, which in steps:
        match step:
            case "begin":
                server.begin()
            case "commit":
                server.commit(which)
            case "show":
                server.show(which)
            case "read":
                count = which % 4
                found = server.log[read : read + count]
                read += len(found)
                taken = START.at(found[-1][2]) if found else taken
                seen.read(found, taken)
            case "prune":
                seen.prune(server.snapshot())
            case "idle":
                seen.not_committing([xid % (1 << 32) for xid in server.running])
            case "again" | "killed":
                if step == "killed":
                    seen = SeenTransactions(most)
                    back = read
                else:
                    back = which % (read + 1)
                read = back
                taken = START.at(server.log[read - 1][2]) if read else START
                seen.begin(taken, server.snapshot())
            case _:
                before = seen.read_to()
                assert before == taken
                snapshot = server.snapshot()
                low = seen.low(taken, snapshot)
                hidden = server.hidden_before(taken)
                if low is None:
                    assert not seen.is_settled or most == 2
                elif hidden:
                    assert low.lsn == min(hidden)
                else:
                    assert low == taken


def test_low_when_the_server_has_shown_all_then_it_is_what_was_read() -> None:
    server, seen = Server(100), SeenTransactions()
    for _ in range(3):
        server.begin()
    seen.begin(START, server.snapshot())
    assert seen.low(START, server.snapshot()) is None
    seen.not_committing([100])
    server.commit(1), server.commit(1)
    seen.read(server.log, START.at(1018))
    assert seen.low(START.at(1018), server.snapshot()) is None
    server.show(0)
    server.show(0)
    seen.prune(server.snapshot())
    assert seen.is_settled
    assert seen.low(START.at(1018), server.snapshot()) == START.at(1018)


def test_begin_when_the_server_is_another_one_then_nothing_of_the_former_counts() -> None:
    server, seen = Server(100), SeenTransactions()
    server.begin()
    seen.begin(START, server.snapshot())
    other = WalPosition(5, "7300000000000000002", 1, 5)
    seen.begin(other, Snapshot.parse("50:50::50"))
    assert seen.is_settled
    assert seen.low(other, Snapshot.parse("50:50::50")) == other


def test_hold_when_dumps_come_and_go_then_the_least_position_is_held() -> None:
    seen = SeenTransactions()
    assert seen.held() is None
    first, second = seen.hold(START.at(7)), seen.hold(START.at(5))
    assert seen.held() == START.at(5)
    second.release()
    second.release()
    assert seen.held() == START.at(7)
    first.release()
    assert seen.held() is None
    seen.end()
    assert seen.read_to() is None
