/*
 * Queued signals while f0 runs: another thread sends the main thread 20 values an op; none may be
 * lost and their order must hold. SIGUSR1 arrives beside them.
 *
 * f0 = serve: peaks do not matter here.
 */
#include "work.h"

#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>

enum { VALUES = 20 };

static volatile uint64_t received, next_value, wrong;
static pthread_t main_thread;
static int go[2], sent[2];

static void on_value(int signal, siginfo_t *info, void *context)
{
    (void)signal;
    (void)context;
    wrong |= info->si_code != SI_QUEUE || (uint64_t)info->si_value.sival_int != next_value;
    next_value++;
    received++;
}

static void on_user(int signal)
{
    (void)signal;
}

static void *sender(void *unused)
{
    (void)unused;
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    char byte;
    int value = 0;
    while (read(go[0], &byte, 1) == 1) {
        for (int i = 0; i < VALUES; i++) {
            union sigval payload = {.sival_int = value++};
            while (pthread_sigqueue(main_thread, SIGRTMIN, payload) != 0)
                ;
            pthread_kill(main_thread, SIGUSR1);
        }
        if (write(sent[1], &byte, 1) != 1)
            abort();
    }
    return NULL;
}

FUNCTION uint64_t part(uint64_t key)
{
    spin_us(50);
    return mix(key);
}

FUNCTION uint64_t serve(uint64_t key)
{
    uint64_t sum = key;
    for (int i = 0; i < 4; i++)
        sum = part(sum);
    return sum;
}

static uint64_t op(uint64_t key)
{
    char byte = 'x';
    uint64_t before = received;
    while (write(go[1], &byte, 1) != 1)
        ;
    uint64_t sum = serve(key);
    while (read(sent[0], &byte, 1) != 1)
        ;
    return sum + (received - before) + wrong;
}

int main(int argc, char **argv)
{
    struct run run = parse_run(argc, argv, 400);
    main_thread = pthread_self();
    struct sigaction value = {.sa_sigaction = on_value, .sa_flags = SA_SIGINFO | SA_RESTART};
    struct sigaction user = {.sa_handler = on_user, .sa_flags = SA_RESTART};
    sigaction(SIGRTMIN, &value, NULL);
    sigaction(SIGUSR1, &user, NULL);
    pthread_t thread;
    if (pipe(go) != 0 || pipe(sent) != 0 || pthread_create(&thread, NULL, sender, NULL) != 0)
        return 2;
    return run_ops(run, op);
}
