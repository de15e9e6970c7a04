/*
 * Prints what a process inherits: signal mask, dispositions, open files, process group, session,
 * umask, limits, personality, parent's death signal, environment. Started by darc it must inherit
 * the same as from a shell. Then runs a few ops.
 *
 * f0 = serve
 * the only peak:  serve  function
 */
#include "work.h"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>

extern char **environ;

FUNCTION uint64_t serve(uint64_t key)
{
    spin_us(100);
    return mix(key);
}

static void print_signals(void)
{
    sigset_t mask;
    sigprocmask(SIG_BLOCK, NULL, &mask);
    for (int signal = 1; signal < 65; signal++) {
        struct sigaction action;
        if (sigaction(signal, NULL, &action) != 0)
            continue;
        int is_blocked = sigismember(&mask, signal);
        if (is_blocked || action.sa_handler != SIG_DFL)
            printf("signal %d blocked=%d ignored=%d\n", signal, is_blocked, action.sa_handler == SIG_IGN);
    }
}

static void print_files(void)
{
    for (int fd = 0; fd < 1024; fd++) {
        int flags = fcntl(fd, F_GETFD), status = fcntl(fd, F_GETFL);
        struct stat data;
        if (flags >= 0 && fstat(fd, &data) == 0)
            printf("fd %d flags=%x status=%x kind=%o\n", fd, flags, status, data.st_mode & S_IFMT);
    }
}

int main(int argc, char **argv)
{
    print_signals();
    print_files();
    printf("group=%d session=%d\n", (int)getpgrp(), (int)getsid(0));
    mode_t mask = umask(0);
    umask(mask);
    printf("umask=%o personality=%x\n", mask, personality(0xffffffff));
    for (int limit = 0; limit < RLIM_NLIMITS; limit++) {
        struct rlimit value;
        getrlimit((__rlimit_resource_t)limit, &value);
        printf("limit %d %llx %llx\n", limit, (unsigned long long)value.rlim_cur, (unsigned long long)value.rlim_max);
    }
    int death_signal = 0;
    prctl(PR_GET_PDEATHSIG, &death_signal);
    printf("death_signal=%d dumpable=%d no_new_privs=%d nice=%d policy=%d\n", death_signal, prctl(PR_GET_DUMPABLE),
           prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0), getpriority(PRIO_PROCESS, 0), sched_getscheduler(0));
    int variables = 0;
    for (char **variable = environ; *variable != NULL; variable++)
        variables++;
    char directory[4096];
    printf("variables=%d directory=%s\n", variables, getcwd(directory, sizeof directory));
    for (int i = 0; i < argc; i++)
        printf("argument %d %s\n", i, argv[i]);
    return run_ops(parse_run(argc, argv, 200), serve);
}
