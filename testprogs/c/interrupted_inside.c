/*
 * A thread of which a signal handler returns into the middle of what a probe at f0's entry displaces: an instruction of
 * f0 faults, and the handler goes on when somebody has changed f0's code, or standard input is at its end. It says so if it returns
 * elsewhere then.
 *
 * With "shared" f0 runs on a stack in shared memory, and the handler waits in another one, on a stack of its own.
 *
 * f0 is `serve`. Peaks do not matter here.
 */
#include "work.h"

#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>

uint64_t serve(uint64_t *counter, uint64_t key);

/* The first instruction lowers no stack pointer and is three bytes long, the second one faults, and a jump takes five bytes. */
__asm__(".text\n" ASM_FUNCTION(serve,
                               "    mov %rsi, %rax\n"
                               "    mov (%rdi), %rdx\n"
                               "    lea 1(%rax,%rdx), %rax\n"
                               "    mov %rax, (%rdi)\n"
                               "    ret\n"));

static uint64_t *counter;
static char code[16];
static struct run run;

static void await_change(int number)
{
    (void)number;
    if (run.waits) {
        say_ready();
        while (memcmp((void *)serve, code, sizeof code) == 0 && !stdin_closed())
            usleep(1000);
    }
}

static void on_fault(int number, siginfo_t *info, void *context)
{
    const greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    greg_t faulted = registers[REG_RIP];
    (void)number;
    (void)info;
    raise(SIGUSR1);
    if (registers[REG_RIP] != faulted)
        printf("led on\n");
    mprotect(counter, 4096, PROT_READ | PROT_WRITE);
}

static ucontext_t outside, inside;

static void serve_first(void)
{
    uint64_t first = serve(counter, 7);
    printf("first=%llu\n", (unsigned long long)first);
}

static void serve_on_shared_stack(void)
{
    enum { STACK = 64 << 10 };
    static char alternate[64 << 10];
    stack_t stack = {.ss_sp = alternate, .ss_size = sizeof alternate};
    sigaltstack(&stack, NULL);
    getcontext(&inside);
    inside.uc_stack.ss_size = STACK;
    inside.uc_stack.ss_sp =
        mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    inside.uc_link = &outside;
    makecontext(&inside, serve_first, 0);
    swapcontext(&outside, &inside);
}

static uint64_t op(uint64_t key)
{
    *counter = key;
    spin_us(10);
    return mix(serve(counter, key));
}

int main(int argc, char **argv)
{
    int shared = argc > 1 && strcmp(argv[argc - 1], "shared") == 0;
    struct sigaction waits = {.sa_handler = await_change, .sa_flags = SA_ONSTACK};
    struct sigaction faults = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_RESETHAND};
    run = parse_run(argc - shared, argv, 800);
    memcpy(code, (void *)serve, sizeof code);
    counter = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    sigaction(SIGSEGV, &faults, NULL);
    sigaction(SIGUSR1, &waits, NULL);
    if (shared)
        serve_on_shared_stack();
    else
        serve_first();
    return run_ops((struct run){.ops = run.ops == UINT64_MAX ? 800 : run.ops}, op);
}
