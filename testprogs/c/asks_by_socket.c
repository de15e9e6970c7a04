/*
 * A request over a connection to the same machine: a thread of the same program answers. What it sends is delivered in
 * deferred work at the end of its own system call, so that is the thread's doing and no interrupt's.
 *
 * f0 = query: the peaks differ in how long the answer takes
 * fast peak (4 of 5 ops, ~0.3 ms):    query -> … -> recvfrom   syscall, woken by the thread "worker" in serve -> … -> send
 * slow peak (1 of 5 ops, ~3 ms):      query -> … -> recvfrom   the same
 * wrong: woken by a softirq
 */
#include "work.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/socket.h>

static int here, there;

FUNCTION uint64_t look_up(uint64_t key)
{
    spin_us(key % 5 == 4 ? 3000 : 300);
    return mix(key);
}

FUNCTION int serve(void)
{
    uint64_t key;
    if (recv(there, &key, sizeof key, MSG_WAITALL) != sizeof key)
        return 0;
    key = look_up(key);
    return send(there, &key, sizeof key, 0) == sizeof key;
}

static void *worker(void *unused)
{
    prctl(PR_SET_NAME, "worker");
    while (serve())
        ;
    return unused;
}

FUNCTION uint64_t query(uint64_t key)
{
    if (send(here, &key, sizeof key, 0) != sizeof key || recv(here, &key, sizeof key, MSG_WAITALL) != sizeof key)
        exit(2);
    return key + 1;
}

static int connect_both(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof at;
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    here = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&at, size) != 0 || listen(listener, 1) != 0)
        return 0;
    if (getsockname(listener, (struct sockaddr *)&at, &size) != 0 || connect(here, (struct sockaddr *)&at, size) != 0)
        return 0;
    there = accept(listener, NULL, NULL);
    setsockopt(here, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(there, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return there >= 0;
}

int main(int argc, char **argv)
{
    struct run run = parse_run(argc, argv, 1600);
    pthread_t thread;
    if (!connect_both() || pthread_create(&thread, NULL, worker, NULL) != 0)
        return 2;
    return run_ops(run, query);
}
