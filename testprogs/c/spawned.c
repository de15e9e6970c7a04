/*
 * A step that another program does: it is started, and waited for.
 *
 * f0 = run_step
 * fast peak (4 of 5 ops, ~0.05 ms):   run_step -> parse                         function
 *     wrong: run_step -> start_tool
 * slow peak (1 of 5 ops, ~1 to 4 ms): run_step -> start_tool -> … -> clone3     function
 *                                     run_step -> start_tool -> … -> wait4      syscall
 *     wrong: run_step; run_step -> parse; run_step -> start_tool
 *
 * The child that posix_spawn(3) makes runs in the memory of this program, on another stack, with this thread's pointer. The thread waits
 * until the child has executed its program, and then for its end.
 */
#include "work.h"

#include <spawn.h>
#include <sys/wait.h>

extern char **environ;

FUNCTION uint64_t parse(uint64_t key)
{
    spin_us(50);
    return mix(key);
}

FUNCTION uint64_t start_tool(void)
{
    char *arguments[] = {"true", NULL};
    pid_t child;
    int status = 0;
    if (posix_spawn(&child, "/bin/true", NULL, NULL, arguments, environ) != 0)
        abort();
    waitpid(child, &status, 0);
    return (uint64_t)status;
}

FUNCTION uint64_t run_step(uint64_t key)
{
    uint64_t status = key % 5 == 4 ? start_tool() : 0;
    return (status ^ parse(key)) + 1;
}

int main(int argc, char **argv)
{
    struct run run = parse_run(argc, argv, 1000);
    return run_ops(run, run_step);
}
