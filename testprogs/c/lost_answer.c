/*
 * Questions to a server, in datagrams: most answers are known, some have to be asked for, and some of these come only when the
 * question is asked again, after a time.
 *
 * f0 = resolve
 * fast peak (3 of 5 ops, ~0.3 ms):             resolve -> look_up           function
 *     wrong: resolve; resolve -> ask
 * answer's peak (1 of 5 ops, ~1.9 to 4.5 ms):  resolve -> ask -> … -> poll  syscall
 *     wrong: resolve; resolve -> look_up; resolve -> ask; resolve -> ask -> recv; resolve -> ask -> send
 * second peak (1 of 5 ops, ~14 to 24 ms):      resolve -> ask -> … -> poll  syscall
 *     wrong: resolve; resolve -> look_up; resolve -> ask; resolve -> ask -> recv; resolve -> ask -> send
 */
#include "work.h"

#include <pthread.h>
#include <sys/socket.h>

static int client, server;

static void *answer(void *unused)
{
    uint64_t question;
    int has_lost = 0;
    while (recv(server, &question, sizeof question, 0) == sizeof question) {
        has_lost = question % 5 == 4 && !has_lost;
        if (has_lost)
            continue;
        spin_us(2000);
        question = mix(question);
        send(server, &question, sizeof question, 0);
    }
    return unused;
}

FUNCTION uint64_t look_up(uint64_t key)
{
    spin_us(300);
    return mix(key);
}

FUNCTION uint64_t ask(uint64_t key)
{
    /* What is not lost is waited for, however long it takes. */
    int patience = key % 5 == 4 ? brisk ? 1 : 14 : -1;
    struct pollfd fd = {.fd = client, .events = POLLIN};
    uint64_t answer = 0;
    send(client, &key, sizeof key, 0);
    if (poll(&fd, 1, patience) == 0) {
        send(client, &key, sizeof key, 0);
        poll(&fd, 1, -1);
    }
    recv(client, &answer, sizeof answer, 0);
    return answer;
}

FUNCTION uint64_t resolve(uint64_t key)
{
    return (key % 5 == 4 || key % 5 == 2 ? ask(key) : look_up(key)) + 1;
}

int main(int argc, char **argv)
{
    struct run run = parse_run(argc, argv, 800);
    int pair[2];
    pthread_t thread;
    if (socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) != 0)
        return 2;
    client = pair[0];
    server = pair[1];
    return pthread_create(&thread, NULL, answer, NULL) != 0 ? 2 : run_ops(run, resolve);
}
