/*
 * A program of several kinds that are hard to stop. The first argument says what each op does beside its work.
 *
 *   kinds plain       does nothing else
 *   kinds threads     makes two threads in every op, while two others work all the time
 *   kinds processes   makes a child by fork, vfork or posix_spawn
 *   kinds clones      makes a child as a thread is made, but without its memory, which goes back through all calls
 *   kinds signals     raises a signal and queues another, with handlers on an alternate stack, and a timer's signals come in between
 *   kinds coroutines  runs everything on coroutines' small stacks
 *   kinds libraries   loads and unloads a library
 *   kinds KIND N      ends after N ops, and without N when standard input is at its end
 *
 * Prints "code SERVE PART", the addresses of two functions, and "ready" first; "checksum=…" and "differs" as others do last.
 */
#include "work.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <dlfcn.h>
#include <ucontext.h>

extern char **environ;
static volatile int wrong;
static uint64_t (*act)(uint64_t key);
static volatile int is_clone;

FUNCTION uint64_t part(uint64_t key)
{
    spin_cycles(2000);
    return mix(key);
}

FUNCTION uint64_t serve(uint64_t key)
{
    uint64_t sum = part(key);
    sum += act(key);
    if (is_clone)
        _exit((int)(part(key) & 63));
    return sum ^ part(key + 1);
}

static void check(uint64_t found, uint64_t expected)
{
    if (found != expected)
        wrong = 1;
}

static uint64_t nothing(uint64_t key)
{
    return key;
}

static void *part_of(void *key)
{
    return (void *)(uintptr_t)part((uintptr_t)key);
}

static void *serve_always(void *unused)
{
    uint64_t expected = mix(9) + 9;
    for (;;)
        check(part(9) + 9, expected);
    return unused;
}

static uint64_t threads(uint64_t key)
{
    pthread_t made[2];
    uint64_t sum = 0;
    for (uintptr_t i = 0; i < 2; i++)
        if (pthread_create(&made[i], NULL, part_of, (void *)(uintptr_t)(key + i)) != 0)
            abort();
    for (int i = 0; i < 2; i++) {
        void *result;
        pthread_join(made[i], &result);
        sum += (uintptr_t)result;
    }
    check(sum, mix(key) + mix(key + 1));
    return sum;
}

static uint64_t ended(pid_t child)
{
    int status;
    while (waitpid(child, &status, __WALL) < 0)
        if (errno != EINTR)
            return 1000;
    return WIFEXITED(status) ? (uint64_t)WEXITSTATUS(status) : 1000;
}

static uint64_t processes(uint64_t key)
{
    static char *arguments[] = {"true", NULL};
    uint64_t expected = mix(key) & 63;
    pid_t child;
    switch (key % 3) {
    case 0:
        child = fork();
        if (child == 0)
            _exit((int)(part(key) & 63));
        check(ended(child), expected);
        break;
    case 1:
        child = vfork();
        if (child == 0)
            _exit((int)(part(key) & 63));
        check(ended(child), expected);
        break;
    default:
        if (posix_spawnp(&child, "true", NULL, NULL, arguments, environ) == 0)
            check(ended(child), 0);
    }
    return expected;
}

/* Its end is told by no signal. It is waited for when the calls have ended that it was made in. */
static uint64_t clones(uint64_t key)
{
    static pid_t last;
    static uint64_t expected;
    if (last != 0)
        check(ended(last), expected);
    expected = mix(key) & 63;
    last = (pid_t)syscall(SYS_clone, 0L, 0L, 0L, 0L, 0L);
    is_clone = last == 0;
    return key;
}

static void on_signal(int signal)
{
    int saved = errno;
    (void)signal;
    check(part(77), mix(77));
    errno = saved;
}

static volatile sig_atomic_t raised;
static volatile uint64_t queued;

static void on_raised(int signal)
{
    raised++;
    on_signal(signal);
}

static void on_queued(int signal, siginfo_t *info, void *context)
{
    (void)context;
    queued = (uintptr_t)info->si_value.sival_ptr;
    on_signal(signal);
}

/* Each handler runs before the call returns that sends its signal. */
static uint64_t signals(uint64_t key)
{
    union sigval value = {.sival_ptr = (void *)(uintptr_t)mix(key)};
    sig_atomic_t before = raised;
    raise(SIGUSR1);
    check((uint64_t)raised, (uint64_t)before + 1);
    sigqueue(getpid(), SIGRTMIN, value);
    check(queued, mix(key));
    return key;
}

static ucontext_t outer, inner;
static uint64_t asked, answered;

/* Serves one request each time that it is resumed. */
static void coroutine(void)
{
    for (;;) {
        answered = part(asked);
        swapcontext(&inner, &outer);
    }
}

static uint64_t coroutines(uint64_t key)
{
    asked = key;
    swapcontext(&outer, &inner);
    check(answered, mix(key));
    return answered;
}

static uint64_t libraries(uint64_t key)
{
    void *library = dlopen("libm.so.6", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL || dlsym(library, "cos") == NULL)
        wrong = 1;
    else
        dlclose(library);
    return key;
}

static uint64_t run(uint64_t ops)
{
    uint64_t sum = 0, expected = 0;
    for (uint64_t done = 0; done < ops; done += PERIOD) {
        sum = 0;
        for (uint64_t key = 0; key < PERIOD; key++)
            sum = mix(sum + serve(key));
        if (done > 0 && sum != expected)
            wrong = 1;
        expected = sum;
        if (ops == UINT64_MAX && stdin_closed())
            break;
    }
    return sum;
}

static uint64_t run_on_coroutine_sum;
static uint64_t run_on_coroutine_ops;
static ucontext_t first, runner;

static void run_on_coroutine(void)
{
    run_on_coroutine_sum = run(run_on_coroutine_ops);
    swapcontext(&runner, &first);
}

static void make(ucontext_t *context, void (*function)(void))
{
    enum { SMALL = 32 << 10 };
    getcontext(context);
    context->uc_stack.ss_sp = malloc(SMALL);
    context->uc_stack.ss_size = SMALL;
    makecontext(context, function, 0);
}

int main(int argc, char **argv)
{
    const char *kind = argc > 1 ? argv[1] : "";
    uint64_t ops = argc > 2 ? strtoull(argv[2], NULL, 10) : UINT64_MAX;
    uint64_t sum;
    act = nothing;
    if (strcmp(kind, "threads") == 0) {
        act = threads;
        for (int i = 0; i < 2; i++) {
            pthread_t thread;
            if (pthread_create(&thread, NULL, serve_always, NULL) != 0)
                abort();
        }
    } else if (strcmp(kind, "processes") == 0) {
        act = processes;
    } else if (strcmp(kind, "clones") == 0) {
        act = clones;
    } else if (strcmp(kind, "libraries") == 0) {
        act = libraries;
    } else if (strcmp(kind, "coroutines") == 0) {
        act = coroutines;
        make(&inner, coroutine);
    } else if (strcmp(kind, "signals") == 0) {
        static char alternate[32 << 10];
        stack_t stack = {.ss_sp = alternate, .ss_size = sizeof alternate};
        struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK | SA_RESTART};
        struct sigaction counts = {.sa_handler = on_raised, .sa_flags = SA_ONSTACK | SA_RESTART};
        struct sigaction takes = {.sa_sigaction = on_queued, .sa_flags = SA_ONSTACK | SA_RESTART | SA_SIGINFO};
        struct itimerval often = {{0, 1000}, {0, 1000}};
        act = signals;
        sigaltstack(&stack, NULL);
        sigaction(SIGUSR1, &counts, NULL);
        sigaction(SIGRTMIN, &takes, NULL);
        sigaction(SIGALRM, &action, NULL);
        setitimer(ITIMER_REAL, &often, NULL);
    }
    printf("code %p %p\n", (void *)serve, (void *)part);
    say_ready();
    if (act == coroutines) {
        run_on_coroutine_ops = ops;
        make(&runner, run_on_coroutine);
        swapcontext(&first, &runner);
        sum = run_on_coroutine_sum;
    } else {
        sum = run(ops);
    }
    printf("checksum=%016llx%s\n", (unsigned long long)sum, wrong ? " differs" : "");
    return wrong;
}
