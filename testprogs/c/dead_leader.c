/*
 * The leader is gone: main has called pthread_exit, a worker runs f0. "ready" is printed when the
 * leader is a zombie.
 *
 * f0 = serve
 * fast peak (4 of 5 ops, ~0.3 ms):  serve -> lookup   function
 *     wrong: serve; serve -> rebuild
 * slow peak (1 of 5 ops, ~2.5 ms):    serve -> rebuild  function
 *     wrong: serve; serve -> lookup
 */
#include "work.h"

#include <pthread.h>
#include <sched.h>

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

static int leader_is_dead(void)
{
    char path[64], text[512] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)getpid());
    FILE *file = fopen(path, "r");
    size_t length = file ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file)
        fclose(file);
    const char *end = length ? strrchr(text, ')') : NULL;
    return end == NULL || end[2] == 'Z' || end[2] == 'X';
}

static void *work(void *unused)
{
    (void)unused;
    while (!leader_is_dead())
        sched_yield();
    exit(run_ops(run, serve));
}

int main(int argc, char **argv)
{
    run = parse_run(argc, argv, 800);
    pthread_t thread;
    if (pthread_create(&thread, NULL, work, NULL) != 0)
        return 2;
    pthread_exit(NULL);
}
