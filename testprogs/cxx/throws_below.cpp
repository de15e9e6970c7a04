/*
 * Every other call of serve throws and catches below it, through a call that shows its end by nothing but its return
 * address: a tail call. Linked with the unwinder, of which no function keeps its name.
 */
#include "work.h"

extern "C" FUNCTION uint64_t last(uint64_t key)
{
    spin_us(100);
    if (key % 2 == 0)
        throw key;
    return mix(key);
}

extern "C" FUNCTION uint64_t hop(uint64_t key)
{
    return last(key + 1);
}

extern "C" FUNCTION uint64_t attempt(uint64_t key)
{
    try {
        return hop(key) + 1;
    } catch (uint64_t thrown) {
        return mix(thrown + 2);
    }
}

extern "C" FUNCTION uint64_t serve(uint64_t key)
{
    return attempt(key) ^ 1;
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 2000), serve);
}
