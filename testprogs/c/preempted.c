/*
 * Two processes that never wait, on one CPU: this one serves, its child "rival" only spins, with nine
 * times the weight. The op is a fixed number of turns, so one that is preempted takes longer by the rival's time.
 *
 * f0 = serve, on one processor with a rival
 * common peak (~0.5 ms):    serve -> compute   function
 * far peak (some 30 ms):    serve -> (preemption), by rival
 */
#include "work.h"

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>

static uint64_t turns_per_us;

FUNCTION uint64_t compute(uint64_t turns)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < turns; i++) {
        sum += i;
        __asm__ volatile("" : "+r"(sum));
    }
    return sum;
}

FUNCTION uint64_t serve(uint64_t turns)
{
    uint64_t sum = compute(turns);
    NO_TAIL_CALL();
    return sum;
}

static uint64_t op(uint64_t i)
{
    uint64_t turns = turns_per_us * (brisk ? 5 : 500);
    return serve(turns) == turns * (turns - 1) / 2 ? i + 1 : ~i;
}

static void pin_to_one_cpu(void)
{
    cpu_set_t allowed, one;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        return;
    for (int cpu = CPU_SETSIZE - 1; cpu >= 0; cpu--) {
        if (CPU_ISSET(cpu, &allowed)) {
            CPU_ZERO(&one);
            CPU_SET(cpu, &one);
            sched_setaffinity(0, sizeof one, &one);
            return;
        }
    }
}

int main(int argc, char **argv)
{
    enum { TURNS = 1000000 };
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < 5; i++) {
        uint64_t start = cycles();
        compute(TURNS);
        uint64_t took = cycles() - start;
        best = took < best ? took : best;
    }
    turns_per_us = TURNS * (uint64_t)CYCLES_PER_US / (best ? best : 1);
    pin_to_one_cpu();
    /* Whatever the policy that it was started under: the rival takes its turns as usual. */
    struct sched_param usual = {.sched_priority = 0};
    sched_setscheduler(0, SCHED_OTHER, &usual);
    pid_t parent = getpid(), rival = fork();
    if (rival == 0) {
        prctl(PR_SET_NAME, "rival");
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        while (getppid() == parent)
            spin_cycles(1000000);
        _exit(0);
    }
    if (nice(10) == -1)
        perror("nice");
    int status = run_ops(parse_run(argc, argv, 1000), op);
    if (rival > 0)
        kill(rival, SIGKILL);
    return status;
}
