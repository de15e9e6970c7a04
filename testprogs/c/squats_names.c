/*
 * Somebody who takes a name in the abstract socket namespace: not a target, but a stranger to be met by those who
 * look for that name. Started by root, it goes on as nobody.
 *
 *   squats_names MODE NAME
 *
 * MODE is
 *   bound   it listens, and hears nobody
 *   full    so many wait to be heard that nobody else can
 *   says    it says what it is not asked, and hangs up
 *   drip    it says a byte every tenth of a second, for ever
 *   many    2,000 names, NAME and what follows it in the name of a process that is not there
 *
 * It ends with its standard input.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { NOBODY = 65534, MANY = 2000, BEYOND_PIDS = 1 << 23 };

static int listens(const char *name, int others)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path + 1, name, sizeof address.sun_path - 2);
    socklen_t length = offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name);
    int bound = socket(AF_UNIX, SOCK_STREAM, 0);
    if (bind(bound, (struct sockaddr *)&address, length) == 0 && listen(bound, others) == 0)
        return bound;
    perror(name);
    _exit(1);
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    if (getuid() == 0 && (setgid(NOBODY) != 0 || setuid(NOBODY) != 0))
        return 77;
    int full = strcmp(argv[1], "full") == 0;
    int many = strcmp(argv[1], "many") == 0;
    int bound = many ? -1 : listens(argv[2], full ? 0 : 64);
    for (int i = 0; many && i < MANY; i++) {
        char name[100];
        snprintf(name, sizeof name, "%s%d-1/0", argv[2], BEYOND_PIDS + i);
        listens(name, 64);
    }
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path + 1, argv[2], sizeof address.sun_path - 2);
    socklen_t length = offsetof(struct sockaddr_un, sun_path) + 1 + strlen(argv[2]);
    int has_room = full;
    while (has_room) {
        int waits = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
        has_room = connect(waits, (struct sockaddr *)&address, length) == 0;
    }
    puts("ready");
    fflush(stdout);
    int speaks = strcmp(argv[1], "bound") != 0 && !full && !many;
    struct pollfd looks[] = {{.fd = 0, .events = POLLIN}, {.fd = speaks ? bound : -1, .events = POLLIN}};
    while (poll(looks, 2, -1) > 0 && looks[0].revents == 0) {
        int asker = accept(bound, NULL, NULL);
        static const char lie[] = "{\"schema\": 1}";
        if (strcmp(argv[1], "says") == 0 && send(asker, lie, sizeof lie - 1, MSG_NOSIGNAL) < 0)
            perror("send");
        while (strcmp(argv[1], "drip") == 0 && send(asker, " ", 1, MSG_NOSIGNAL) == 1)
            if (poll(looks, 1, 100) != 0)
                return 0;
        close(asker);
    }
    return 0;
}
