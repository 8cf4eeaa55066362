"""Settings of librdkafka that are an export's own, since its promise of each change once rests on them.

Comes in: the names of settings that somebody gives. Goes out: those that are refused. Nothing is read, and Kafka's
package is not needed.
"""

from collections.abc import Iterable

#: the transaction's name, which is the position's; that committed messages alone are read, up to the end; by whom
OWN = frozenset(
    {
        "bootstrap.servers",
        "delivery.report.only.error",
        "enable.auto.commit",
        "enable.idempotence",
        "enable.partition.eof",
        "group.id",
        "isolation.level",
        "metadata.broker.list",
        "transactional.id",
    }
)


def refused(names: Iterable[str]) -> list[str]:
    """
    >>> refused(["sasl.password", "transactional.id"])
    ['transactional.id']
    """
    return sorted(OWN.intersection(names))
