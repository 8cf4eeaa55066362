"""Floating point numbers from text: `floats.h`, and the table that it needs."""

from libc.stdint cimport uint8_t, uint64_t

cdef extern from "floats.h" nogil:
    enum:
        LEAST_POWER "MENURA_LEAST_POWER"
        MOST_POWER "MENURA_MOST_POWER"

    uint64_t powers_of_five "menura_powers_of_five"[651][2]
    bint menura_read_double(const uint8_t* at, size_t size, double* number)
    bint menura_read_float(const uint8_t* at, size_t size, float* number)


cdef int fill_powers() except -1:
    cdef int place
    for place in range(MOST_POWER - LEAST_POWER + 1):
        q = <object> LEAST_POWER + place
        power = pow(5, abs(q))
        if q < 0:
            # 1 / 5^-q, rounded up
            bits = (power - 1).bit_length()
            power = (1 << (bits + 127 if q >= -27 else 2 * bits + 128)) // power + 1
        power = power << 128 >> power.bit_length()
        powers_of_five[place][0] = power >> 64
        powers_of_five[place][1] = power & 0xFFFFFFFFFFFFFFFF
    return 0


fill_powers()


cdef bint read_double(const uint8_t* at, size_t size, double* number) noexcept nogil:
    return menura_read_double(at, size, number)


cdef bint read_float(const uint8_t* at, size_t size, float* number) noexcept nogil:
    return menura_read_float(at, size, number)


def float8(bytes text not None):
    cdef double number
    return number if read_double(text, len(text), &number) else None


def float4(bytes text not None):
    cdef float number
    return number if read_float(text, len(text), &number) else None
