/*
 * Threads wait for the same time, in the same rounds, each in another system call, while the main thread runs f0. Natively no call
 * ends early, and none that succeeds writes to nanosleep's `rem`. The thread that reads a timer is what the others are compared
 * with: it is as late as the machine is busy.
 *
 * The last line is "early=COUNT late=COUNT anew=COUNT written=COUNT": rounds in which a call ended before its time or with an error, a
 * call that the kernel goes on with ended long after the timer, one that begins anew did, and `rem` was written to.
 *
 * f0 = serve
 */
#include "work.h"

#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ipc.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>

enum { WAIT_MS = 300, LATE_MS = 200, NS_PER_MS = 1000000 };

static const struct timespec WAIT = {.tv_sec = 0, .tv_nsec = WAIT_MS * NS_PER_MS};
static int timer, epoll, semaphores, sockets[2], written;
static sigset_t none_comes;

static int in_timer(void)
{
    uint64_t count;
    struct itimerspec time = {{0, 0}, WAIT};
    timerfd_settime(timer, 0, &time, NULL);
    return read(timer, &count, sizeof count) == sizeof count;
}

static int in_nanosleep(void)
{
    struct timespec rest = {.tv_sec = 77, .tv_nsec = 7};
    int slept = syscall(SYS_nanosleep, &WAIT, &rest) == 0;
    written += rest.tv_sec != 77 || rest.tv_nsec != 7;
    return slept;
}

/* Sleeps outside of the rounds, too, in which other calls may wait a little longer: who stops all threads stops it in its call. */
static void *sleep_on(void *rest)
{
    static const struct timespec hour = {.tv_sec = 3600, .tv_nsec = 0};
    syscall(SYS_nanosleep, &hour, rest);
    return NULL;
}

static int in_clock_nanosleep(void)
{
    return clock_nanosleep(CLOCK_MONOTONIC, 0, &WAIT, NULL) == 0;
}

static int in_poll(void)
{
    return poll(NULL, 0, WAIT_MS) == 0;
}

static int in_ppoll(void)
{
    return ppoll(NULL, 0, &WAIT, NULL) == 0;
}

static int in_select(void)
{
    struct timeval time = {.tv_sec = 0, .tv_usec = WAIT_MS * 1000};
    return syscall(SYS_select, 0, NULL, NULL, NULL, &time) == 0;
}

static int in_pselect(void)
{
    return pselect(0, NULL, NULL, NULL, &WAIT, &none_comes) == 0;
}

static int in_futex(void)
{
    static int word = 0;
    return syscall(SYS_futex, &word, FUTEX_WAIT, 0, &WAIT, NULL, 0) < 0 && errno == ETIMEDOUT;
}

static int in_epoll_wait(void)
{
    struct epoll_event event;
    return epoll_wait(epoll, &event, 1, WAIT_MS) == 0;
}

static int in_sigtimedwait(void)
{
    return sigtimedwait(&none_comes, NULL, &WAIT) < 0 && errno == EAGAIN;
}

static int in_semtimedop(void)
{
    struct sembuf down = {0, -1, 0};
    return semtimedop(semaphores, &down, 1, &WAIT) < 0 && errno == EAGAIN;
}

static int in_recv(void)
{
    char byte;
    return recv(sockets[0], &byte, 1, 0) < 0 && errno == EAGAIN;
}

/* Those behind the timer that the kernel goes on with, and those that begin anew. */
static int (*const CALLS[])(void) = {
    in_timer, in_nanosleep, in_clock_nanosleep, in_poll, in_ppoll, in_select, in_pselect, in_futex,
    in_epoll_wait, in_sigtimedwait, in_semtimedop, in_recv,
};

enum { COUNT = sizeof CALLS / sizeof *CALLS, ANEW = 8 };

static uint64_t began_at[COUNT], ended_at[COUNT];
static int went_well[COUNT], early, late, anew, rounds;
static pthread_barrier_t begin, end;

static void count_round(void)
{
    for (int i = 0; i < COUNT; i++) {
        uint64_t lasted = ended_at[i] - began_at[i];
        int is_late = ended_at[i] > ended_at[0] + (uint64_t)LATE_MS * NS_PER_MS;
        /* The clock of timeouts in jiffies is a coarse one. */
        early += !went_well[i] || lasted < (uint64_t)(WAIT_MS - 20) * NS_PER_MS;
        late += is_late && i < ANEW;
        anew += is_late && i >= ANEW;
    }
}

static void *wait_in_rounds(void *argument)
{
    int number = (int)(intptr_t)argument;
    for (;;) {
        pthread_barrier_wait(&begin);
        began_at[number] = clock_ns(CLOCK_MONOTONIC);
        went_well[number] = CALLS[number]();
        ended_at[number] = clock_ns(CLOCK_MONOTONIC);
        pthread_barrier_wait(&end);
        if (number == 0) {
            count_round();
            __atomic_add_fetch(&rounds, 1, __ATOMIC_RELEASE);
        }
    }
    return NULL;
}

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

int main(int argc, char **argv)
{
    struct run run = parse_run(argc, argv, 1200);
    struct timeval time = {.tv_sec = 0, .tv_usec = WAIT_MS * 1000};
    struct timespec rest = {.tv_sec = 77, .tv_nsec = 7};
    pthread_t thread;
    sigemptyset(&none_comes);
    sigaddset(&none_comes, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &none_comes, NULL);
    timer = timerfd_create(CLOCK_MONOTONIC, 0);
    epoll = epoll_create1(0);
    semaphores = semget(IPC_PRIVATE, 1, 0600);
    if (timer < 0 || epoll < 0 || semaphores < 0 || socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0)
        return 2;
    setsockopt(sockets[0], SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
    pthread_barrier_init(&begin, NULL, COUNT);
    pthread_barrier_init(&end, NULL, COUNT);
    if (pthread_create(&thread, NULL, sleep_on, &rest) != 0)
        return 3;
    for (int i = 0; i < COUNT; i++)
        if (pthread_create(&thread, NULL, wait_in_rounds, (void *)(intptr_t)i) != 0)
            return 3;
    int status = run_ops(run, serve);
    /* What is waited for now counts, too. */
    int ended = __atomic_load_n(&rounds, __ATOMIC_ACQUIRE);
    while (__atomic_load_n(&rounds, __ATOMIC_ACQUIRE) == ended)
        poll(NULL, 0, 10);
    semctl(semaphores, 0, IPC_RMID);
    written += rest.tv_sec != 77 || rest.tv_nsec != 7;
    printf("early=%d late=%d anew=%d written=%d\n", early, late, anew, written);
    fflush(stdout);
    _exit(status);
}
