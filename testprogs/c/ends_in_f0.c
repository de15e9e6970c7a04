/*
 * Programs that end inside f0, after 200 ops: the first argument says how.
 *   exit, _exit, abort, execve (of /bin/true), segv, group (exit_group while another thread is in f0),
 *   quit (by SIGQUIT, blocked in epoll_wait, which a signal ends with EINTR whatever becomes of it)
 *
 * f0 = serve: the program ends in it
 * the only peak (~0.3 ms):  serve -> lookup  function
 */
#include "work.h"

#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>

static volatile int *volatile nowhere = (volatile int *)8;

FUNCTION uint64_t lookup(uint64_t key)
{
    spin_us(300);
    return mix(key);
}

static void wait_for_the_end(void)
{
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGQUIT};
    struct itimerspec once = {.it_value.tv_nsec = 100000000};
    timer_t timer;
    struct epoll_event never;
    if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0 || timer_settime(timer, 0, &once, NULL) != 0)
        exit(2);
    epoll_wait(epoll_create1(0), &never, 1, -1);
    exit(4);
}

FUNCTION uint64_t serve(uint64_t key, const char *end)
{
    uint64_t found = lookup(key);
    if (strcmp(end, "exit") == 0)
        exit(7);
    if (strcmp(end, "_exit") == 0)
        _exit(8);
    if (strcmp(end, "abort") == 0)
        abort();
    if (strcmp(end, "segv") == 0)
        *nowhere = 1;
    if (strcmp(end, "quit") == 0)
        wait_for_the_end();
    if (strcmp(end, "execve") == 0)
        execl("/bin/true", "true", (char *)NULL);
    return found;
}

static void *work_for_ever(void *unused)
{
    (void)unused;
    for (uint64_t key = 0;; key++)
        serve(key, "");
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return 2;
    pthread_t thread;
    if (strcmp(argv[1], "group") == 0 && pthread_create(&thread, NULL, work_for_ever, NULL) != 0)
        return 2;
    uint64_t sum = 0;
    for (uint64_t key = 0; key < 200; key++)
        sum = mix(sum ^ serve(key, ""));
    say_checksum(sum, 0);
    if (strcmp(argv[1], "group") == 0)
        return 9;
    serve(0, argv[1]);
    return 3;
}
