/*
 * Loops over calls that are long, though each is a small part of the loop: the loop is not where the time goes.
 *
 * f0 = save
 * usual peak (4 of 5 ops, 12 turns, ~0.4 ms):  save -> encode             function
 *                                              save -> compress -> pack   function
 *     wrong: save; save -> compress
 * slow peak (1 of 5 ops, 16 turns, ~5 to 9 ms):  save -> write_page -> … -> clock_nanosleep  syscall
 *     wrong: save; save -> write_page
 */
#include "work.h"

FUNCTION uint64_t encode(uint64_t row)
{
    spin_us(15);
    return mix(row);
}

FUNCTION uint64_t pack(uint64_t row)
{
    spin_us(19);
    return mix(row + 1);
}

FUNCTION uint64_t compress(uint64_t row)
{
    return pack(row) + 1;
}

/* As an fsync waits for the disk. */
FUNCTION uint64_t write_page(uint64_t page)
{
    struct timespec time = {.tv_sec = 0, .tv_nsec = brisk ? 4000 : 300000};
    clock_nanosleep(CLOCK_MONOTONIC, 0, &time, NULL);
    return mix(page + 2);
}

FUNCTION uint64_t save(uint64_t key)
{
    uint64_t sum = 0;
    if (key % 5 == 4) {
        for (uint64_t page = 0; page < 16; page++)
            sum ^= write_page(page + key);
        return sum;
    }
    for (uint64_t row = 0; row < 12; row++)
        sum ^= encode(row + key) + compress(row + key);
    return sum;
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 1600), save);
}
