from libc.stdint cimport uint8_t

# False: text that is no number, or one beyond the type's range.
cdef bint read_double(const uint8_t* at, size_t size, double* number) noexcept nogil
cdef bint read_float(const uint8_t* at, size_t size, float* number) noexcept nogil
