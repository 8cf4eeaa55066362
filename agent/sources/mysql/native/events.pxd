from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from agent.columnar.column cimport Buffer
from agent.sources.mysql.native.inner cimport InnerEvents
from agent.sources.mysql.native.packets cimport Packets
from agent.sources.mysql.native.row_events cimport RowsReader
from agent.sources.mysql.native.transactions cimport Runs


cdef class Event:
    cdef readonly int type
    cdef readonly uint32_t timestamp
    cdef readonly uint32_t server_id
    cdef readonly uint64_t log_pos
    cdef readonly int flags
    cdef readonly bytes body


cdef class EventReader(RowsReader):
    cdef public bint checksum
    cdef public bint keep_events
    cdef Packets packets
    # events inside of the packet that is being read, and those that Python put before it
    cdef InnerEvents payload
    cdef InnerEvents injected
    cdef bytes injected_bytes
    cdef const uint8_t* injected_at
    # table maps and rows events that were kept instead of read
    cdef Buffer kept_events
    cdef Runs runs
    cdef uint64_t end_offset
    # in the file, of all events
    cdef uint64_t furthest_end
    # of the last finished transaction that has a GTID
    cdef uint32_t finished_statement
    cdef Event last_event
    cdef tuple last_error

    cdef int run(self) noexcept nogil
    cdef bint has_large_rows(self) noexcept nogil
    cdef int read_packet(self) noexcept nogil
    cdef void give_back_rows(self) noexcept nogil
    cdef int read_payload(self, const uint8_t* at, size_t size) noexcept nogil
    cdef void keep_error(self, const uint8_t* at, size_t size) noexcept with gil
    cdef int read_event(self, const uint8_t* at, size_t size) noexcept nogil
    cdef uint64_t place_in_file(self, uint32_t log_pos) noexcept nogil
    cdef int dispatch(self, const uint8_t* body, size_t size, size_t event_size) noexcept nogil
    cdef int read_compressed(self, const uint8_t* body, size_t size, size_t event_size) noexcept nogil
    cdef int read_compressed_query(self, const uint8_t* body, size_t size, size_t event_size) noexcept with gil
    cdef int hand_over(self, const uint8_t* body, size_t size) noexcept with gil
    cdef int open_payload(self, const uint8_t* body, size_t size) noexcept nogil
    cdef int read_inner(self, InnerEvents inner, const uint8_t* source) noexcept nogil
    cdef int read_inner_event(self, const uint8_t* at, size_t size) noexcept nogil
    cdef int keep_event(self, const uint8_t* body, size_t size) noexcept nogil
    cdef int begin_transaction(self, const uint8_t* body, size_t size, size_t event_size) noexcept nogil
    cdef void start_transaction(self, size_t event_size) noexcept nogil
    cdef int read_query(self, const uint8_t* body, size_t size, size_t event_size) noexcept nogil
    cdef int end_transaction(self) noexcept nogil
    cdef void forget_transaction(self) noexcept nogil
    cdef int read_table_map(self, const uint8_t* body, size_t size) noexcept nogil
    cdef int read_annotation(self, const uint8_t* text, size_t size) noexcept nogil
    cdef void drop_tables(self) noexcept with gil
