/*
 * A program that writes its own code, as JIT compilers do: after every 20 ops the
 * bytes of f0 are overwritten by those of another version. What a tracer put there is
 * gone then; old bytes must never be written over new ones.
 *
 * f0 = serve (returns its key plus the version's number); the result counts: "wrong=0".
 */
#include "work.h"

#include <sys/mman.h>

/*
 * f0 in a page of its own, and two versions of it that are never called: the program copies those, not what
 * stands in f0.
 */
__asm__(
    ".section .text.versions, \"ax\", @progbits\n"
    ".balign 4096\n"
    ".globl serve\n.type serve, @function\n"
    "serve: .cfi_startproc\n"
    " mov %rdi, %rax\n add $1, %rax\n nopw 0(%rax,%rax,1)\n ret\n"
    ".cfi_endproc\n.size serve, .-serve\n"
    ".balign 4096\n"
    "one_version:\n"
    " mov %rdi, %rax\n add $1, %rax\n nopw 0(%rax,%rax,1)\n ret\n"
    ".balign 64\n"
    "other_version:\n"
    " lea 2(%rdi), %rax\n nopl 0(%rax)\n nopw 0(%rax,%rax,1)\n ret\n"
    ".balign 4096\n"
    ".text\n");

uint64_t serve(uint64_t key);
extern const unsigned char one_version[], other_version[];

enum { LENGTH = 13 };

int main(int argc, char **argv)
{
    struct run run = parse_run(argc, argv, 20000);
    unsigned char versions[2][LENGTH];
    memcpy(versions[0], one_version, LENGTH);
    memcpy(versions[1], other_version, LENGTH);
    if (run.waits)
        say_ready();
    uint64_t wrong = 0, version = 0;
    for (uint64_t done = 0; done < run.ops; done++) {
        if (done % PERIOD == PERIOD - 1) {
            void *page = (void *)((uintptr_t)serve & ~(uintptr_t)4095);
            if (mprotect(page, 4096, PROT_READ | PROT_WRITE | PROT_EXEC) != 0)
                return 2;
            version = !version;
            memcpy((void *)(uintptr_t)serve, versions[version], LENGTH);
            mprotect(page, 4096, PROT_READ | PROT_EXEC);
        }
        spin_us(20);
        wrong += serve(done) != done + 1 + version;
        if (run.waits && stdin_closed())
            break;
    }
    wrong += memcmp((void *)(uintptr_t)serve, versions[version], LENGTH) != 0 && !run.waits;
    printf("wrong=%llu\n", (unsigned long long)wrong);
    return wrong != 0;
}
