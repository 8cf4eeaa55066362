"""The text of a statement that MariaDB logs before its rows (ANNOTATE_ROWS_EVENT): no more than what it begins with."""

from libc.stdint cimport uint8_t
from libc.string cimport memcmp


cdef inline bint begins_with_update(const uint8_t* text, size_t size) noexcept nogil:
    """UPDATE or INSERT; what is not certain is neither."""
    cdef size_t at = statement_begin(text, size)
    return is_word(text + at, size - at, b"UPDATE") or is_word(text + at, size - at, b"INSERT")


cdef inline size_t statement_begin(const uint8_t* text, size_t size) noexcept nogil:
    """Where the first word is: behind blanks and comments other than executable ones."""
    cdef size_t at = 0
    while at < size:
        if text[at] <= 32:
            at += 1
        elif text[at] == 35 or (size - at > 2 and memcmp(text + at, b"--", 2) == 0 and text[at + 2] <= 32):
            while at < size and text[at] != 10:
                at += 1
        elif size - at > 3 and memcmp(text + at, b"/*", 2) == 0 and text[at + 2] != 33 and text[at + 2] != 77:
            at += 2
            while at + 1 < size and memcmp(text + at, b"*/", 2) != 0:
                at += 1
            at = at + 2 if at + 1 < size else size
        else:
            break
    return at


cdef inline bint is_word(const uint8_t* text, size_t size, const char* word) noexcept nogil:
    """A word of six capital letters, in any case, and a blank or a comment behind it."""
    cdef size_t i
    if size < 7 or (text[6] > 32 and text[6] != 47):
        return False
    for i in range(6):
        if (text[i] & 0xDF) != word[i]:
            return False
    return True
