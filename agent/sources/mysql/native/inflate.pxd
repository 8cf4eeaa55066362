from libc.stdint cimport uint8_t

cdef bytes inflate(const uint8_t* at, size_t size, const char** why)
