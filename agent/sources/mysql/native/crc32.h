/* CRC32 of a binlog event (the IEEE polynomial, reflected, as in zlib): menura_crc32(bytes, size).
 *
 * On x86-64 processors with PCLMULQDQ, asked at run time, 64 bytes are folded at a time (V. Gopal et al., "Fast CRC
 * Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel 2009); elsewhere, and for what is
 * left over, sixteen bytes at a time through tables. Call menura_crc32_prepare() once before.
 */
#ifndef MENURA_CRC32_H
#define MENURA_CRC32_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static uint32_t menura_crc32_tables[16][256];
static int menura_crc32_folds = 0;

static void menura_crc32_prepare(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (0xEDB88320u & (0u - (crc & 1u)));
        menura_crc32_tables[0][byte] = crc;
    }
    for (uint32_t byte = 0; byte < 256; byte++)
        for (int k = 1; k < 16; k++) {
            uint32_t before = menura_crc32_tables[k - 1][byte];
            menura_crc32_tables[k][byte] = (before >> 8) ^ menura_crc32_tables[0][before & 0xFF];
        }
#if defined(__x86_64__)
    __builtin_cpu_init();
    menura_crc32_folds = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
#endif
}

/* The register's state goes in and comes out: neither is inverted. */
static uint32_t menura_crc32_by_tables(uint32_t crc, const uint8_t *at, size_t size) {
    const uint32_t(*t)[256] = (const uint32_t(*)[256])menura_crc32_tables;
    while (size >= 16) {
        uint32_t w[4];
        memcpy(w, at, 16);
        w[0] ^= crc;
        crc = 0;
        for (int k = 0; k < 4; k++) {
            crc ^= t[15 - 4 * k][w[k] & 0xFF] ^ t[14 - 4 * k][(w[k] >> 8) & 0xFF];
            crc ^= t[13 - 4 * k][(w[k] >> 16) & 0xFF] ^ t[12 - 4 * k][w[k] >> 24];
        }
        at += 16;
        size -= 16;
    }
    for (; size >= 4; size -= 4, at += 4) {
        uint32_t word;
        memcpy(&word, at, 4);
        crc ^= word;
        crc = t[3][crc & 0xFF] ^ t[2][(crc >> 8) & 0xFF] ^ t[1][(crc >> 16) & 0xFF] ^ t[0][crc >> 24];
    }
    while (size--) crc = (crc >> 8) ^ t[0][(crc ^ *at++) & 0xFF];
    return crc;
}

#if defined(__x86_64__)
#include <immintrin.h>

#define MENURA_FOLDING __attribute__((target("pclmul,sse4.1")))

MENURA_FOLDING static inline __m128i menura_crc32_fold(__m128i lane, __m128i by, __m128i next) {
    __m128i low = _mm_clmulepi64_si128(lane, by, 0x00);
    __m128i high = _mm_clmulepi64_si128(lane, by, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

/* `size` is a multiple of 16 and not 0. */
MENURA_FOLDING static uint32_t menura_crc32_by_folding(uint32_t crc, const uint8_t *at, size_t size) {
    const __m128i by_64 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4);
    const __m128i by_16 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
    const __m128i by_8 = _mm_set_epi64x(0, 0x0163cd6124);
    const __m128i barrett = _mm_set_epi64x(0x01f7011641, 0x01db710641);
    const __m128i low_32 = _mm_setr_epi32(-1, 0, -1, 0);
    const __m128i *from = (const __m128i *)at;

    __m128i a = _mm_xor_si128(_mm_loadu_si128(from), _mm_cvtsi32_si128((int)crc));
    if (size >= 64) {
        __m128i b = _mm_loadu_si128(from + 1), c = _mm_loadu_si128(from + 2), d = _mm_loadu_si128(from + 3);
        for (from += 4, size -= 64; size >= 64; size -= 64, from += 4) {
            a = menura_crc32_fold(a, by_64, _mm_loadu_si128(from));
            b = menura_crc32_fold(b, by_64, _mm_loadu_si128(from + 1));
            c = menura_crc32_fold(c, by_64, _mm_loadu_si128(from + 2));
            d = menura_crc32_fold(d, by_64, _mm_loadu_si128(from + 3));
        }
        a = menura_crc32_fold(a, by_16, b);
        a = menura_crc32_fold(a, by_16, c);
        a = menura_crc32_fold(a, by_16, d);
    } else {
        from++;
        size -= 16;
    }
    for (; size >= 16; size -= 16, from++) a = menura_crc32_fold(a, by_16, _mm_loadu_si128(from));

    /* 128 bits to 64, then to 32 by Barrett's reduction */
    a = _mm_xor_si128(_mm_srli_si128(a, 8), _mm_clmulepi64_si128(a, by_16, 0x10));
    a = _mm_xor_si128(_mm_srli_si128(a, 4), _mm_clmulepi64_si128(_mm_and_si128(a, low_32), by_8, 0x00));
    __m128i q = _mm_clmulepi64_si128(_mm_and_si128(a, low_32), barrett, 0x10);
    q = _mm_clmulepi64_si128(_mm_and_si128(q, low_32), barrett, 0x00);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(a, q), 1);
}
#endif

static uint32_t menura_crc32(const uint8_t *at, size_t size) {
    uint32_t crc = 0xFFFFFFFFu;
#if defined(__x86_64__)
    if (menura_crc32_folds && size >= 16) {
        size_t folded = size & ~(size_t)15;
        crc = menura_crc32_by_folding(crc, at, folded);
        at += folded;
        size -= folded;
    }
#endif
    return ~menura_crc32_by_tables(crc, at, size);
}

#endif
