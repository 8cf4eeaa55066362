"""MySQL's binary JSON to the text that `SELECT` prints (sql-common/json_binary.cc, json_dom.cc).

::

    value    1 type, then by type:
    0, 1     object, small and large: count, size, count key entries, count value entries, keys, values
    2, 3     array, small and large: count, size, count value entries, values
    4        literal: 0 null, 1 true, 2 false
    5 to 10  int16, uint16, int32, uint32, int64, uint64
    11       double
    12       string: length in 7-bit groups, least significant first; UTF-8
    15       opaque: 1 column type, length as above, bytes

    Numbers are little-endian; count, size and offsets take 2 bytes (small) or 4 (large).
    key entry    offset, 2 length
    value entry  1 type, offset; literals and 16-bit integers (large: also 32-bit) stand in the offset's place
    Offsets count from `count` of the same object or array, whose `size` bounds them.
"""

from cpython.mem cimport PyMem_Free
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.string cimport memchr, memcpy

from agent.columnar.column cimport Column, Row, append_text, end_text, mark_valid
from agent.columnar.values cimport fail, is_utf8
from agent.sources.mysql.native.decimals cimport decimal_size, print_decimal
from agent.sources.mysql.native.values cimport le16, le32, le64

cdef extern from "Python.h":
    char* PyOS_double_to_string(double value, char format_code, int precision, int flags, int* kind)

cdef enum:
    LITERAL = 4
    INT16 = 5
    UINT16 = 6
    INT32 = 7
    UINT32 = 8
    INT64 = 9
    UINT64 = 10
    DOUBLE = 11
    STRING = 12
    OPAQUE = 15

cdef enum:
    MYSQL_TYPE_TIMESTAMP = 7
    MYSQL_TYPE_DATE = 10
    MYSQL_TYPE_TIME = 11
    MYSQL_TYPE_DATETIME = 12
    MYSQL_TYPE_NEWDECIMAL = 246


cdef int decode_json(Column* column, Row* row, const uint8_t* at, size_t size) noexcept nogil:
    """Append the text of one document."""
    cdef Printer printer
    if size == 0:  # what INSERT IGNORE leaves in a NOT NULL column; the server reads it as null, too
        if not append_text(column, row, b"null", 4):
            return fail(row, b"out of memory")
    else:
        printer.column = column
        printer.row = row
        # an entry of 3 bytes prints at most 14, a byte of a string 6
        printer.most_bytes = column.text.size + 32 * size + 64
        if print_value(&printer, at[0], at + 1, size - 1, 0) < 0:
            return -1
    end_text(column, row.number)
    mark_valid(column, row.number)
    return 0


cdef int put(Printer* printer, const void* text, size_t size) noexcept nogil:
    if printer.column.text.size + size > printer.most_bytes:
        return fail(printer.row, b"a JSON document whose parts overlap")
    if not append_text(printer.column, printer.row, text, size):
        return fail(printer.row, b"out of memory, or more than 2 GiB in one column of a batch")
    return 0


cdef int truncated(Printer* printer) noexcept nogil:
    return fail(printer.row, b"a JSON document that ends too early")


cdef int print_value(Printer* printer, uint8_t kind, const uint8_t* at, size_t size, int depth) noexcept nogil:
    """`at` is the first byte behind the type, `size` what there is from there."""
    cdef char text[32]
    cdef int printed
    if kind <= LARGE_ARRAY:
        if depth >= MOST_DEPTH:
            return fail(printer.row, b"a JSON document deeper than 100")
        return print_container(printer, kind, at, size, depth)
    if kind == LITERAL:
        if size < 1:
            return truncated(printer)
        return print_literal(printer, at[0])
    if INT16 <= kind <= UINT64:
        if size < <size_t> (2 << ((kind - INT16) >> 1)):
            return truncated(printer)
        printed = print_integer(text, kind, at)
        return put(printer, text, printed)
    if kind == DOUBLE:
        if size < 8:
            return truncated(printer)
        return print_double(printer, at)
    if kind == STRING:
        return print_string(printer, at, size)
    if kind == OPAQUE:
        return print_opaque(printer, at, size)
    return fail(printer.row, b"a JSON value of unknown type")


cdef int print_literal(Printer* printer, uint8_t literal) noexcept nogil:
    if literal == 0:
        return put(printer, b"null", 4)
    if literal == 1:
        return put(printer, b"true", 4)
    if literal == 2:
        return put(printer, b"false", 5)
    return fail(printer.row, b"an unknown JSON literal")


cdef int print_integer(char* text, uint8_t kind, const uint8_t* at) noexcept nogil:
    cdef int64_t number
    if kind == UINT64:
        return snprintf(text, 32, b"%llu", <unsigned long long> le64(at))
    if kind == INT16:
        number = <int16_t> le16(at)
    elif kind == UINT16:
        number = le16(at)
    elif kind == INT32:
        number = <int32_t> le32(at)
    elif kind == UINT32:
        number = le32(at)
    else:
        number = <int64_t> le64(at)
    return snprintf(text, 32, b"%lld", <long long> number)


cdef bint open_container(Container* container, uint8_t kind, const uint8_t* at, size_t size) noexcept nogil:
    """False: it ends too early."""
    cdef bint is_large = kind == LARGE_OBJECT or kind == LARGE_ARRAY
    cdef size_t width = 4 if is_large else 2
    if size < 2 * width:
        return False
    container.at = at
    container.is_large = is_large
    container.is_object = kind == SMALL_OBJECT or kind == LARGE_OBJECT
    container.width = width
    container.count = le32(at) if is_large else le16(at)
    container.total = le32(at + width) if is_large else le16(at + width)
    container.head = 2 * width + container.count * ((width + 2 if container.is_object else 0) + 1 + width)
    return container.head <= container.total <= size


cdef bint find_member(const Container* container, size_t number, Member* member) noexcept nogil:
    """Of `count`; False: it lies outside of the container."""
    cdef size_t width = container.width, offset
    cdef bint is_large = container.is_large
    cdef const uint8_t* entry = container.at + 2 * width
    member.key, member.key_size = container.at, 0
    if container.is_object:
        entry += number * (width + 2)
        offset = le32(entry) if is_large else le16(entry)
        member.key_size = le16(entry + width)
        if offset > container.total or member.key_size > container.total - offset:
            return False
        member.key = container.at + offset
        entry = container.at + 2 * width + container.count * (width + 2)
    entry += number * (1 + width)
    member.kind = entry[0]
    if member.kind == LITERAL or member.kind == INT16 or member.kind == UINT16 or (
        is_large and (member.kind == INT32 or member.kind == UINT32)
    ):
        member.value = entry + 1
        member.value_size = width
        return True
    offset = le32(entry + 1) if is_large else le16(entry + 1)
    if offset < container.head or offset > container.total:
        return False
    member.value = container.at + offset
    member.value_size = container.total - offset
    return True


cdef int print_container(Printer* printer, uint8_t kind, const uint8_t* at, size_t size, int depth) noexcept nogil:
    """An object or an array, of which `at` is the count."""
    cdef Container container
    cdef Member member
    cdef size_t i
    if not open_container(&container, kind, at, size):
        return truncated(printer)
    if put(printer, b"{" if container.is_object else b"[", 1) < 0:
        return -1
    for i in range(container.count):
        if i and put(printer, b", ", 2) < 0:
            return -1
        if not find_member(&container, i, &member):
            return truncated(printer)
        if container.is_object and (
            print_quoted(printer, member.key, member.key_size) < 0 or put(printer, b": ", 2) < 0
        ):
            return -1
        if print_value(printer, member.kind, member.value, member.value_size, depth + 1) < 0:
            return -1
    return put(printer, b"}" if container.is_object else b"]", 1)


cdef int read_length(const uint8_t* at, size_t size, size_t* length) noexcept nogil:
    """A length in groups of 7 bits; returns its own bytes, 0 when there is none."""
    cdef uint64_t number = 0
    cdef size_t i
    for i in range(5 if size > 5 else size):
        number |= <uint64_t> (at[i] & 0x7F) << (7 * i)
        if not at[i] & 0x80:
            length[0] = number
            return <int> i + 1
    return 0


cdef int print_string(Printer* printer, const uint8_t* at, size_t size) noexcept nogil:
    cdef size_t length
    cdef int prefix = read_length(at, size, &length)
    if prefix == 0 or length > size - prefix:
        return truncated(printer)
    return print_quoted(printer, at + prefix, length)


cdef int print_quoted(Printer* printer, const uint8_t* at, size_t size) noexcept nogil:
    """A string or key in quotes, escaped as the server does."""
    cdef size_t start = 0, i
    cdef char escaped[8]
    cdef const char* short_forms = b"\"\\\b\t\n\f\r"
    cdef const char* letters = b"\"\\btnfr"
    cdef const void* found
    if not is_utf8(at, size, True):
        return fail(printer.row, b"a JSON string that is not UTF-8")
    if put(printer, b"\"", 1) < 0:
        return -1
    for i in range(size):
        if at[i] >= 0x20 and at[i] != 0x22 and at[i] != 0x5C:
            continue
        if put(printer, at + start, i - start) < 0:
            return -1
        start = i + 1
        found = memchr(short_forms, at[i], 7)
        if found != NULL:
            escaped[0] = 0x5C
            escaped[1] = letters[<const char*> found - short_forms]
            if put(printer, escaped, 2) < 0:
                return -1
        else:
            snprintf(escaped, sizeof(escaped), b"\\u%04x", <int> at[i])
            if put(printer, escaped, 6) < 0:
                return -1
    if put(printer, at + start, size - start) < 0:
        return -1
    return put(printer, b"\"", 1)


cdef int print_double(Printer* printer, const uint8_t* at) noexcept nogil:
    """The fewest digits that give the number back, in the server's notation (strings/dtoa.cc, my_gcvt)."""
    cdef double number
    cdef char* shortest
    cdef char digits[40]
    cdef char text[64]
    cdef int size
    memcpy(&number, at, 8)
    if number != number or number - number != 0:
        return fail(printer.row, b"a JSON number that is infinite or none")
    with gil:
        shortest = PyOS_double_to_string(number, c"r", 0, 0, NULL)
        if shortest == NULL:
            return fail(printer.row, b"out of memory")
        snprintf(digits, sizeof(digits), b"%s", shortest)
        PyMem_Free(shortest)
    size = server_notation(digits, text)
    return put(printer, text, size)


cdef int server_notation(const char* shortest, char* text) noexcept nogil:
    """Rewrite Python's shortest text: fixed from 1e-15 to 1e15 and wherever there is a fraction, else D.DDDeN."""
    cdef char digits[32]
    cdef int count = 0, point = 0, size = 0, exponent = 0, i, _
    cdef bint seen_point = False, negative_exponent = False
    cdef const char* at = shortest
    if at[0] == 45:
        text[0] = 45
        size = 1
        at += 1
    while at[0] and at[0] != 101:
        if at[0] == 46:
            seen_point = True
        elif count or at[0] != 48:
            digits[count] = at[0]
            count += 1
            point += not seen_point
        elif seen_point:
            point -= 1
        at += 1
    if at[0] == 101:
        at += 1
        negative_exponent = at[0] == 45
        at += at[0] == 45 or at[0] == 43
        while at[0]:
            exponent = exponent * 10 + at[0] - 48
            at += 1
        point += -exponent if negative_exponent else exponent
    while count and digits[count - 1] == 48:
        count -= 1
    if count == 0:
        memcpy(text + size, b"0.0", 3)
        return size + 3
    if point < -14 or (point > 15 and count <= point):
        text[size] = digits[0]
        size += 1
        if count > 1:
            text[size] = 46
            memcpy(text + size + 1, digits + 1, count - 1)
            size += count
        return size + snprintf(text + size, 16, b"e%d", point - 1)
    if point <= 0:
        memcpy(text + size, b"0.", 2)
        size += 2
        for _ in range(-point):
            text[size] = 48
            size += 1
        memcpy(text + size, digits, count)
        return size + count
    for i in range(point):
        text[size] = digits[i] if i < count else 48
        size += 1
    text[size] = 46
    size += 1
    if count <= point:
        text[size] = 48
        return size + 1
    memcpy(text + size, digits + point, count - point)
    return size + count - point


cdef int print_opaque(Printer* printer, const uint8_t* at, size_t size) noexcept nogil:
    """Values that JSON itself has no type for."""
    cdef size_t length
    cdef int prefix
    cdef uint8_t kind
    if size < 1:
        return truncated(printer)
    kind = at[0]
    prefix = read_length(at + 1, size - 1, &length)
    if prefix == 0 or length > size - 1 - prefix:
        return truncated(printer)
    at += 1 + prefix
    if kind == MYSQL_TYPE_NEWDECIMAL:
        return print_opaque_decimal(printer, at, length)
    if kind == MYSQL_TYPE_DATE or kind == MYSQL_TYPE_TIME or kind == MYSQL_TYPE_DATETIME or (
        kind == MYSQL_TYPE_TIMESTAMP
    ):
        return print_opaque_time(printer, kind, at, length)
    return print_base64(printer, kind, at, length)


cdef int print_opaque_decimal(Printer* printer, const uint8_t* at, size_t size) noexcept nogil:
    """1 precision, 1 scale, the number."""
    cdef char text[96]
    cdef int printed
    if size < 2 or at[0] == 0 or at[0] > 65 or at[1] > 30 or at[1] > at[0]:
        return fail(printer.row, b"a JSON decimal of impossible precision")
    if size - 2 < <size_t> decimal_size(at[0], at[1]):
        return truncated(printer)
    printed = print_decimal(at + 2, at[0], at[1], text)
    if printed < 0:
        return fail(printer.row, b"a decimal with a group of digits that is too large")
    return put(printer, text, printed)


cdef int print_opaque_time(Printer* printer, uint8_t kind, const uint8_t* at, size_t size) noexcept nogil:
    """8 bytes: (year * 13 + month, day | hours, minutes, seconds) << 24 | microseconds; a TIME has no date part."""
    cdef char text[64]
    cdef int printed
    cdef int64_t packed, whole
    cdef int micros, hour, minute, second, year_month, day
    cdef bint is_negative
    if size != 8:
        return truncated(printer)
    packed = <int64_t> le64(at)
    is_negative = packed < 0
    if is_negative:
        packed = <int64_t> (<uint64_t> 0 - <uint64_t> packed)
        if packed < 0:
            return fail(printer.row, b"an impossible date or time in JSON")
    micros = packed & 0xFFFFFF
    whole = packed >> 24
    minute = (whole >> 6) & 63
    second = whole & 63
    if micros > 999999 or minute > 59 or second > 59 or (is_negative and kind != MYSQL_TYPE_TIME):
        return fail(printer.row, b"an impossible date or time in JSON")
    if kind == MYSQL_TYPE_TIME:
        hour = (whole >> 12) & 0x3FF
        printed = snprintf(
            text, sizeof(text), b"\"%s%02d:%02d:%02d.%06d\"", b"-" if is_negative else b"", hour, minute, second, micros
        )
        return put(printer, text, printed)
    hour = (whole >> 12) & 31
    day = (whole >> 17) & 31
    year_month = (whole >> 22) & 0x1FFFF
    if hour > 23 or year_month // 13 > 9999:
        return fail(printer.row, b"an impossible date or time in JSON")
    printed = snprintf(text, sizeof(text), b"\"%04d-%02d-%02d", year_month // 13, year_month % 13, day)
    if kind != MYSQL_TYPE_DATE:
        printed += snprintf(
            text + printed, sizeof(text) - printed, b" %02d:%02d:%02d.%06d", hour, minute, second, micros
        )
    text[printed] = 0x22
    return put(printer, text, printed + 1)


cdef int print_base64(Printer* printer, uint8_t kind, const uint8_t* at, size_t size) noexcept nogil:
    """"base64:typeN:..." with a newline, escaped, after each 76 characters, as the server does."""
    cdef const char* alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    cdef char text[32]
    cdef int printed = snprintf(text, sizeof(text), b"\"base64:type%d:", <int> kind)
    cdef size_t i = 0, left, line = 0
    cdef uint32_t group
    if put(printer, text, printed) < 0:
        return -1
    while i < size:
        left = size - i
        group = <uint32_t> at[i] << 16
        if left > 1:
            group |= <uint32_t> at[i + 1] << 8
        if left > 2:
            group |= at[i + 2]
        text[0] = alphabet[group >> 18]
        text[1] = alphabet[(group >> 12) & 63]
        text[2] = alphabet[(group >> 6) & 63] if left > 1 else 61
        text[3] = alphabet[group & 63] if left > 2 else 61
        if line == 76:
            if put(printer, b"\\n", 2) < 0:
                return -1
            line = 0
        if put(printer, text, 4) < 0:
            return -1
        line += 4
        i += 3
    return put(printer, b"\"", 1)
