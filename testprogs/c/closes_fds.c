/*
 * Closes every file descriptor except its standard output, then works.
 *
 * f0 = serve
 * fast peak (4 of 5 ops, ~0.3 ms):  serve -> lookup   function
 *     wrong: serve; serve -> rebuild
 * slow peak (1 of 5 ops, ~2.5 ms):    serve -> rebuild  function
 *     wrong: serve; serve -> lookup
 */
#include "work.h"

FUNCTION uint64_t lookup(uint64_t key)
{
    spin_us(300);
    return mix(key);
}

FUNCTION uint64_t rebuild(uint64_t key)
{
    spin_us(2500);
    return mix(key + 1);
}

FUNCTION uint64_t serve(uint64_t key)
{
    if (key % 5 == 4)
        return rebuild(key) + 1;
    return lookup(key) + 1;
}

int main(int argc, char **argv)
{
    for (int fd = 0; fd < 4096; fd++)
        if (fd != 1)
            close(fd);
    return run_ops(parse_run(argc, argv, 800), serve);
}
