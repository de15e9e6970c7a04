/*
 * A log whose records go to a standby in groups: who finds nobody sending sends what there is, and waits for the standby's answer.
 * Who comes meanwhile leaves that to the other one, and waits for him.
 *
 * f0 = commit
 * fast peak (3 of 5 ops, ~0.3 ms):             commit -> encode                         function
 *     wrong: commit; commit -> wait_for_leader; commit -> send_group
 * leader's peak (1 of 5 ops, ~2.3 to 4.5 ms):  commit -> send_group -> … -> read        syscall
 *     wrong: commit; commit -> encode; commit -> send_group; commit -> send_group -> write; commit -> wait_for_leader
 * follower's peak (1 of 5 ops, ~8 to 18 ms):   commit -> wait_for_leader -> … -> futex  syscall
 *     wrong: commit; commit -> encode; commit -> wait_for_leader; commit -> send_group
 */
#include "work.h"

#include <pthread.h>
#include <semaphore.h>
#include <sys/socket.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t sent = PTHREAD_COND_INITIALIZER;
static int is_sending, standby[2];
static sem_t lead, leads;

/* Keeps what it gets: for how long, the group says. */
static void *keep(void *unused)
{
    uint64_t us;
    while (read(standby[1], &us, sizeof us) == sizeof us) {
        spin_us(us);
        if (write(standby[1], &us, sizeof us) != sizeof us)
            abort();
    }
    return unused;
}

FUNCTION void send_group(uint64_t us)
{
    if (write(standby[0], &us, sizeof us) != sizeof us || read(standby[0], &us, sizeof us) != sizeof us)
        abort();
    NO_TAIL_CALL();
}

FUNCTION void wait_for_leader(void)
{
    while (is_sending)
        pthread_cond_wait(&sent, &lock);
    NO_TAIL_CALL();
}

/* Another thread that commits, a large group. */
static void *other(void *unused)
{
    for (;;) {
        while (sem_wait(&lead) != 0)
            ;
        is_sending = 1;
        sem_post(&leads);
        send_group(10000);
        pthread_mutex_lock(&lock);
        is_sending = 0;
        pthread_cond_broadcast(&sent);
        pthread_mutex_unlock(&lock);
    }
    return unused;
}

FUNCTION uint64_t encode(uint64_t key)
{
    spin_us(300);
    return mix(key);
}

FUNCTION uint64_t commit(uint64_t key)
{
    uint64_t record = encode(key);
    pthread_mutex_lock(&lock);
    if (is_sending)
        wait_for_leader();
    else if (key % 5 == 4)
        send_group(2500);
    pthread_mutex_unlock(&lock);
    return record + 1;
}

static uint64_t op(uint64_t key)
{
    if (key % 5 == 2) {
        sem_post(&lead);
        while (sem_wait(&leads) != 0)
            ;
    }
    return commit(key);
}

int main(int argc, char **argv)
{
    struct run run = parse_run(argc, argv, 1000);
    pthread_t threads[2];
    sem_init(&lead, 0, 0);
    sem_init(&leads, 0, 0);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, standby) != 0 || pthread_create(&threads[0], NULL, keep, NULL) != 0
        || pthread_create(&threads[1], NULL, other, NULL) != 0)
        return 2;
    return run_ops(run, op);
}
