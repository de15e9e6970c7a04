/*
 * A loop over calls of the kernel's page of code (vdso(7)), which enter no kernel: each takes some 30 ns, and the loop is the cause.
 *
 * f0 = serve
 * fast peak (4 of 5 ops, ~0.05 ms):       serve -> look         function
 *     wrong: serve; serve -> stamp
 * slow peak (1 of 5 ops, ~0.2 to 3 ms):   serve -> stamp        loop
 *     wrong: serve; serve -> look; serve -> stamp -> clock_gettime
 */
#include "work.h"

FUNCTION uint64_t look(uint64_t key)
{
    spin_us(50);
    return mix(key);
}

FUNCTION uint64_t stamp(uint64_t key)
{
    struct timespec last = {0, 0};
    uint64_t is_back = 0;
    for (int i = 0; i < (brisk ? 100 : 10000); i++) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        is_back |= now.tv_sec < last.tv_sec;
        last = now;
    }
    return mix(key + is_back);
}

FUNCTION uint64_t serve(uint64_t key)
{
    return (key % 5 == 4 ? stamp(key) : look(key)) + 1;
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 4000), serve);
}
