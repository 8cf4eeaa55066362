"""What a process tells Prometheus, as a table: each figure's name, meaning and labels stand once, in its component.

Comes in: rows of such a table. Goes out: the families that a collector fills, and the reference of all figures. Only
who wants metrics imports this module: it needs the package prometheus-client, which an agent does not have.
"""

import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

Family = GaugeMetricFamily | CounterMetricFamily


@dataclass(frozen=True, slots=True)
class Figure:
    """A counter where the name ends in `_total`, else a gauge."""

    name: str
    meaning: str
    labels: tuple[str, ...] = ()

    @property
    def is_counter(self) -> bool:
        return self.name.endswith("_total")

    def family(self) -> Family:
        """Without a value yet: what is not known stays absent."""
        if self.is_counter:
            return CounterMetricFamily(self.name.removesuffix("_total"), self.meaning, labels=self.labels)
        return GaugeMetricFamily(self.name, self.meaning, labels=self.labels)


class Families:
    """Of one reading: filled figure by figure, given out in the table's order."""

    def __init__(self, figures: Iterable[Figure]) -> None:
        self._families = {figure.name: figure.family() for figure in figures}

    def add(self, name: str, value: float | None, *labels: str) -> None:
        """None: not known."""
        if value is not None:
            self._families[name].add_metric(labels, value)

    def __iter__(self) -> Iterator[Metric]:
        return iter(self._families.values())


VOLUMES = (
    Figure("menura_disk_free_bytes", "Free for this process, where the volume is a folder of its host.", ("volume",)),
    Figure("menura_disk_size_bytes", "Size of that file system.", ("volume",)),
)


class VolumesCollector(Collector):
    """The file systems that a process fills, by what it has there."""

    def __init__(self, folders: Mapping[str, Path]) -> None:
        self._folders = folders

    def collect(self) -> Iterator[Metric]:
        found = Families(VOLUMES)
        for volume, folder in self._folders.items():
            with suppress(OSError):  # not there yet, or its host is away: not known
                usage = shutil.disk_usage(folder)
                found.add("menura_disk_free_bytes", usage.free, volume)
                found.add("menura_disk_size_bytes", usage.total, volume)
        yield from found
