/*
 * One thread, which makes a child by vfork(2) after each op: whenever it is stopped, it may be waiting for one.
 *
 * f0 = serve
 * one peak: serve -> step   function
 */
#include "work.h"

#include <sys/wait.h>

FUNCTION uint64_t step(uint64_t key)
{
    spin_us(20);
    return mix(key);
}

FUNCTION uint64_t serve(uint64_t key)
{
    return step(key) + 1;
}

static uint64_t op(uint64_t key)
{
    uint64_t result = serve(key);
    pid_t child = vfork();
    if (child == 0)
        _exit(3);
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child || WEXITSTATUS(status) != 3)
        abort();
    return result;
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 2000), op);
}
