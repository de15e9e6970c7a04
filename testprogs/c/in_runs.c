/*
 * Two causes of one peak that do not alternate: some hundred ops of one, some hundred of the other, as it comes.
 *
 * f0 = serve
 * only peak (every op, ~16 us):  serve -> get  function
 *                                serve -> set  function
 *     wrong: serve; serve -> log_it
 */
#include "work.h"

enum { RUN = 100 };

FUNCTION uint64_t get(uint64_t key)
{
    spin_us(16);
    return mix(key);
}

FUNCTION uint64_t set(uint64_t key)
{
    spin_us(8);
    spin_us(8);
    return mix(key);
}

FUNCTION uint64_t log_it(uint64_t key)
{
    return mix(key ^ 3);
}

FUNCTION uint64_t serve(uint64_t key)
{
    static uint64_t ops;
    uint64_t sum = mix(ops++ / RUN) % 2 ? set(key) : get(key);
    return sum + log_it(key);
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 280000), serve);
}
