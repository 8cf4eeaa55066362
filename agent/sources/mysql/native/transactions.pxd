"""Where the stream stands: the current transaction, its GTID, and the runs of GTIDs that have finished.

::

    MySQL GTID_LOG_EVENT, ANONYMOUS_GTID_LOG_EVENT
        1 flags   16 server UUID   8 number   1 logical clock's type (2)   8 last committed   8 sequence number
        7 immediate commit timestamp, microseconds; bit 55 set: 7 original commit timestamp   ...
    MySQL GTID_TAGGED_LOG_EVENT (libs/mysql/serialization): packed numbers; a byte's lowest 1 bits tell how many bytes
    follow it, the bits above the next 0 and those bytes are the number; a signed one has its sign in the lowest bit
        version (1)   size   last field that must be known   then each field: its number, its value
        0 flags   1 server UUID, 16 numbers   2 number (signed)   3 tag: size, bytes
        4 last committed (signed)   5 sequence number (signed)   6 immediate commit timestamp, microseconds   ...
    MariaDB GTID_EVENT; the header's server id is the GTID's
        8 sequence number   4 domain   1 flags   ...
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport realloc
from libc.string cimport memcmp, memcpy, memset

from agent.sources.mysql.native.values cimport le32, le64

cdef enum:
    MOST_FILE_BYTES = 512
    MOST_TAG_BYTES = 32
    MOST_POSITION_BYTES = MOST_FILE_BYTES + 32

# of a MariaDB GTID_EVENT
cdef enum:
    FL_STANDALONE = 1
    FL_PREPARED_XA = 64


cdef enum Phase:
    # between two transactions
    OUTSIDE
    # after a GTID: one statement that ends by itself, or BEGIN
    ANNOUNCED
    # ends with XID or COMMIT
    OPEN


# Of a GTID, what stays equal in a run of numbers.
cdef struct Origin:
    uint8_t uuid[16]
    uint8_t tag[MOST_TAG_BYTES]
    uint32_t tag_size
    uint32_t domain
    uint32_t server


cdef struct Run:
    Origin origin
    int64_t first
    int64_t last


cdef struct Runs:
    Run* runs
    size_t count
    size_t capacity


cdef struct Transaction:
    Phase phase
    bint has_gtid
    Origin origin
    int64_t number
    int64_t commit_timestamp_us
    # header's timestamp of its last rows or statement, which a replica's log has too; 0: there is none yet
    uint32_t statement_timestamp
    # offset of its first event
    uint64_t begin
    # number of its first row
    int64_t first_gsn
    # its position in the server's words, made when first asked for
    char position[MOST_POSITION_BYTES]
    size_t position_size


cdef inline bint read_gtid(Transaction* t, const uint8_t* at, size_t size, bint is_anonymous) noexcept nogil:
    cdef uint64_t micros
    memset(&t.origin, 0, sizeof(Origin))
    if size < 25:
        return False
    t.has_gtid = not is_anonymous
    memcpy(t.origin.uuid, at + 1, 16)
    t.number = <int64_t> le64(at + 17)
    if t.has_gtid and t.number <= 0:
        return False
    if size >= 49 and at[25] == 2:
        micros = (<uint64_t> le32(at + 42) | (<uint64_t> le32(at + 45) >> 8 << 32)) & ((<uint64_t> 1 << 55) - 1)
        if micros:
            t.commit_timestamp_us = <int64_t> micros
    return True


cdef inline bint read_packed(const uint8_t** at, const uint8_t* end, uint64_t* number) noexcept nogil:
    """A packed number of the serialization library."""
    cdef int more = 0
    cdef int i
    if at[0] == end:
        return False
    while more < 8 and at[0][0] >> more & 1:
        more += 1
    if end - at[0] < 1 + more:
        return False
    number[0] = 0
    for i in range(more):
        number[0] |= <uint64_t> at[0][1 + i] << (8 * i)
    if more < 8:
        number[0] = (number[0] << (7 - more)) | (at[0][0] >> (more + 1))
    at[0] += 1 + more
    return True


cdef inline bint read_tagged_gtid(Transaction* t, const uint8_t* at, size_t size) noexcept nogil:
    """Up to the commit timestamp; what follows it is not needed. Fields come in their numbers' order."""
    cdef const uint8_t* end = at + size
    cdef uint64_t field_number, number
    cdef int i
    memset(&t.origin, 0, sizeof(Origin))
    t.has_gtid = True
    t.number = 0
    if not read_packed(&at, end, &number) or number != 1:
        return False
    if not read_packed(&at, end, &number) or number != size or not read_packed(&at, end, &number):
        return False
    while read_packed(&at, end, &field_number) and field_number <= 6:
        if field_number == 1:
            for i in range(16):
                if not read_packed(&at, end, &number) or number > 255:
                    return False
                t.origin.uuid[i] = <uint8_t> number
            continue
        if not read_packed(&at, end, &number):
            return False
        if field_number == 2:
            t.number = <int64_t> (number >> 1)
        elif field_number == 3:
            if number > MOST_TAG_BYTES or number > <uint64_t> (end - at) or not is_tag(at, number):
                return False
            memcpy(t.origin.tag, at, number)
            t.origin.tag_size = <uint32_t> number
            at += number
        elif field_number == 6:
            if number == 0 or number >> 55:
                return False
            t.commit_timestamp_us = <int64_t> number
            return t.number > 0
    return False


cdef inline bint is_tag(const uint8_t* at, size_t size) noexcept nogil:
    """Letters, digits and underscores, as the server permits."""
    cdef size_t i
    for i in range(size):
        if not (97 <= at[i] <= 122 or 48 <= at[i] <= 57 or at[i] == 95):
            return False
    return True


cdef inline bint read_mariadb_gtid(
    Transaction* t, const uint8_t* at, size_t size, uint32_t server, bint* is_standalone, bint* is_prepared
) noexcept nogil:
    memset(&t.origin, 0, sizeof(Origin))
    if size < 13:
        return False
    t.has_gtid = True
    t.number = <int64_t> le64(at)
    t.origin.domain = le32(at + 8)
    t.origin.server = server
    is_standalone[0] = at[12] & FL_STANDALONE
    is_prepared[0] = at[12] & FL_PREPARED_XA
    return t.number > 0


cdef inline size_t print_uuid(const uint8_t* uuid, char* text) noexcept nogil:
    cdef const char* digits = b"0123456789abcdef"
    cdef size_t i, size = 0
    for i in range(16):
        if i == 4 or i == 6 or i == 8 or i == 10:
            text[size] = 45
            size += 1
        text[size] = digits[uuid[i] >> 4]
        text[size + 1] = digits[uuid[i] & 15]
        size += 2
    return size


cdef inline size_t print_number(int64_t number, char* text) noexcept nogil:
    """A number from 0, without a terminating zero."""
    cdef char reversed_[24]
    cdef size_t size = 0, i
    while True:
        reversed_[size] = <char> (48 + number % 10)
        size += 1
        number //= 10
        if number == 0:
            break
    for i in range(size):
        text[i] = reversed_[size - 1 - i]
    return size


cdef inline size_t print_gtid(const Transaction* t, bint mariadb, char* text) noexcept nogil:
    """MySQL `uuid:number` or `uuid:tag:number`, MariaDB `domain-server-number`."""
    cdef size_t size
    if mariadb:
        return snprintf(
            text, MOST_POSITION_BYTES, b"%u-%u-%lld", t.origin.domain, t.origin.server, <long long> t.number
        )
    size = print_uuid(t.origin.uuid, text)
    text[size] = 58
    size += 1
    if t.origin.tag_size:
        memcpy(text + size, t.origin.tag, t.origin.tag_size)
        size += t.origin.tag_size
        text[size] = 58
        size += 1
    return size + print_number(t.number, text + size)


cdef inline void name_position(Transaction* t, bint mariadb, const char* file) noexcept nogil:
    """Fill `position`: the GTID, or `file:offset` of the transaction's begin."""
    if t.position_size:
        return
    if t.has_gtid:
        t.position_size = print_gtid(t, mariadb, t.position)
    else:
        t.position_size = snprintf(t.position, MOST_POSITION_BYTES, b"%s:%llu", file, <unsigned long long> t.begin)


cdef inline bint add_run(Runs* runs, const Transaction* t) noexcept nogil:
    """The transaction has finished: it continues the last run or begins one."""
    cdef Run* last
    cdef size_t capacity
    cdef void* memory
    if runs.count:
        last = runs.runs + runs.count - 1
        if last.last + 1 == t.number and memcmp(&last.origin, &t.origin, sizeof(Origin)) == 0:
            last.last = t.number
            return True
    if runs.count == runs.capacity:
        capacity = runs.capacity * 2 if runs.capacity else 64
        memory = realloc(runs.runs, capacity * sizeof(Run))
        if memory == NULL:
            return False
        runs.runs = <Run*> memory
        runs.capacity = capacity
    last = runs.runs + runs.count
    memcpy(&last.origin, &t.origin, sizeof(Origin))
    last.first = last.last = t.number
    runs.count += 1
    return True
