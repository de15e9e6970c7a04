/*
 * The program and its library have a copy of the marker each; the library's is called.
 *
 * f0 = serve, until library_ends calls darc_end; as many ops again come after it
 * peak (~0.2 ms): serve -> work  function
 */
#include "work.h"

#include "../../include/darc.h"

void library_ends(void);

FUNCTION uint64_t work(uint64_t key)
{
    spin_us(200);
    return mix(key);
}

FUNCTION uint64_t serve(uint64_t key)
{
    uint64_t result = work(key);
    NO_TAIL_CALL();
    return result;
}

static uint64_t many(uint64_t ops)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < ops; i++)
        sum += serve(i % PERIOD);
    return sum;
}

int main(int argc, char **argv)
{
    struct run run = parse_run(argc, argv, 500);
    uint64_t sum = many(run.ops);
    library_ends();
    sum += many(run.ops);
    if (sum == 0)
        darc_end();
    return say_checksum(mix(42), 0);
}
