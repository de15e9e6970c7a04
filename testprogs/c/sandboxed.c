/*
 * A seccomp filter that allows read, write, poll, exit and return from a signal, and kills for
 * anything else: no system call may be made on the program's behalf. With THREAD another thread, which only waits, has no filter.
 *
 * f0 = serve
 * fast peak (4 of 5 ops, ~0.3 ms):  serve -> lookup   function
 *     wrong: serve; serve -> rebuild
 * slow peak (1 of 5 ops, ~2.5 ms):    serve -> rebuild  function
 *     wrong: serve; serve -> lookup
 */
#include "work.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#ifdef THREAD
#include <pthread.h>

static void *waits(void *nothing)
{
    for (;;)
        pause();
    return nothing;
}
#endif

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

#define ALLOW(number)                                        \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##number, 0, 1), \
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

int main(int argc, char **argv)
{
    struct run run = parse_run(argc, argv, 800);
    printf("sandboxed\n"); /* the buffer is allocated before the filter is in force */
    fflush(stdout);
#ifdef THREAD
    pthread_t thread;
    if (pthread_create(&thread, NULL, waits, NULL) != 0)
        return 2;
#endif
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(read), ALLOW(write), ALLOW(poll), ALLOW(exit_group), ALLOW(rt_sigreturn),
        ALLOW(restart_syscall),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog filter = {.len = sizeof rules / sizeof *rules, .filter = rules};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
        || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0)
        return 2;
    _exit(run_ops(run, serve));
}
