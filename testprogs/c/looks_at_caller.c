/*
 * Functions that do more with the address that they return to than return there, called in f0: directly, by a jump at the
 * end of a function (at -O2), and through the global offset table (built with -fno-plt).
 *
 * f0 = serve
 * The result counts: dlsym(RTLD_NEXT) fails for a caller that is in no file, and swapcontext() remembers where it was called.
 */
#include "work.h"

#include <dlfcn.h>
#include <ucontext.h>

static ucontext_t outer, inner;
static uint64_t found, yielded;

/* At -O2 both end with a jump. */
FUNCTION void *find(const char *name)
{
    return dlsym(RTLD_NEXT, name);
}

FUNCTION int yield(ucontext_t *from, ucontext_t *to)
{
    return swapcontext(from, to);
}

static void count(void)
{
    for (;;) {
        yielded++;
        yield(&inner, &outer);
        yielded++;
        swapcontext(&inner, &outer);
    }
}

FUNCTION uint64_t part(uint64_t key)
{
    spin_us(50);
    return mix(key);
}

FUNCTION uint64_t serve(uint64_t key)
{
    uint64_t sum = part(key);
    found += dlsym(RTLD_NEXT, "puts") != NULL;
    found += find("printf") != NULL;
    yield(&outer, &inner);
    swapcontext(&outer, &inner);
    return sum ^ part(key + 1);
}

static uint64_t op(uint64_t key)
{
    found = yielded = 0;
    uint64_t sum = serve(key);
    return sum ^ found ^ yielded << 8;
}

int main(int argc, char **argv)
{
    static char stack[256 << 10];
    getcontext(&inner);
    inner.uc_stack.ss_sp = stack;
    inner.uc_stack.ss_size = sizeof stack;
    makecontext(&inner, count, 0);
    return run_ops(parse_run(argc, argv, 1000), op);
}
