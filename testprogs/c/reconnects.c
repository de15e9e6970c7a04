/*
 * A connection that the server closes now and then: who finds it closed connects again, and waits until the server has made out
 * who it is. Questions on an open connection are answered at once.
 *
 * f0 = query
 * fast peak (4 of 5 ops, ~0.3 ms):         query -> ask                             function
 *     wrong: query; query -> connect_again
 * slow peak (1 of 5 ops, ~3.3 to 7.5 ms):  query -> connect_again -> … -> recvfrom  syscall
 *     wrong: query; query -> ask; query -> connect_again; query -> connect_again -> connect; query -> connect_again -> close
 */
#include "work.h"

#include <pthread.h>
#include <sys/socket.h>
#include <sys/un.h>

static int listener, connection;
static struct sockaddr_un address = {.sun_family = AF_UNIX};
static socklen_t address_length;

/* Greets each one that comes, and forgets it. */
static void *greet(void *unused)
{
    for (int last = -1;;) {
        int accepted = accept(listener, NULL, NULL);
        uint64_t name = 0;
        if (recv(accepted, &name, sizeof name, MSG_WAITALL) != sizeof name)
            abort();
        spin_us(3000);
        name = mix(name);
        send(accepted, &name, sizeof name, 0);
        close(last);
        last = accepted;
    }
    return unused;
}

FUNCTION uint64_t ask(uint64_t key)
{
    spin_us(300);
    return mix(key);
}

FUNCTION uint64_t connect_again(uint64_t key)
{
    close(connection);
    connection = socket(AF_UNIX, SOCK_STREAM, 0);
    if (connect(connection, (struct sockaddr *)&address, address_length) != 0)
        abort();
    send(connection, &key, sizeof key, 0);
    uint64_t greeting = 0;
    recv(connection, &greeting, sizeof greeting, MSG_WAITALL);
    return greeting;
}

FUNCTION uint64_t query(uint64_t key)
{
    uint64_t greeting = key % 5 == 4 ? connect_again(key) : 0;
    return (greeting ^ ask(key)) + 1;
}

int main(int argc, char **argv)
{
    struct run run = parse_run(argc, argv, 1000);
    pthread_t thread;
    connection = dup(1);
    listener = socket(AF_UNIX, SOCK_STREAM, 0);
    /* A name that the kernel chooses. */
    address_length = sizeof address;
    if (bind(listener, (struct sockaddr *)&address, sizeof address.sun_family) != 0
        || getsockname(listener, (struct sockaddr *)&address, &address_length) != 0 || listen(listener, 4) != 0
        || pthread_create(&thread, NULL, greet, NULL) != 0)
        return 2;
    return run_ops(run, query);
}
