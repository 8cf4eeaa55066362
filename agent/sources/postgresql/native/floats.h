/* Floating point numbers from the server's text, which is the shortest that leads back to the same number.
 *
 * Digits w and a power of ten q become the nearest double: by one division or product where both are exact (W. Clinger);
 * else by the product of w and the 128 leading bits of 5^q (D. Lemire, Number Parsing at a Gigabyte per Second, 2021);
 * by the C library where that can't tell, or where there are more digits than any server prints. */
#ifndef MENURA_FLOATS_H
#define MENURA_FLOATS_H

#include <locale.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MENURA_LEAST_POWER (-342)
#define MENURA_MOST_POWER 308
#define MENURA_MOST_EXACT_POWER 22
#define MENURA_MOST_EXACT_DIGITS (1ULL << 53)
/* so many digits fit into 64 bits */
#define MENURA_MOST_DIGITS 19
/* no server's text is longer */
#define MENURA_MOST_FLOAT_BYTES 400

/* 5^q with its highest bit set: upper and lower half; filled at import */
static uint64_t menura_powers_of_five[MENURA_MOST_POWER - MENURA_LEAST_POWER + 1][2];

static const double menura_exact_powers[MENURA_MOST_EXACT_POWER + 1] = {
    1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
    1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

/* Numbers in the C library's words, whatever the process's locale is; 0: text that is none. */
static int menura_library_double(const uint8_t *at, size_t size, double *number, float *narrow) {
    static locale_t plain;
    char text[MENURA_MOST_FLOAT_BYTES + 1], *end;
    locale_t made, none = NULL;
    if (size > MENURA_MOST_FLOAT_BYTES)
        return 0;
    if (__atomic_load_n(&plain, __ATOMIC_ACQUIRE) == NULL) {
        made = newlocale(LC_ALL_MASK, "C", (locale_t)0);
        if (made == NULL)
            return 0;
        if (!__atomic_compare_exchange_n(&plain, &none, made, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            freelocale(made);
    }
    memcpy(text, at, size);
    text[size] = 0;
    if (narrow != NULL)
        *narrow = strtof_l(text, &end, plain);
    else
        *number = strtod_l(text, &end, plain);
    return end == text + size;
}

/* -?digits[.digits][e[+-]digits]: its digits without the point and the power of ten of the last one; 0: it is none, -1:
 * it has more digits than `digits` holds. */
static inline int menura_read_decimal(const uint8_t *at, const uint8_t *end, uint64_t *digits, int64_t *power) {
    const uint8_t *point = NULL, *first = at;
    uint64_t number = 0;
    int64_t exponent = 0;
    int is_negative;
    for (; at < end; at++) {
        if ((uint8_t)(*at - '0') <= 9)
            number = number * 10 + (uint8_t)(*at - '0');
        else if (*at == '.' && point == NULL)
            point = at;
        else
            break;
    }
    if (at - first == (point != NULL))
        return 0;
    *power = point == NULL ? 0 : point + 1 - at;
    *digits = number;
    number = (uint64_t)(at - first - (point != NULL));
    if (at < end) {
        if (*at++ != 'e' || at == end)
            return 0;
        is_negative = *at == '-';
        at += *at == '-' || *at == '+';
        if (at == end || end - at > 6)
            return 0;
        for (; at < end; at++) {
            if ((uint8_t)(*at - '0') > 9)
                return 0;
            exponent = exponent * 10 + (*at - '0');
        }
        *power += is_negative ? -exponent : exponent;
    }
    return number > MENURA_MOST_DIGITS ? -1 : 1;
}

/* The double nearest to digits * 10^power as its bits, without a sign; 0: not told. */
static inline int menura_nearest_double(uint64_t digits, int64_t power, uint64_t *bits) {
    unsigned __int128 product, more;
    uint64_t high, low, mantissa;
    int zeros, upper, shift;
    int64_t exponent;
    *bits = 0;
    if (digits == 0 || power < MENURA_LEAST_POWER)
        return 1;
    if (power > MENURA_MOST_POWER)
        return 0;
    zeros = __builtin_clzll(digits);
    digits <<= zeros;
    product = (unsigned __int128)digits * menura_powers_of_five[power - MENURA_LEAST_POWER][0];
    if (((uint64_t)(product >> 64) & 0x1FF) == 0x1FF) {
        more = (unsigned __int128)digits * menura_powers_of_five[power - MENURA_LEAST_POWER][1];
        product += (uint64_t)(more >> 64);
    }
    high = (uint64_t)(product >> 64);
    low = (uint64_t)product;
    if (low == UINT64_MAX && (power < -27 || power > 55))
        return 0;
    upper = (int)(high >> 63);
    shift = upper + 9;
    mantissa = high >> shift;
    /* ceil(log2(10^power)) + 63, counted as doubles count exponents */
    exponent = ((217706 * power) >> 16) + 63 + upper - zeros + 1023;
    if (exponent <= 0) {
        if (1 - exponent >= 64)
            return 1;
        mantissa >>= 1 - exponent;
        mantissa = (mantissa + (mantissa & 1)) >> 1;
        *bits = mantissa; /* one that rounds up to the least normal number has its exponent, 1, in place */
        return 1;
    }
    if (low <= 1 && power >= -4 && power <= 23 && (mantissa & 3) == 1 && mantissa << shift == high)
        mantissa &= ~1ULL; /* exactly between two: to the even one */
    mantissa = (mantissa + (mantissa & 1)) >> 1;
    if (mantissa >= 2ULL << 52) {
        mantissa = 1ULL << 52;
        exponent++;
    }
    if (exponent >= 0x7FF)
        return 0;
    *bits = (mantissa & ~(1ULL << 52)) | (uint64_t)exponent << 52;
    return 1;
}

static inline int menura_special(const uint8_t *at, size_t size, double *number) {
    if (size == 3 && memcmp(at, "NaN", 3) == 0)
        *number = NAN;
    else if (size == 8 && memcmp(at, "Infinity", 8) == 0)
        *number = INFINITY;
    else if (size == 9 && memcmp(at, "-Infinity", 9) == 0)
        *number = -INFINITY;
    else
        return 0;
    return 1;
}

/* 0: text that is no number, or one beyond all doubles. */
static inline int menura_read_double(const uint8_t *at, size_t size, double *number) {
    const uint8_t *end = at + size;
    uint64_t digits, bits, sign;
    int64_t power;
    int is_negative, found;
    if (size == 0)
        return 0;
    is_negative = *at == '-';
    found = menura_read_decimal(at + is_negative, end, &digits, &power);
    if (found == 0)
        return menura_special(at, size, number);
    if (found == 1 && digits <= MENURA_MOST_EXACT_DIGITS && power <= MENURA_MOST_EXACT_POWER &&
        power >= -MENURA_MOST_EXACT_POWER) {
        *number = power < 0 ? (double)digits / menura_exact_powers[-power] : (double)digits * menura_exact_powers[power];
        if (is_negative)
            *number = -*number;
        return 1;
    }
    if (found == 1 && menura_nearest_double(digits, power, &bits)) {
        sign = (uint64_t)is_negative << 63;
        bits |= sign;
        memcpy(number, &bits, sizeof(bits));
        return 1;
    }
    return menura_library_double(at, size, number, NULL) && isfinite(*number);
}

/* 0: text that is no number, or one beyond all floats. The double nearest to a number is on the same side of the middle
 * of two floats as the number is, unless it is that middle itself. */
static inline int menura_read_float(const uint8_t *at, size_t size, float *number) {
    uint64_t bits;
    double wide;
    if (!menura_read_double(at, size, &wide))
        return 0;
    memcpy(&bits, &wide, sizeof(bits));
    *number = (float)wide;
    if (!isfinite(wide) || wide == (double)*number)
        return 1;
    if ((bits & 0x1FFFFFFF) == 0x10000000 || fabs(wide) < 0x1p-125)
        if (!menura_library_double(at, size, NULL, number))
            return 0;
    return isfinite(*number) != 0;
}

#endif
