/*
 * A function that calls itself twice in a call, as sorting does: each depth has a twelfth of the time. All of that is one cause, and
 * not the first depths of it.
 *
 * f0 = serve
 * fast peak (3 of 4 ops, ~0.02 ms):  serve -> look                function
 * slow peak (1 of 4 ops, ~0.2 to 8 ms):  serve -> arrange -> arrange -> …  function
 *     wrong: serve; serve -> arrange
 */
#include "work.h"

FUNCTION uint64_t arrange(uint64_t key, uint64_t count)
{
    if (count < 2)
        return mix(key);
    uint64_t left = arrange(key, count / 2);
    uint64_t right = arrange(left + 1, count - count / 2);
    /* Time in proportion to what is put together. */
    for (uint64_t at = 0; at < 8 * count; at++)
        right = mix(right + at);
    return right ^ left;
}

FUNCTION uint64_t look(uint64_t key)
{
    spin_us(20);
    return mix(key);
}

FUNCTION uint64_t serve(uint64_t key)
{
    return (key % 4 == 3 ? arrange(key, 4096) : look(key)) + 1;
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 4000), serve);
}
