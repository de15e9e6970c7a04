/*
 * A cache that is asked at twelve places, each of them in one op of twelve or so. What is asked for at four of them is never
 * in it.
 *
 * f0 = serve
 * only peak (every op, ~0.4 ms):  serve -> get -> hit            function
 *                                 serve -> get -> miss -> fetch  function
 *     wrong: serve; serve -> get; serve -> get -> miss
 */
#include "work.h"

FUNCTION uint64_t hit(uint64_t key)
{
    spin_us(400);
    return mix(key);
}

FUNCTION uint64_t fetch(uint64_t key)
{
    spin_us(400);
    return mix(key + 1);
}

FUNCTION uint64_t miss(uint64_t key)
{
    key = fetch(key);
    NO_TAIL_CALL();
    return key;
}

FUNCTION uint64_t get(uint64_t key, int is_there)
{
    key = is_there ? hit(key) : miss(key);
    return key + 1;
}

FUNCTION uint64_t serve(uint64_t key)
{
    static uint64_t turn;
    /* The same result at each of them. */
    switch (turn++ % 12) {
    case 0: key = get(key, 1); NO_TAIL_CALL(); break;
    case 1: key = get(key, 1); __asm__ volatile("nop"); break;
    case 2: key = get(key, 0); __asm__ volatile("nop\nnop"); break;
    case 3: key = get(key, 1); __asm__ volatile("nop\nnop\nnop"); break;
    case 4: key = get(key, 1); __asm__ volatile("xchg %ax, %ax"); break;
    case 5: key = get(key, 0); __asm__ volatile("xchg %ax, %ax\nnop"); break;
    case 6: key = get(key, 1); __asm__ volatile("nop\nxchg %ax, %ax"); break;
    case 7: key = get(key, 1); __asm__ volatile("nop\nnop\nnop\nnop"); break;
    case 8: key = get(key, 0); __asm__ volatile("nop\nnop\nxchg %ax, %ax"); break;
    case 9: key = get(key, 1); __asm__ volatile("nop\nnop\nnop\nnop\nnop"); break;
    case 10: key = get(key, 1); __asm__ volatile("lea 0(%rax), %rax"); break;
    default: key = get(key, 0); __asm__ volatile("lea 0(%rcx), %rcx"); break;
    }
    return 7;
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 2400), serve);
}
