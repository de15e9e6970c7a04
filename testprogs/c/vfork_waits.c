/*
 * One thread serves requests; another makes children by vfork(2) that take long to end, and meanwhile
 * waits in the kernel where nothing can stop it. Built with LEAVES, the thread that ran main has ended.
 *
 * f0 = serve
 * one peak: serve -> step   function
 */
#include "work.h"

#include <pthread.h>
#include <sys/wait.h>

FUNCTION uint64_t step(uint64_t key)
{
    spin_us(200);
    return mix(key);
}

FUNCTION uint64_t serve(uint64_t key)
{
    return step(key) + 1;
}

static volatile int ended;

static void *make_children(void *nothing)
{
    while (!ended) {
        pid_t child = vfork();
        if (child == 0) {
            struct timespec time = {.tv_nsec = 400000000};
            nanosleep(&time, NULL);
            _exit(0);
        }
        int status;
        if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
            abort();
    }
    return nothing;
}

static struct run run;

static void *serve_all(void *nothing)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, make_children, NULL) != 0)
        exit(2);
    int status = run_ops(run, serve);
    ended = 1;
    pthread_join(thread, NULL);
    exit(status);
    return nothing;
}

int main(int argc, char **argv)
{
    run = parse_run(argc, argv, 2000);
#ifdef LEAVES
    pthread_t thread;
    if (pthread_create(&thread, NULL, serve_all, NULL) != 0)
        return 2;
    pthread_exit(NULL);
#else
    serve_all(NULL);
#endif
}
