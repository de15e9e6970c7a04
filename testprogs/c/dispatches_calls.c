/*
 * Handles system calls of its own code itself (PR_SET_SYSCALL_USER_DISPATCH), as programs do that run others' binaries: while it
 * is in f0 its system call becomes a SIGSYS, which its handler counts.
 *
 * f0 = serve
 */
#include "work.h"

#include <signal.h>
#include <sys/prctl.h>

#ifndef PR_SET_SYSCALL_USER_DISPATCH
#define PR_SET_SYSCALL_USER_DISPATCH 59
#define PR_SYS_DISPATCH_ON 1
#endif

enum { ALLOW, BLOCK };
static volatile char selector = ALLOW;
static volatile int dispatched;

static void count(int signal)
{
    (void)signal;
    selector = ALLOW;
    dispatched++;
}

FUNCTION uint64_t step(uint64_t key)
{
    spin_us(500);
    return mix(key);
}

FUNCTION uint64_t serve(uint64_t key)
{
    selector = BLOCK;
    uint64_t sum = step(key) + 1;
    /* Its handler allows the calls behind it. */
    getppid();
    return sum;
}

int main(int argc, char **argv)
{
    struct run run = parse_run(argc, argv, 2000);
    struct sigaction action = {.sa_handler = count};
    if (sigaction(SIGSYS, &action, NULL) != 0
        || prctl(PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON, 0, 0, &selector) != 0)
        return 77;
    int status = run_ops(run, serve);
    printf("dispatched=%s\n", dispatched > 0 ? "yes" : "no");
    return status;
}
