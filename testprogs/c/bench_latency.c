/*
 * How fast an analysis is.
 *
 *   bench_latency sites      f0 = many_sites: an op has 50 call sites
 *   bench_latency descent    f0 = serve: some 1,400 ops a second in each of two peaks
 *
 * Fast peak (every other op, ~0.1 ms): serve -> quick                              function
 * Slow peak (every other op, ~0.6 ms): serve -> load -> parse -> decode -> work    function
 *
 * Runs until standard input is at its end.
 */
#include "work.h"

FUNCTION uint64_t leaf(uint64_t key)
{
    spin_us(3);
    return mix(key);
}

#define TEN(key)                                                                              \
    (leaf(key) + leaf(key + 1) + leaf(key + 2) + leaf(key + 3) + leaf(key + 4) + leaf(key + 5) + \
     leaf(key + 6) + leaf(key + 7) + leaf(key + 8) + leaf(key + 9))

FUNCTION uint64_t many_sites(uint64_t key)
{
    return TEN(key) + TEN(key + 10) + TEN(key + 20) + TEN(key + 30) + TEN(key + 40);
}

FUNCTION uint64_t quick(uint64_t key)
{
    spin_us(100);
    return mix(key);
}

FUNCTION uint64_t work(uint64_t key)
{
    spin_us(600);
    return mix(key);
}

FUNCTION uint64_t decode(uint64_t key)
{
    return work(key) + 1;
}

FUNCTION uint64_t parse(uint64_t key)
{
    return decode(key) + 1;
}

FUNCTION uint64_t load(uint64_t key)
{
    return parse(key) + 1;
}

FUNCTION uint64_t serve(uint64_t key)
{
    if (key % 2 == 1)
        return load(key) + 1;
    return quick(key) + 1;
}

int main(int argc, char **argv)
{
    int sites = argc > 1 && strcmp(argv[1], "sites") == 0;
    uint64_t sum = 0;
    say_ready();
    for (uint64_t key = 0; !stdin_closed(); key++)
        sum += sites ? many_sites(key) : serve(key);
    return say_checksum(sum, 0);
}
