/*
 * f0 makes processes: fork with a child that calls f0 itself, vfork and posix_spawn, fork and exec.
 * Only the process itself is measured; the children must not meet a trace of the measuring.
 *
 * f0 = job
 * fast peak (8 of 10 ops, ~0.3 ms):  job -> compute         function
 *     wrong: job; job -> run_child -> … -> wait4
 * slow peak (2 of 10 ops, ~2 to 9 ms):  job -> run_child -> … -> wait4  syscall
 *     wrong: job; job -> run_child; job -> compute
 */
#include "work.h"

#include <spawn.h>
#include <sys/wait.h>

extern char **environ;

static int in_child;

FUNCTION uint64_t job(uint64_t key);

FUNCTION uint64_t compute(uint64_t key)
{
    spin_us(300);
    return mix(key);
}

/* The child calls f0 ten times and gives a byte of the result back. */
FUNCTION int child_work(uint64_t key)
{
    uint64_t sum = 0;
    in_child = 1;
    for (uint64_t i = 0; i < 10; i++)
        sum = mix(sum ^ job(key + i));
    spin_us(2000);
    return (int)(sum & 0x7f);
}

/*
 * Not even a local of the parent is written between vfork and exec or _exit. vfork itself stays out
 * of the function that waits: the child returns into no frame.
 */
FUNCTION int vforked_status(uint64_t key)
{
    int status = 0;
    pid_t child = vfork();
    if (child == 0) {
        job(key);
        execl("/bin/true", "true", (char *)NULL);
        _exit(99);
    }
    waitpid(child, &status, 0);
    return WEXITSTATUS(status) + (WIFSIGNALED(status) ? 1000 : 0);
}

FUNCTION uint64_t run_child(uint64_t key)
{
    int status = 0;
    pid_t child = fork();
    if (child < 0)
        abort();
    if (child == 0)
        _exit(child_work(key));
    waitpid(child, &status, 0);
    return mix(key + (uint64_t)WEXITSTATUS(status) + (WIFSIGNALED(status) ? 1000 : 0));
}

FUNCTION uint64_t spawn(uint64_t key)
{
    char *arguments[] = {"true", NULL};
    pid_t child;
    int status = 0;
    if (posix_spawn(&child, "/bin/true", NULL, NULL, arguments, environ) != 0)
        abort();
    waitpid(child, &status, 0);
    return mix(key + (uint64_t)status);
}

FUNCTION uint64_t fork_and_exec(uint64_t key)
{
    int status = 0;
    pid_t child = fork();
    if (child < 0)
        abort();
    if (child == 0) {
        job(key + 1);
        execl("/bin/true", "true", (char *)NULL);
        _exit(99);
    }
    waitpid(child, &status, 0);
    return mix(key + (uint64_t)status);
}

FUNCTION uint64_t job(uint64_t key)
{
    if (!in_child && key % 5 == 4)
        return run_child(key) + 1;
    return compute(key) + 1;
}

/* The other ways to make a process stand outside f0, one each a period. */
static uint64_t op(uint64_t key)
{
    uint64_t others = 0;
    if (key == 0)
        others = (uint64_t)vforked_status(key);
    else if (key == 5)
        others = spawn(key);
    else if (key == 10)
        others = fork_and_exec(key);
    return job(key) ^ others;
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 1800), op);
}
