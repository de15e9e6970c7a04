/*
 * An interpreter: its loop does all of the work itself, and now and then it collects what nobody refers to any more. That is half
 * to find what is referred to, by recursion along a tree of objects, and half to go through all there are.
 *
 * f0 = run_script
 * fast peak (4 of 5 ops, ~0.3 ms):     run_script                          function
 *     wrong: run_script -> collect; run_script -> allocate
 * slow peak (1 of 5 ops, ~3 to 8 ms):  run_script -> collect -> mark -> …  function
 *                                      run_script -> collect -> sweep      function
 *     wrong: run_script; run_script -> collect; run_script -> allocate
 */
#include "work.h"

enum { OBJECTS = 255 };

static struct object {
    struct object *left, *right;
    int is_marked;
} objects[OBJECTS];

static uint64_t allocated;

FUNCTION struct object *allocate(void)
{
    allocated++;
    return &objects[allocated % OBJECTS];
}

FUNCTION uint64_t mark(struct object *object)
{
    spin_cycles(brisk ? 140 : 14000);
    object->is_marked = 1;
    uint64_t left = object->left == NULL ? 0 : mark(object->left);
    uint64_t right = object->right == NULL ? 0 : mark(object->right);
    NO_TAIL_CALL();
    return left + right + 1;
}

FUNCTION uint64_t sweep(void)
{
    uint64_t freed = 0;
    for (int at = 0; at < OBJECTS; at++)
        freed += !objects[at].is_marked;
    spin_us(1500);
    return freed;
}

FUNCTION uint64_t collect(void)
{
    for (int at = 0; at < OBJECTS; at++)
        objects[at].is_marked = 0;
    uint64_t marked = mark(objects);
    return marked + sweep();
}

FUNCTION uint64_t run_script(uint64_t key)
{
    uint64_t sum = 0;
    for (int step = 0; step < 6; step++) {
        spin_us(50);
        sum += allocate() != NULL;
    }
    if (key % 5 == 4)
        sum += collect();
    return mix(key + sum);
}

int main(int argc, char **argv)
{
    for (int at = 0; 2 * at + 2 < OBJECTS; at++) {
        objects[at].left = &objects[2 * at + 1];
        objects[at].right = &objects[2 * at + 2];
    }
    return run_ops(parse_run(argc, argv, 1500), run_script);
}
