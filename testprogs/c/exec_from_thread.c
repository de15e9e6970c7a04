/*
 * A thread that is not the leader calls exec: the thread becomes the process, its id changes. The
 * program runs N ops (with `wait`: works until standard input is at its end), replaces itself from a
 * thread while three others are in f0, and runs N ops (400) again.
 *
 * f0 = serve: fast peak serve -> lookup, slow peak serve -> rebuild (function), before and after.
 */
#include "work.h"

#include <pthread.h>

static struct run run;

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

static void *work_for_ever(void *unused)
{
    (void)unused;
    for (uint64_t key = 0;; key++)
        serve(key);
    return NULL;
}

static void *replace(void *path)
{
    char ops[32];
    uint64_t expected = one_period(serve);
    for (uint64_t done = PERIOD; done < run.ops && !(run.waits && stdin_closed()); done += PERIOD)
        if (one_period(serve) != expected)
            abort();
    snprintf(ops, sizeof ops, "%llu", run.waits ? 400ull : (unsigned long long)run.ops);
    execl("/proc/self/exe", path, "second", ops, (char *)NULL);
    abort();
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "second") == 0)
        return run_ops(parse_run(argc - 1, argv + 1, 400), serve);
    run = parse_run(argc, argv, 400);
    if (run.waits)
        say_ready();
    pthread_t threads[3], replacing;
    for (int i = 0; i < 3; i++)
        if (pthread_create(&threads[i], NULL, work_for_ever, NULL) != 0)
            return 2;
    if (pthread_create(&replacing, NULL, replace, argv[0]) != 0)
        return 2;
    pthread_join(replacing, NULL);
    return 3;
}
