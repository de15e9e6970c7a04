/*
 * The program's own traps, inside f0: an int3 with a SIGTRAP handler, and raise(SIGTRAP).
 *   own_int3 [N]    every op meets one of each; the handler counts them
 *   own_int3 die    40 ops, then an int3 with the default action: the program dies of SIGTRAP
 *
 * f0 = serve: peaks do not matter here.
 */
#include "work.h"

#include <signal.h>

static volatile uint64_t trapped, foreign;

static void on_trap(int signal, siginfo_t *info, void *context)
{
    (void)signal;
    (void)context;
    trapped++;
    foreign |= info->si_code != SI_KERNEL && info->si_code != SI_TKILL;
}

FUNCTION void trap(void)
{
    __asm__ volatile("int3" ::: "memory");
}

FUNCTION uint64_t serve(uint64_t key)
{
    uint64_t before = trapped;
    spin_us(100);
    trap();
    raise(SIGTRAP);
    return mix(key) + (trapped - before) + foreign;
}

int main(int argc, char **argv)
{
    int dies = argc > 1 && strcmp(argv[1], "die") == 0;
    struct sigaction action = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO};
    sigaction(SIGTRAP, &action, NULL);
    struct run run = parse_run(argc, argv, 800);
    if (dies) {
        run.ops = 40;
        run_ops(run, serve);
        signal(SIGTRAP, SIG_DFL);
        serve(0);
    }
    return run_ops(run, serve);
}
