/*
 * f0 on an alternate signal stack: every op raises a signal inside f0, its handler runs f0 on the
 * alternate stack; every fifth op leaves the handler, and f0 with it, by siglongjmp.
 *
 * f0 = serve
 * The result counts; nested calls are not ops, the ops that are left are ended otherwise.
 */
#include "work.h"

#include <setjmp.h>
#include <signal.h>

static sigjmp_buf out;
static volatile uint64_t handler_result;
static volatile int leaves;
static char alternate[64 << 10];

FUNCTION uint64_t part(uint64_t key)
{
    spin_us(100);
    return mix(key);
}

FUNCTION uint64_t serve(uint64_t key, int raises)
{
    uint64_t sum = part(key);
    if (raises)
        raise(SIGUSR1);
    return sum ^ part(key + 1);
}

static void on_signal(int signal)
{
    (void)signal;
    handler_result = serve(77, 0);
    if (leaves)
        siglongjmp(out, 1);
}

static uint64_t op(uint64_t key)
{
    handler_result = 0;
    leaves = key % 5 == 4;
    if (sigsetjmp(out, 1) != 0)
        return handler_result + 5;
    return serve(key, 1) ^ handler_result;
}

int main(int argc, char **argv)
{
    stack_t stack = {.ss_sp = alternate, .ss_size = sizeof alternate};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
    sigaltstack(&stack, NULL);
    sigaction(SIGUSR1, &action, NULL);
    return run_ops(parse_run(argc, argv, 800), op);
}
