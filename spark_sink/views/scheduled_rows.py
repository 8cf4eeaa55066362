"""A view that is computed whole at intervals: its query by Spark SQL, and what differs from the view's rows.

Comes in: the view's text, its inputs' versions at one cut of each source, and its own two tables. Goes out: a version,
or none where no row differs; or a `ViewStopped`. Durable is one commit of the changelog with the vector of cuts, then
the current state, as of a view that is followed (`view_table`); a kill before leaves the last version, one after it
what the next time completes.

Spark runs the query and the comparison, in a session of its own with a temporary view for each input and no other
table; what differs comes to the driver, within Spark's own limit of results (`spark.driver.maxResultSize`). A row is
told apart by all of its columns, so a change is a delete and an insert. Equal rows are refused: no table has them.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Timer
from uuid import uuid4

import pyarrow as pa
from menura.change_batch import ABSENT, GSN, UNREPRESENTABLE
from menura.views.definition import InputName, ViewRefused
from menura.views.scheduled import ScheduledQuery, read_schedule
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_sink.errors import ViewNotComputed, ViewRowsEqual
from spark_sink.lake.tail import AT_ONCE
from spark_sink.reading import frame_of, rows_of_versions
from spark_sink.views.inputs import OpenInput
from spark_sink.views.maintain import ViewVersion, ViewWork, version_of, view_table_id
from spark_sink.views.queries import KIND, NUMBER
from spark_sink.views.view_table import Reached, ViewShape, ViewTable

# They print what Spark says of a failed query, which may hold values of its rows.
for _name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
    PySparkLogger.getLogger(_name).setLevel(logging.CRITICAL + 1)
#: of a query, whatever its interval
MOST_SECONDS = 3600.0
_DIFFERS, _COUNT = "_menura_d", "_menura_n"
_OWN = (UNREPRESENTABLE, ABSENT, GSN)


def compute(session: SparkSession, lake: str, work: ViewWork) -> ViewVersion:
    """Raises `ViewRefused`, `ViewStopped`; OSError, DeltaError where the storage fails."""
    query = read_schedule(work.definition.sql)
    table = ViewTable(lake, view_table_id(work.definition.tenant, work.definition.name))
    opened = table.versions
    inputs = {each.name: OpenInput(lake, each) for each in work.inputs}
    own = session.newSession()
    own.conf.set("spark.sql.runSQLOnFiles", "false")
    with _within(own, min(MOST_SECONDS, float(query.every_seconds))):
        frame = _frame(own, lake, work, query)
        shape = _shape(query, frame)
        if table.is_of(shape) and table.reached(inputs, [cut.source for cut in work.cuts]) is not None:
            table.settle(AT_ONCE)
        else:
            table.begin(shape)
        found = _differences(own, lake, table, shape, frame)
    return _commit(work, table, shape, found, inputs, opened)


def _frame(session: SparkSession, lake: str, work: ViewWork, query: ScheduledQuery) -> DataFrame:
    names = {each.name: f"menura_input_{place}" for place, each in enumerate(work.inputs)}
    for each in work.inputs:
        rows = rows_of_versions(lake, each.table, each.changelog_version, each.current_version)
        frame = frame_of(session, lake, each.table, rows).drop(*_OWN)
        frame.createOrReplaceTempView(names[each.name])
    return session.sql(query.text(names.__getitem__))


def _shape(query: ScheduledQuery, frame: DataFrame) -> ViewShape:
    """Of the lake's types. Raises `ViewRefused`."""
    if len(frame.columns) != len(query.columns):
        raise ViewRefused(f"the query has {len(frame.columns)} columns, and {len(query.columns)} names")
    fields = []
    for name, field in zip(query.columns, frame.schema.fields, strict=True):
        type_ = _lake_type(field.dataType)
        if type_ is None:
            raise ViewRefused(f"the column {name} is {field.dataType.simpleString()}, which no table of the lake has")
        fields.append(pa.field(name, type_))
    return ViewShape(pa.schema(fields), query.columns)


def _lake_type(type_: T.DataType) -> pa.DataType | None:
    if isinstance(type_, T.DecimalType):
        return pa.decimal128(type_.precision, type_.scale)
    return next((lake for kind, lake in _TYPES if type(type_) is kind), None)


_INSTANT = pa.timestamp("us", "UTC")
#: whole numbers are of 64 bits in the lake
_NARROW = (T.ByteType, T.ShortType, T.IntegerType)
_TYPES: tuple[tuple[type[T.DataType], pa.DataType], ...] = (
    *((kind, pa.int64()) for kind in (*_NARROW, T.LongType)),
    (T.FloatType, pa.float32()),
    (T.DoubleType, pa.float64()),
    (T.StringType, pa.string()),
    (T.BinaryType, pa.binary()),
    (T.BooleanType, pa.bool_()),
    (T.DateType, pa.date32()),
    (T.TimestampType, _INSTANT),
    (T.TimestampNTZType, pa.timestamp("us")),
)


def _differences(session: SparkSession, lake: str, table: ViewTable, shape: ViewShape, frame: DataFrame) -> pa.Table:
    """Rows of one side alone, with `_DIFFERS` 1 for those that come and -1 for those that go."""
    names = shape.columns.names
    types = zip(names, frame.schema.fields, strict=True)
    columns = [F.col(f"`{name}`") for name in names]
    wanted = frame.toDF(*names).select(
        *(
            column.cast("bigint").alias(name) if isinstance(field.dataType, _NARROW) else column
            for column, (name, field) in zip(columns, types, strict=True)
        )
    )
    held = frame_of(session, lake, table.table, table.rows()).select(*columns)
    both = wanted.withColumn(_DIFFERS, F.lit(1)).unionAll(held.withColumn(_DIFFERS, F.lit(-1)))
    counted = both.groupBy(*columns).agg(
        F.sum(_DIFFERS).alias(_DIFFERS), F.sum(F.when(F.col(_DIFFERS) > 0, 1).otherwise(0)).alias(_COUNT)
    )
    differing = counted.where((F.col(_DIFFERS) != 0) | (F.col(_COUNT) > 1))
    instants = [name for name in names if shape.columns.field(name).type == _INSTANT]
    # as numbers: an instant would become Python's, of this machine's time zone
    rows = differing.withColumns({name: F.unix_micros(f"`{name}`") for name in instants}).collect()
    equal = sum(1 for row in rows if row[_COUNT] > 1)
    if equal:
        raise ViewRowsEqual(
            "computing a view at its interval",
            f"{equal} of its rows are there more than once, equal in all columns",
            data="The view stays at its last version; tables and other views go on",
            remedy="Have a key among its columns, or group by all of them with count(*)",
        )
    columns_of = [
        pa.array([row[place] for row in rows], pa.int64() if name in instants else shape.columns.field(name).type)
        for place, name in enumerate(names)
    ]
    differs = pa.array([row[_DIFFERS] for row in rows], pa.int64())
    return pa.table([*columns_of, differs], [*names, _DIFFERS])


def _commit(
    work: ViewWork,
    table: ViewTable,
    shape: ViewShape,
    found: pa.Table,
    inputs: Mapping[InputName, OpenInput],
    opened: tuple[int, int],
) -> ViewVersion:
    count = found.num_rows
    marks = {name: each.mark for name, each in inputs.items()}
    digest = int(work.definition.digest[:15], 16)
    after = Reached(table.last_version + 1, table.highest_gsn + max(1, count), digest, marks, work.cuts)
    first = after.gsn - max(1, count) + 1
    kinds = pa.array(["insert" if differs > 0 else "delete" for differs in found[_DIFFERS].to_pylist()], pa.string())
    numbers = pa.array(range(first, first + count), pa.int64())
    columns = [found[name].cast(shape.columns.field(name).type) for name in shape.columns.names]
    changes = pa.table([kinds, numbers, *columns], [KIND, NUMBER, *shape.columns.names])
    table.commit(shape, [changes], after, is_small=True)
    return version_of(table, after, count, AT_ONCE, opened, "it is computed at intervals")


@contextmanager
def _within(session: SparkSession, seconds: float) -> Iterator[None]:
    """Spark's work of this thread, stopped after this time; its errors become those of the view.

    The text of an error at run time may hold values and stays here, but for Spark's word for it. What Spark says of a
    query before it runs is about the query alone.
    """
    context, group = session.sparkContext, f"menura-view-{uuid4()}"
    context.setJobGroup(group, "a view that is computed at intervals", interruptOnCancel=True)
    timer = Timer(seconds, context.cancelJobGroup, [group])
    timer.daemon = True
    timer.start()
    try:
        yield
    except AnalysisException as refused:
        words = (refused.getMessage() or refused.getCondition() or "it can't be run").split("\n")[0][:300]
        raise ViewRefused(f"Spark SQL refuses the query: {words}") from refused
    except (PySparkException, Py4JError) as failed:
        condition = failed.getCondition() if isinstance(failed, PySparkException) else None
        is_late = not timer.is_alive()
        spark = f"Spark says {condition or type(failed).__name__}"
        found = f"it took longer than {seconds:.0f} s" if is_late else spark
        raise ViewNotComputed(
            "computing a view at its interval",
            found,
            data="The view stays at its last version; tables and other views go on",
            remedy="Have the query read or give less, or give it a longer interval; mend values that it can't compute",
        ) from failed
    finally:
        timer.cancel()
        context.setLocalProperty("spark.jobGroup.id", "")
