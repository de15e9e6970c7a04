/*
 * A program that is stopped now and then, as by who limits its CPU time with signals: meanwhile no code of its own runs. The
 * function that it is stopped in calls another one in a loop, so that of its waits beside that nothing is known.
 *
 * f0 = serve: that a thread is stopped has no place in a path
 * fast peak (4 of 5 ops, ~0.3 ms):   serve    function
 * slow peak (1 of 5 ops, ~10 ms):    not decided: in serve, but its thread did not run
 * wrong: serve takes the time itself
 */
#include "work.h"

#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>

/* How often the program asked to be stopped, and was let go on. */
static struct {
    atomic_int asked, done;
} *stops;

/* Not known to the compiler. */
static volatile int times = 2;

FUNCTION uint64_t step(uint64_t key)
{
    spin_us(10);
    return mix(key);
}

FUNCTION uint64_t serve(uint64_t key)
{
    uint64_t sum = 0;
    for (int i = 0; i < times; i++)
        sum += step(key);
    if (key % 5 == 4)
        for (int asked = atomic_fetch_add(&stops->asked, 1); atomic_load(&stops->done) == asked;)
            ;
    else
        spin_us(300);
    return sum + 1;
}

/* Until the program has ended. */
static void stop_and_continue(pid_t program)
{
    while (getppid() == program) {
        usleep(100);
        if (atomic_load(&stops->asked) == atomic_load(&stops->done))
            continue;
        kill(program, SIGSTOP);
        usleep(10000);
        atomic_fetch_add(&stops->done, 1);
        kill(program, SIGCONT);
    }
}

int main(int argc, char **argv)
{
    struct run run = parse_run(argc, argv, 800);
    pid_t program = getpid();
    stops = mmap(NULL, sizeof *stops, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (stops == MAP_FAILED)
        return 2;
    if (fork() == 0) {
        fclose(stdout);
        stop_and_continue(program);
        _exit(0);
    }
    return run_ops(run, serve);
}
