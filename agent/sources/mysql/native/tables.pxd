"""The tables that the log has announced: TABLE_MAP events by table id."""

from libc.stdint cimport uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from agent.sources.mysql.native.plan cimport Changes, Plan


cdef struct Table:
    # table id + 1; 0: a free place
    uint64_t key
    # the TABLE_MAP's body, owned by the decoder
    const uint8_t* body
    size_t body_size
    # NULL: its rows are stepped over
    Plan* plan
    # NULL: no table follows it without being announced itself
    Changes* followed
    # the statement that announced it last: rows belong to a table map of their own statement
    uint64_t statement
    # the statement of its last rows event
    uint64_t rows_statement


# Open addressing; at most half full.
cdef struct Tables:
    Table* places
    size_t capacity
    size_t count


cdef inline Table* find_table(Tables* tables, uint64_t table_id) noexcept nogil:
    """The table, or NULL."""
    cdef size_t place
    if not tables.capacity:
        return NULL
    place = (table_id * <uint64_t> 0x9E3779B97F4A7C15 >> 32) & (tables.capacity - 1)
    while tables.places[place].key:
        if tables.places[place].key == table_id + 1:
            return tables.places + place
        place = (place + 1) & (tables.capacity - 1)
    return NULL


cdef inline Table* put_table(Tables* tables, uint64_t table_id) noexcept nogil:
    """The table's place, a new one when it has none; NULL: no memory."""
    cdef Table* found = find_table(tables, table_id)
    cdef Tables wider
    cdef size_t i
    if found != NULL:
        return found
    if tables.count * 2 >= tables.capacity:
        wider.capacity = tables.capacity * 2 if tables.capacity else 64
        wider.count = 0
        wider.places = <Table*> calloc(wider.capacity, sizeof(Table))
        if wider.places == NULL:
            return NULL
        for i in range(tables.capacity):
            if tables.places[i].key:
                found = put_free(&wider, tables.places[i].key)
                found[0] = tables.places[i]
        free(tables.places)
        tables[0] = wider
    return put_free(tables, table_id + 1)


cdef inline Table* put_free(Tables* tables, uint64_t key) noexcept nogil:
    cdef size_t place = ((key - 1) * <uint64_t> 0x9E3779B97F4A7C15 >> 32) & (tables.capacity - 1)
    while tables.places[place].key:
        place = (place + 1) & (tables.capacity - 1)
    tables.places[place].key = key
    tables.count += 1
    return tables.places + place


cdef inline void clear_tables(Tables* tables) noexcept nogil:
    if tables.capacity:
        memset(tables.places, 0, tables.capacity * sizeof(Table))
    tables.count = 0
