/*
 * f0 makes a child without a thread pointer (CLONE_SETTLS in clone(2), with zero), which returns out of the functions that made
 * it and ends in f0 with what they returned. It must pass every probe on its way, and so must its parent.
 *
 * f0 = job
 */
#define _GNU_SOURCE
#include "work.h"

#include <sched.h>
#include <sys/syscall.h>
#include <sys/wait.h>

/* Nothing in the child may use the C library, which keeps things at the thread pointer. */
FUNCTION long make(void)
{
    long made;
    register void *tid __asm__("r10") = NULL;
    register unsigned long pointer __asm__("r8") = 0;
    __asm__ volatile("syscall"
                     : "=a"(made)
                     : "0"((long)SYS_clone), "D"((long)(CLONE_SETTLS | SIGCHLD)), "S"(0L), "d"(0L), "r"(tid), "r"(pointer)
                     : "rcx", "r11", "memory");
    return made;
}

FUNCTION long make_below(long more)
{
    return make() + more;
}

/* It is left by a jump. */
FUNCTION long make_and_jump(long more)
{
    return make_below(more);
}

FUNCTION uint64_t in_child(uint64_t key)
{
    return mix(key);
}

FUNCTION uint64_t job(uint64_t key)
{
    long child = make_and_jump(0);
    int status = -1;
    if (child == 0) {
        uint64_t code = in_child(key) & 0x7f;
        __asm__ volatile("syscall" : : "a"((long)SYS_exit_group), "D"(code) : "rcx", "r11", "memory");
    }
    waitpid((pid_t)child, &status, 0);
    return mix((uint64_t)status ^ in_child(key));
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 200), job);
}
