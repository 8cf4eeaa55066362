/* Edge coverage of the instrumented core for `tests.fuzz`: gcc's -fsanitize-coverage=trace-pc calls the first function
 * at each basic block. Loaded in front of everything (LD_PRELOAD); single-threaded, as the worker is. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define PLACES (1u << 16)

static uint8_t hits[PLACES];
static uint8_t seen[PLACES];
static uintptr_t before;

void __sanitizer_cov_trace_pc(void)
{
    /* Libraries lie at the same distance from each other in every run, wherever they begin. */
    uintptr_t here = (uintptr_t)__builtin_return_address(0) - (uintptr_t)&before;
    uint8_t *place = &hits[((here ^ before) * 0x9E3779B97F4A7C15u) >> 48];
    *place += *place != 255;
    before = here >> 1;
}

/* Forget the hits of what was not fuzzed. */
void fuzz_begin(void)
{
    memset(hits, 0, sizeof(hits));
    before = 0;
}

/* How many edges were taken for the first time, or in a magnitude of times that is new to them. */
unsigned fuzz_end(void)
{
    unsigned found = 0;
    for (size_t at = 0; at < PLACES; at += 8) {
        uint64_t eight;
        memcpy(&eight, hits + at, 8);
        if (eight == 0)
            continue;
        for (size_t i = at; i < at + 8; i++) {
            uint8_t n = hits[i], magnitude;
            if (n == 0)
                continue;
            magnitude = n < 4 ? 1u << (n - 1) : n < 8 ? 8 : n < 16 ? 16 : n < 32 ? 32 : n < 128 ? 64 : 128;
            if (!(seen[i] & magnitude)) {
                seen[i] |= magnitude;
                found++;
            }
        }
        memset(hits + at, 0, 8);
    }
    before = 0;
    return found;
}

/* Edges taken so far. */
unsigned fuzz_edges(void)
{
    unsigned count = 0;
    for (size_t i = 0; i < PLACES; i++)
        count += seen[i] != 0;
    return count;
}
