/*
 * f0 is called through a pointer in one place, and inlined in another: there is no call to measure there.
 *
 * f0 = serve; the report says where it was inlined.
 */
#include "work.h"

INLINE uint64_t serve(uint64_t key)
{
    spin_us(50);
    return mix(key) + 1;
}

static uint64_t (*volatile through_pointer)(uint64_t) = serve;

FUNCTION uint64_t contains_it(uint64_t key)
{
    return serve(key) + 2;
}

static uint64_t op(uint64_t key)
{
    return through_pointer(key) ^ contains_it(key);
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 400), op);
}
