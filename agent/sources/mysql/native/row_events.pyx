"""Rows events: the rows of the tables that have a plan, into their batches.

Comes in: the body of a WRITE, UPDATE or DELETE_ROWS event and what the loop knows of the stream (the header, the
transaction, the tables that were announced). Goes out: rows in the batches of the plans, which Python takes.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport free

from agent.columnar.batch cimport MOST_BATCH_BYTES, Batch, add_transaction, batch_bytes, truncate_batch
from agent.columnar.collector cimport (
    DELETE, INSERT, UPDATE_PREIMAGE, RowCollector, holds, is_full, knows_transaction, row_appended
)
from agent.sources.mysql.native.images cimport Layout, append_image, count_bits, has_bit
from agent.sources.mysql.native.inflate cimport inflate
from agent.sources.mysql.native.plan cimport Plan, TablePlan
from agent.sources.mysql.native.rows cimport append_row
from agent.sources.mysql.native.tables cimport Table, find_table
from agent.sources.mysql.native.transactions cimport OUTSIDE, name_position
from agent.sources.mysql.native.values cimport le16, le48

cdef enum:
    WRITE_ROWS_EVENT = 30
    PARTIAL_UPDATE_ROWS_EVENT = 39
    WRITE_ROWS_COMPRESSED_EVENT_V1 = 166
    WRITE_ROWS_COMPRESSED_EVENT = 169
    # the table id of a rows event that only ends a statement
    DUMMY_TABLE_ID = 0xFFFFFF
    # no table's key: an id has 6 bytes
    SEVERAL = -1

cdef enum:
    STMT_END_F = 1
    NO_FOREIGN_KEY_CHECKS_F = 2
    # of an event's rest that may be one row: between its two images a batch may end
    LARGE_ROW_BYTES = 4 << 20


cdef class RowsReader(RowCollector):
    """The tables and rows of one stream. Steps return GO_ON, FAILED with the reason in `row.failure`, or BATCH_FULL."""

    def __dealloc__(self):
        free(self.tables.places)

    cdef int fail(self, const char* why) noexcept nogil:
        snprintf(self.row.failure, sizeof(self.row.failure), b"%s", why)
        return FAILED

    cdef int read_rows(self, const uint8_t* body, size_t size, int kind) noexcept nogil:
        """
        6 table id   2 flags   v2: 2 length of itself and of what follows it   number of columns
        columns present (UPDATE: of the before image, of the after image)   rows
        """
        cdef uint64_t table_id
        cdef bint ends_statement, are_off
        cdef Table* table
        cdef int step = GO_ON
        if size < 8:
            return self.fail(b"a rows event that is too short")
        table_id = le48(body)
        ends_statement = le16(body + 6) & STMT_END_F
        table = find_table(&self.tables, table_id)
        if table == NULL or table.statement != self.statement:
            if table_id != DUMMY_TABLE_ID:
                self.failed_table_id = <int64_t> table_id
                return self.fail(b"rows of a table that its statement has not announced")
        elif table.plan != NULL and table.plan.rows.active:
            self.failed_table_id = <int64_t> table_id
            are_off = (le16(body + 6) & NO_FOREIGN_KEY_CHECKS_F) != 0
            if kind != INSERT and (table.plan.unchecked_from == 0 if are_off else self.unchecked_count > 0):
                if not self.note_checks(table.plan, are_off):
                    return self.fail(b"out of memory")
            step = self.read_planned_rows(table.plan, body, size, kind)
        if table != NULL:
            table.rows_statement = self.statement
            if table.followed != NULL and not le16(body + 6) & NO_FOREIGN_KEY_CHECKS_F:
                table.followed.deleted = table.followed.deleted or kind == DELETE
                table.followed.updated = table.followed.updated or kind == UPDATE_PREIMAGE
                if step != FAILED and (
                    (kind == DELETE and table.followed.stops_at_delete)
                    or (kind == UPDATE_PREIMAGE and table.followed.stops_at_update)
                ):
                    self.are_rows_missing = True
                    self.failed_table_id = <int64_t> table_id
                    return self.fail(b"rows that others follow by foreign keys were changed")
            if kind == DELETE:
                self.deleted_from = table.key if self.deleted_from in (0, table.key) else <uint64_t> SEVERAL
            elif kind == UPDATE_PREIMAGE:
                self.updated_in = table.key if self.updated_in in (0, table.key) else <uint64_t> SEVERAL
        return self.end_statement() if step == GO_ON and ends_statement else step

    cdef bint note_checks(self, Plan* plan, bint are_off) noexcept with gil:
        """From here on rows of the plan are changed without foreign keys, or rows of some table with them again."""
        try:
            if are_off:
                self.unchecked_plans.append(<object> plan.rows.owner)
                self.unchecked_count += 1
                plan.unchecked_from = self.gsn
            else:
                self.end_unchecked()
        except MemoryError:
            return False
        return True

    cdef int end_unchecked(self) except -1:
        """A row with foreign keys comes, or the cut ends: all open ranges end. What that row's keys do to another table
        has the row's number, and a range says that no key acts on its rows. Each end takes a number."""
        cdef Plan* plan
        while self.unchecked_plans:
            owner = self.unchecked_plans[len(self.unchecked_plans) - 1]
            plan = &(<TablePlan> owner).plan
            self.unchecked.append((owner, plan.unchecked_from, self.gsn))
            self.unchecked_plans.pop()
            self.unchecked_count -= 1
            plan.unchecked_from = 0
            self.gsn += 1
        return 0

    cdef void expect_rows(self, const Table* table) noexcept nogil:
        """The statement has announced the table: where it may be changed in silence, its rows have to come."""
        cdef const Plan* plan = table.plan
        if plan == NULL or not plan.rows.active or not (plan.follows_deletes or plan.follows_updates):
            return
        if self.cascading_count < MOST_CASCADING:
            self.cascading[self.cascading_count] = table.key - 1
        self.cascading_count += 1

    cdef int end_statement(self) noexcept nogil:
        cdef Table* table
        cdef size_t i
        for i in range(self.cascading_count):
            table = find_table(&self.tables, self.cascading[i if i < MOST_CASCADING else 0])
            if table != NULL and table.plan != NULL and table.plan.tells_missing:
                table.plan.lacks_rows = table.plan.lacks_rows or i >= MOST_CASCADING or self.may_lack_rows(table)
            elif table != NULL and (i >= MOST_CASCADING or self.may_lack_rows(table)):
                self.failed_table_id = <int64_t> (table.key - 1)
                self.are_rows_missing = True
                return self.fail(
                    b"a foreign key's action (CASCADE, SET NULL) or a MERGE table may have changed rows in a"
                    b" statement, which this server does not log as this table's"
                )
        self.begin_statement()
        return GO_ON

    cdef bint may_lack_rows(self, const Table* table) noexcept nogil:
        """Announced without rows, or beside rows whose change may have changed it too."""
        cdef const Plan* plan = table.plan
        cdef bint others = self.deleted_from != 0 and self.deleted_from != table.key
        if plan == NULL:
            return True
        if table.rows_statement != self.statement:
            return plan.follows_deletes or self.deleted_from == 0 or self.updated_in != 0
        if plan.follows_deletes and (others or (plan.follows_itself and self.deleted_from != 0)):
            return True
        return plan.follows_updates and self.updated_in != 0 and self.updated_in != table.key

    cdef void begin_statement(self) noexcept nogil:
        self.cascading_count = 0
        self.deleted_from = 0
        self.updated_in = 0
        self.statement += 1

    cdef int read_planned_rows(self, Plan* plan, const uint8_t* body, size_t size, int kind) noexcept nogil:
        cdef Layout layout
        cdef size_t at = 8, bitmap = (plan.column_count + 7) // 8
        cdef uint64_t columns
        cdef int image
        if self.transaction.phase == OUTSIDE:
            return self.fail(b"rows outside of a transaction")
        if has_extra_data(self.header.type):
            if size < 10 or le16(body + 8) < 2 or le16(body + 8) > size - 8:
                return self.fail(b"a rows event that is too short")
            at += le16(body + 8)
        if size - at < 2:
            return self.fail(b"a rows event that is too short")
        columns = body[at]
        at += 1
        if columns == 0xFC:
            if size - at < 2:
                return self.fail(b"a rows event that is too short")
            columns = le16(body + at)
            at += 2
        if columns != <uint64_t> plan.column_count:
            return self.fail(b"rows with another number of columns than their table map")
        layout.is_whole[1] = True
        layout.has_options = self.header.type == PARTIAL_UPDATE_ROWS_EVENT
        for image in range(2 if kind == UPDATE_PREIMAGE else 1):
            if size - at < bitmap:
                return self.fail(b"a rows event that is too short")
            layout.present[image] = body + at
            layout.is_whole[image] = is_complete(body + at, plan.column_count)
            layout.null_bytes[image] = bitmap
            if not layout.is_whole[image]:
                layout.null_bytes[image] = (count_bits(body + at, plan.column_count) + 7) // 8
            at += bitmap
        layout.is_whole[1] = layout.is_whole[1] and not layout.has_options
        if layout.null_bytes[0] == 0:
            # as INSERT ... () VALUES () under MINIMAL, which takes no byte per row
            return self.fail(b"rows that the log holds no column of, nor how many: set binlog_row_image to FULL")
        if self.mariadb and not layout.is_whole[1] and self.lacks_generated_values(plan, &layout):
            self.lacks_generated = layout.present[1]
            return self.fail(b"an update without generated columns, which MariaDB leaves out although they change")
        if self.mariadb and not layout.is_whole[1] and self.may_be_replace(plan, &layout):
            self.is_annotation_missing = not self.annotated
            return self.fail(
                b"an update that may be a REPLACE, of which MariaDB does not log what it set to defaults:"
                b" set binlog_row_image to FULL"
            )
        if self.header.type >= WRITE_ROWS_COMPRESSED_EVENT_V1:
            return self.append_inflated(plan, &layout, body + at, size - at, kind)
        return self.append_rows(plan, &layout, body, at, size, kind)

    cdef bint may_be_replace(self, const Plan* plan, const Layout* layout) noexcept nogil:
        """Whether what the after image lacks may have changed.

        MariaDB logs a REPLACE of a row as an update whose after image has the columns that the statement named. So has
        that of an INSERT ... ON DUPLICATE KEY UPDATE, which leaves the others alone. Both name the key, other than most
        updates. The annotation tells them apart where no trigger or function can have written the table.
        """
        cdef int32_t i
        cdef bint lacks = False
        for i in range(plan.column_count):
            if has_bit(layout.present[0], i) and not has_bit(layout.present[1], i):
                return False
            lacks = lacks or (plan.values[i].sent and not has_bit(layout.present[1], i))
        return lacks and not (
            self.annotated_statement == self.statement and self.annotated_update and self.annotated_tables == 1
        )

    cdef bint lacks_generated_values(self, const Plan* plan, const Layout* layout) noexcept nogil:
        cdef int32_t i
        for i in range(plan.column_count):
            if plan.values[i].computed and plan.values[i].sent and not has_bit(layout.present[1], i):
                return True
        return False

    cdef int append_inflated(
        self, Plan* plan, const Layout* layout, const uint8_t* compressed, size_t size, int kind
    ) noexcept with gil:
        """Rows that MariaDB compressed; they stay inflated until all are in batches."""
        cdef const char* why = NULL
        cdef const uint8_t* rows
        cdef size_t rows_size
        cdef int step
        if not self.resume_at:
            self.inflated = inflate(compressed, size, &why)
        if self.inflated is None:
            return self.fail(why)
        rows, rows_size = <const uint8_t*> PyBytes_AS_STRING(self.inflated), PyBytes_GET_SIZE(self.inflated)
        with nogil:
            step = self.append_rows(plan, layout, rows, 0, rows_size, kind)
        if step != BATCH_FULL:
            self.inflated = None
        return step

    cdef int append_rows(
        self, Plan* plan, const Layout* layout, const uint8_t* rows, size_t start, size_t size, int kind
    ) noexcept nogil:
        """All rows of an event, or up to a full batch, after which `resume_at` is where to go on."""
        cdef const uint8_t* at = rows + (self.resume_at if self.resume_at else start)
        cdef const uint8_t* end = rows + size
        cdef const uint8_t* before_image = rows + self.resume_before
        cdef const uint8_t* after
        cdef bint is_after = self.resume_after
        cdef Batch* batch = &plan.rows.batch
        cdef size_t bytes_before = batch_bytes(batch), bytes_now, text_bytes
        cdef int64_t last_gsn
        self.resume_at = 0
        self.resume_after = False
        while at < end or is_after:
            if is_full(self, batch, end - at) and (not is_after or end - at >= LARGE_ROW_BYTES):
                return self.leave(layout, start, at - rows, before_image - rows, is_after)
            if not self.begin_row(plan):
                return self.fail(b"out of memory")
            text_bytes, last_gsn = batch.text_bytes, batch.last_gsn
            if layout.is_whole[is_after]:
                after = append_row(plan, kind + is_after, self.gsn, at, end, &self.row, &self.failed_column)
            else:
                after = append_image(
                    plan, kind + is_after, self.gsn, layout, before_image if is_after else NULL, at, end, &self.row,
                    &self.failed_column
                )
            if after == NULL:
                return FAILED
            bytes_now = batch_bytes(batch)
            if bytes_now > MOST_BATCH_BYTES:
                truncate_batch(batch, batch.rows - 1, batch.rows, text_bytes)
                batch.last_gsn = last_gsn
                self.pending_size += batch_bytes(batch) - bytes_before
                if batch.rows == 0:
                    return self.fail(b"a row larger than 250 MiB, which no batch can hold")
                return self.leave(layout, start, at - rows, before_image - rows, is_after)
            before_image = at
            at = after
            row_appended(self, bytes_now - bytes_before)
            bytes_before = bytes_now
            is_after = kind == UPDATE_PREIMAGE and not is_after
        return GO_ON

    cdef int leave(self, const Layout* layout, size_t first, size_t at, size_t before, bint is_after) noexcept nogil:
        """Go on at `at` when the batches were taken; a partial after image takes values from the one before it."""
        self.resume_at = at
        self.resume_before = before
        self.resume_after = is_after
        self.resume_first = first
        self.resume_needs = before if is_after and not layout.is_whole[1] else at
        return BATCH_FULL

    cdef bint begin_row(self, Plan* plan) noexcept nogil:
        """The batch knows the row's transaction, and the decoder the batch."""
        cdef Batch* batch = &plan.rows.batch
        if not holds(self, plan.rows):
            return False
        if knows_transaction(self, batch):
            return True
        name_position(&self.transaction, self.mariadb, self.file)
        return add_transaction(
            batch, self.transaction_id, self.transaction.commit_timestamp_us, self.transaction.position,
            self.transaction.position_size,
        )


cdef inline bint is_complete(const uint8_t* bitmap, int32_t columns) noexcept nogil:
    """All of the bits of `columns` columns are set."""
    cdef int32_t i
    for i in range(columns // 8):
        if bitmap[i] != 0xFF:
            return False
    return not columns % 8 or (bitmap[columns // 8] | (0xFF << (columns % 8)) & 0xFF) == 0xFF


cdef inline bint has_extra_data(uint8_t type_) noexcept nogil:
    """Rows events of version 2."""
    return WRITE_ROWS_EVENT <= type_ < WRITE_ROWS_COMPRESSED_EVENT_V1 or type_ >= WRITE_ROWS_COMPRESSED_EVENT
