/*
 * Once, after a few ops, a child that borrows the program's memory (vfork) ends by a crash of its own; the program goes on.
 *
 * f0 = serve
 * one peak: serve -> step   function
 */
#include "work.h"

#include <signal.h>
#include <sys/wait.h>

FUNCTION uint64_t step(uint64_t key)
{
    spin_us(500);
    return mix(key);
}

FUNCTION uint64_t serve(uint64_t key)
{
    return step(key) + 1;
}

static uint64_t op(uint64_t key)
{
    static int done;
    int status = 0;
    if (++done == 5) {
        pid_t child = vfork();
        if (child == 0) {
            kill(getpid(), SIGSEGV);
            _exit(0);
        }
        if (child < 0 || waitpid(child, &status, 0) != child || !WIFSIGNALED(status))
            abort();
    }
    return serve(key);
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 400), op);
}
