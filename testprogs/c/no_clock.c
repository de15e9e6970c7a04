/*
 * A program that forbids itself to read the time stamp counter: the instruction raises SIGSEGV. Its
 * handler counts such signals as the program's own.
 *
 * f0 = serve: peaks do not matter here. part makes a system call, too.
 */
#include "work.h"

#include <signal.h>
#include <sys/prctl.h>

static volatile sig_atomic_t faults;

static void on_fault(int signal)
{
    (void)signal;
    faults++;
    _exit(99);
}

FUNCTION uint64_t part(uint64_t key)
{
    uint64_t sum = key;
    for (int i = 0; i < 2000; i++) {
        sum += (uint64_t)i;
        __asm__ volatile("" : "+r"(sum));
    }
    return mix(sum) + (uint64_t)(getppid() > 0);
}

FUNCTION uint64_t serve(uint64_t key)
{
    return part(key) + part(key + 1);
}

int main(int argc, char **argv)
{
    struct run run = parse_run(argc, argv, 2000);
    signal(SIGSEGV, on_fault);
    if (prctl(PR_SET_TSC, PR_TSC_SIGSEGV) != 0)
        return 1;
    return run_ops(run, serve);
}
