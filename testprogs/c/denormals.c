/*
 * The same function on ordinary numbers and on denormal ones, which many processors are slow with: no call is the cause but its own.
 *
 * f0 = serve
 * only peak (every op, ~0.1 to 9 ms):  serve -> filter  function
 *     wrong: serve; serve -> check
 */
#include "work.h"

FUNCTION uint64_t filter(uint64_t key)
{
    volatile double seed = key % 5 == 4 ? 1e-310 : 1.0;
    double value = seed, sum = 0;
    for (int i = 0; i < (brisk ? 300 : 30000); i++) {
        value = value * 0.5 + seed * 0.5;
        sum += value;
    }
    return mix(key + (sum < 0));
}

FUNCTION uint64_t check(uint64_t key)
{
    spin_us(2);
    return mix(key + 1);
}

FUNCTION uint64_t serve(uint64_t key)
{
    uint64_t found = filter(key);
    return (found ^ check(key)) + 1;
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 4000), serve);
}
