/*
 * 35 threads, each blocked in another system call, while the main thread runs f0. Each thread
 * counts when its call returns before it is told to: natively none does. "ready" is printed when
 * all are asleep in their calls; the last line is "early=COUNT" with the names of the calls.
 *
 * f0 = serve
 * fast peak (4 of 5 ops, ~0.3 ms):  serve -> lookup   function
 *     wrong: serve; serve -> rebuild
 * slow peak (1 of 5 ops, ~2.5 ms):    serve -> rebuild  function
 *     wrong: serve; serve -> lookup
 */
#include "work.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/wait.h>

enum { LONG_SECONDS = 3600 };

static const struct timespec LONG_TIME = {.tv_sec = LONG_SECONDS, .tv_nsec = 0};
static int empty_pipe[2], full_pipe[2], sleeping_child, locked_file, semaphores, messages;
static int full_socket[2];
static aio_context_t aio;

static int make_socket_pair(int side)
{
    int pair[2];
    return socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 ? pair[side] : -1;
}

static sigset_t one_signal(int signal)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, signal);
    return set;
}

static int an_epoll(void)
{
    int epoll = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data = {.fd = empty_pipe[0]}};
    epoll_ctl(epoll, EPOLL_CTL_ADD, empty_pipe[0], &event);
    return epoll;
}

static long in_epoll_wait(void)
{
    struct epoll_event event;
    return epoll_wait(an_epoll(), &event, 1, -1);
}

static long in_epoll_wait_timeout(void)
{
    struct epoll_event event;
    return epoll_wait(an_epoll(), &event, 1, LONG_SECONDS * 1000);
}

static long in_epoll_pwait(void)
{
    struct epoll_event event;
    sigset_t mask = one_signal(SIGHUP);
    return epoll_pwait(an_epoll(), &event, 1, -1, &mask);
}

static long in_sigtimedwait(void)
{
    sigset_t set = one_signal(SIGRTMIN + 5);
    return sigtimedwait(&set, NULL, &LONG_TIME);
}

static long in_sigwaitinfo(void)
{
    sigset_t set = one_signal(SIGRTMIN + 6);
    return sigwaitinfo(&set, NULL);
}

static long in_semop(void)
{
    struct sembuf down = {0, -1, 0};
    return syscall(SYS_semop, semaphores, &down, 1L); /* glibc would make it semtimedop */
}

static long in_semtimedop(void)
{
    struct sembuf down = {0, -1, 0};
    return semtimedop(semaphores, &down, 1, &LONG_TIME);
}

static long in_io_getevents(void)
{
    struct io_event event;
    return syscall(SYS_io_getevents, aio, 1L, 1L, &event, NULL);
}

static long in_recv_timeout(void)
{
    char byte;
    int fd = make_socket_pair(0);
    struct timeval time = {.tv_sec = LONG_SECONDS, .tv_usec = 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
    return recv(fd, &byte, 1, 0);
}

static long in_recv(void)
{
    char byte;
    return recv(make_socket_pair(0), &byte, 1, 0);
}

static long in_recvmsg(void)
{
    char byte;
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    return recvmsg(make_socket_pair(0), &message, 0);
}

static long in_send(void)
{
    char byte = 'x';
    return send(full_socket[0], &byte, 1, 0);
}

static long in_accept(void)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in any = {.sin_family = AF_INET};
    bind(fd, (struct sockaddr *)&any, sizeof any);
    listen(fd, 1);
    return accept(fd, NULL, NULL);
}

static long in_poll(void)
{
    struct pollfd fd = {.fd = empty_pipe[0], .events = POLLIN, .revents = 0};
    return poll(&fd, 1, -1);
}

static long in_poll_timeout(void)
{
    struct pollfd fd = {.fd = empty_pipe[0], .events = POLLIN, .revents = 0};
    return poll(&fd, 1, LONG_SECONDS * 1000);
}

static long in_ppoll(void)
{
    struct pollfd fd = {.fd = empty_pipe[0], .events = POLLIN, .revents = 0};
    sigset_t mask = one_signal(SIGHUP);
    return ppoll(&fd, 1, NULL, &mask);
}

static long in_select(void)
{
    fd_set set;
    FD_ZERO(&set);
    FD_SET(empty_pipe[0], &set);
    return syscall(SYS_select, empty_pipe[0] + 1, &set, NULL, NULL, NULL); /* glibc: pselect6 */
}

static long in_pselect(void)
{
    fd_set set;
    sigset_t mask = one_signal(SIGHUP);
    FD_ZERO(&set);
    FD_SET(empty_pipe[0], &set);
    return pselect(empty_pipe[0] + 1, &set, NULL, NULL, &LONG_TIME, &mask);
}

static long in_nanosleep(void)
{
    return syscall(SYS_nanosleep, &LONG_TIME, NULL); /* glibc: clock_nanosleep */
}

static long in_clock_nanosleep(void)
{
    return clock_nanosleep(CLOCK_MONOTONIC, 0, &LONG_TIME, NULL);
}

static long in_pause(void)
{
    return pause();
}

static long in_sigsuspend(void)
{
    sigset_t mask;
    sigemptyset(&mask);
    return sigsuspend(&mask);
}

static long in_futex(void)
{
    static int word = 0;
    return syscall(SYS_futex, &word, FUTEX_WAIT, 0, NULL, NULL, 0);
}

static long in_futex_timeout(void)
{
    static int word = 0;
    return syscall(SYS_futex, &word, FUTEX_WAIT, 0, &LONG_TIME, NULL, 0);
}

static long in_read(void)
{
    char byte;
    return read(empty_pipe[0], &byte, 1);
}

static long in_write(void)
{
    char byte = 'x';
    return write(full_pipe[1], &byte, 1);
}

static long in_waitpid(void)
{
    int status;
    return waitpid(sleeping_child, &status, 0);
}

static long in_waitid(void)
{
    siginfo_t info;
    return waitid(P_PID, (id_t)sleeping_child, &info, WEXITED | WNOWAIT);
}

static long in_flock(void)
{
    int fd = open("/proc/self/exe", O_RDONLY);
    return flock(fd, LOCK_EX);
}

static long in_fcntl_lock(void)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
    return fcntl(locked_file, F_SETLKW, &lock);
}

static long in_msgrcv(void)
{
    struct { long type; char text[8]; } message;
    return msgrcv(messages, &message, sizeof message.text, 1, 0);
}

static long in_inotify_read(void)
{
    char event[512];
    return read(inotify_init(), event, sizeof event);
}

static long in_eventfd_read(void)
{
    uint64_t count;
    return read(eventfd(0, 0), &count, sizeof count);
}

static long in_timerfd_read(void)
{
    uint64_t count;
    int fd = timerfd_create(CLOCK_MONOTONIC, 0);
    struct itimerspec time = {{0, 0}, LONG_TIME};
    timerfd_settime(fd, 0, &time, NULL);
    return read(fd, &count, sizeof count);
}

static long in_signalfd_read(void)
{
    struct signalfd_siginfo info;
    sigset_t set = one_signal(SIGRTMIN + 7);
    return read(signalfd(-1, &set, 0), &info, sizeof info);
}

struct call {
    const char *name;
    long (*call)(void);
    int number;
    volatile pid_t tid;
    volatile int is_early;
};

static struct call calls[] = {
    {"epoll_wait", in_epoll_wait, SYS_epoll_wait, 0, 0},
    {"epoll_wait with timeout", in_epoll_wait_timeout, SYS_epoll_wait, 0, 0},
    {"epoll_pwait", in_epoll_pwait, SYS_epoll_pwait, 0, 0},
    {"sigtimedwait", in_sigtimedwait, SYS_rt_sigtimedwait, 0, 0},
    {"sigwaitinfo", in_sigwaitinfo, SYS_rt_sigtimedwait, 0, 0},
    {"semop", in_semop, SYS_semop, 0, 0},
    {"semtimedop", in_semtimedop, SYS_semtimedop, 0, 0},
    {"io_getevents", in_io_getevents, SYS_io_getevents, 0, 0},
    {"recv with timeout", in_recv_timeout, SYS_recvfrom, 0, 0},
    {"recv", in_recv, SYS_recvfrom, 0, 0},
    {"recvmsg", in_recvmsg, SYS_recvmsg, 0, 0},
    {"send", in_send, SYS_sendto, 0, 0},
    {"accept", in_accept, SYS_accept, 0, 0},
    {"poll", in_poll, SYS_poll, 0, 0},
    {"poll with timeout", in_poll_timeout, SYS_poll, 0, 0},
    {"ppoll", in_ppoll, SYS_ppoll, 0, 0},
    {"select", in_select, SYS_select, 0, 0},
    {"pselect", in_pselect, SYS_pselect6, 0, 0},
    {"nanosleep", in_nanosleep, SYS_nanosleep, 0, 0},
    {"clock_nanosleep", in_clock_nanosleep, SYS_clock_nanosleep, 0, 0},
    {"pause", in_pause, SYS_pause, 0, 0},
    {"sigsuspend", in_sigsuspend, SYS_rt_sigsuspend, 0, 0},
    {"futex", in_futex, SYS_futex, 0, 0},
    {"futex with timeout", in_futex_timeout, SYS_futex, 0, 0},
    {"read", in_read, SYS_read, 0, 0},
    {"write", in_write, SYS_write, 0, 0},
    {"waitpid", in_waitpid, SYS_wait4, 0, 0},
    {"waitid", in_waitid, SYS_waitid, 0, 0},
    {"flock", in_flock, SYS_flock, 0, 0},
    {"fcntl", in_fcntl_lock, SYS_fcntl, 0, 0},
    {"msgrcv", in_msgrcv, SYS_msgrcv, 0, 0},
    {"read of inotify", in_inotify_read, SYS_read, 0, 0},
    {"read of eventfd", in_eventfd_read, SYS_read, 0, 0},
    {"read of timerfd", in_timerfd_read, SYS_read, 0, 0},
    {"read of signalfd", in_signalfd_read, SYS_read, 0, 0},
};

enum { CALLS = sizeof calls / sizeof *calls };

static void *block(void *argument)
{
    struct call *call = argument;
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    call->tid = (pid_t)syscall(SYS_gettid);
    call->call();
    call->is_early = 1;
    for (;;)
        poll(NULL, 0, -1);
    return NULL;
}

/* Whether the thread sleeps in the call that it is meant to sleep in. */
static int is_asleep(const struct call *call)
{
    char path[64], text[256] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", (int)call->tid);
    int fd = open(path, O_RDONLY);
    if (fd < 0)
        return call->tid != 0 && errno == EACCES; /* not readable here: the state below must do */
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    return length > 0 && strncmp(text, "running", 7) != 0 && atoi(text) == call->number;
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

/* The other process: holds the lock and sleeps until its pipe ends. */
static void run_child(int lock_fd, int told[2], int tell[2])
{
    char byte = 'x';
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
    close(told[1]);
    fcntl(lock_fd, F_SETLK, &lock);
    if (write(tell[1], &byte, 1) == 1)
        while (read(told[0], &byte, 1) > 0)
            ;
    _exit(0);
}

static int prepare(void)
{
    int told[2], tell[2];
    char byte, bytes[4096] = {0};
    if (pipe(empty_pipe) != 0 || pipe(full_pipe) != 0 || pipe(told) != 0 || pipe(tell) != 0
        || socketpair(AF_UNIX, SOCK_STREAM, 0, full_socket) != 0)
        return 0;
    locked_file = memfd_create("locked", 0);
    sleeping_child = fork();
    if (sleeping_child == 0)
        run_child(locked_file, told, tell);
    if (read(tell[0], &byte, 1) != 1)
        return 0;
    fcntl(full_pipe[1], F_SETFL, O_NONBLOCK);
    while (write(full_pipe[1], bytes, sizeof bytes) > 0)
        ;
    fcntl(full_pipe[1], F_SETFL, 0);
    while (send(full_socket[0], bytes, sizeof bytes, MSG_DONTWAIT) > 0)
        ;
    while (send(full_socket[0], bytes, 1, MSG_DONTWAIT) > 0)
        ;
    if (flock(open("/proc/self/exe", O_RDONLY), LOCK_SH) != 0)
        return 0;
    semaphores = semget(IPC_PRIVATE, 1, 0600);
    messages = msgget(IPC_PRIVATE, 0600);
    return syscall(SYS_io_setup, 4L, &aio) == 0 && semaphores >= 0 && messages >= 0;
}

int main(int argc, char **argv)
{
    struct run run = parse_run(argc, argv, 1200);
    if (!prepare())
        return 2;
    for (int i = 0; i < CALLS; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, block, &calls[i]) != 0)
            return 3;
    }
    for (int i = 0; i < CALLS; i++)
        while (!is_asleep(&calls[i]))
            sched_yield();
    int status = run_ops(run, serve), early = 0;
    for (int i = 0; i < CALLS; i++)
        early += calls[i].is_early;
    printf("early=%d", early);
    for (int i = 0; i < CALLS; i++)
        if (calls[i].is_early)
            printf(" %s,", calls[i].name);
    printf("\n");
    fflush(stdout);
    semctl(semaphores, 0, IPC_RMID);
    msgctl(messages, IPC_RMID, NULL);
    _exit(status);
}
