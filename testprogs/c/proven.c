/*
 * Calls that an experiment can tell apart: those that make an op of `serve` longer when they take longer, and those that do not,
 * since the op waits for a point in time anyway.
 *
 * Two of five ops take 0.04 ms, in parse; one takes 0.4 ms, in eight calls of step; one takes 2.3 ms, in first and second. Longer
 * calls of these make their ops longer by as much. One of five takes 6 ms: it encodes for 0.6 ms and then waits until 6 ms after
 * its beginning. Longer calls of encode, or of what waits, do not make it longer.
 */
#include "work.h"

FUNCTION void parse(void)
{
    spin_us(40);
}

FUNCTION void step(void)
{
    spin_us(50);
}

FUNCTION void first(void)
{
    spin_us(1200);
}

FUNCTION void second(void)
{
    spin_us(1100);
}

FUNCTION void encode(void)
{
    spin_us(600);
}

/* Waits until 6 ms after a point in time. */
FUNCTION void pace(uint64_t since)
{
    uint64_t until = since + (brisk ? 60000 : 6000000);
    struct timespec at = {.tv_sec = (time_t)(until / 1000000000), .tv_nsec = (long)(until % 1000000000)};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
    NO_TAIL_CALL();
}

FUNCTION uint64_t serve(uint64_t key)
{
    uint64_t since = clock_ns(CLOCK_MONOTONIC);
    switch (key % 5) {
    case 2:
        for (int i = 0; i < 8; i++)
            step();
        break;
    case 3:
        first();
        second();
        break;
    case 4:
        encode();
        pace(since);
        break;
    default:
        parse();
    }
    return mix(key);
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 1000), serve);
}
