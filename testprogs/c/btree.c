/*
 * The benchmark `btree` of the SLEEPY paper (section 3.1): 3 million iterations, 20% random inserts
 * and 80% look-ups; inserts are recursive, look-ups iterate, nodes have no parent pointers.
 *
 *   btree [iterations]        default 3,000,000
 *   btree wait [iterations]   prints "ready", then builds a tree of that many iterations (default
 *                             30,000) again and again until standard input is at its end
 *   btree timed [iterations]  builds one such tree (default 3,000,000), then goes on with it until standard input
 *                             is at its end, and prints what each 40,000 iterations took (see work.h)
 *
 * f0 = insert (or lookup, or main)
 * The peaks depend on the machine. Every root-cause path is a walk over these calls:
 *   insert -> insert_recursive, grow_root;  insert_recursive -> find_index, find_child,
 *   insert_recursive, split, memmove;  split -> new_node, get_parent_key, memcpy, memmove;
 *   new_node -> calloc  (compilers make calls of memmove from the loops that shift keys)
 *   grow_root -> new_node;  lookup -> find_index
 */
#include "work.h"

enum { ORDER = 32 };

struct node {
    int keys;
    uint64_t key[ORDER];
    struct node *child[ORDER + 1];
};

/* What a split hands to the level above. */
struct split {
    uint64_t key;
    struct node *right;
};

FUNCTION struct node *new_node(void)
{
    struct node *node = calloc(1, sizeof *node);
    if (node == NULL)
        abort();
    return node;
}

/* The first position whose key is not below `key`. */
FUNCTION int find_index(const struct node *node, uint64_t key)
{
    int index = 0;
    while (index < node->keys && node->key[index] < key)
        index++;
    return index;
}

FUNCTION struct node *find_child(const struct node *node, int index)
{
    return node->child[index];
}

FUNCTION uint64_t get_parent_key(const struct node *node)
{
    return node->key[ORDER / 2];
}

FUNCTION struct split split(struct node *node)
{
    struct node *right = new_node();
    uint64_t key = get_parent_key(node);
    right->keys = node->keys - ORDER / 2 - 1;
    memcpy(right->key, node->key + ORDER / 2 + 1, (size_t)right->keys * sizeof *right->key);
    memcpy(right->child, node->child + ORDER / 2 + 1, ((size_t)right->keys + 1) * sizeof *right->child);
    node->keys = ORDER / 2;
    return (struct split){key, right};
}

FUNCTION struct split insert_recursive(struct node *node, uint64_t key)
{
    int index = find_index(node, key);
    struct split up = {key, NULL};
    if (index < node->keys && node->key[index] == key)
        return up;
    if (node->child[0] != NULL) {
        up = insert_recursive(find_child(node, index), key);
        if (up.right == NULL)
            return up;
    }
    for (int i = node->keys; i > index; i--) {
        node->key[i] = node->key[i - 1];
        node->child[i + 1] = node->child[i];
    }
    node->key[index] = up.key;
    node->child[index + 1] = up.right;
    node->keys++;
    if (node->keys == ORDER)
        return split(node);
    return (struct split){key, NULL};
}

FUNCTION void grow_root(struct node **root, struct split up)
{
    struct node *top = new_node();
    top->keys = 1;
    top->key[0] = up.key;
    top->child[0] = *root;
    top->child[1] = up.right;
    *root = top;
}

FUNCTION void insert(struct node **root, uint64_t key)
{
    struct split up = insert_recursive(*root, key);
    if (up.right != NULL)
        grow_root(root, up);
    NO_TAIL_CALL();
}

FUNCTION int lookup(const struct node *root, uint64_t key)
{
    for (const struct node *node = root; node != NULL;) {
        int index = find_index(node, key);
        if (index < node->keys && node->key[index] == key)
            return 1;
        node = node->child[index];
    }
    return 0;
}

static void free_tree(struct node *node)
{
    if (node == NULL)
        return;
    for (int i = 0; i <= node->keys; i++)
        free_tree(node->child[i]);
    free(node);
}

INLINE uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

struct walk {
    struct node *root;
    uint64_t state, key_range;
};

static struct walk begin_walk(uint64_t iterations)
{
    return (struct walk){new_node(), 88172645463325252ull, iterations / 2 + 1};
}

INLINE uint64_t iterate(struct walk *walk, uint64_t iterations)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < iterations; i++) {
        uint64_t key = next_random(&walk->state) % walk->key_range;
        if (next_random(&walk->state) % 5 == 0)
            insert(&walk->root, key);
        else
            sum = mix(sum + (uint64_t)lookup(walk->root, key));
    }
    return sum;
}

static uint64_t build(uint64_t iterations)
{
    struct walk walk = begin_walk(iterations);
    uint64_t sum = iterate(&walk, iterations);
    free_tree(walk.root);
    return sum;
}

/* How long the same number of random operations takes, over and over. */
static void time_units(uint64_t iterations)
{
    enum { UNIT = 40000 };
    struct walk walk = begin_walk(iterations);
    uint64_t sum = iterate(&walk, iterations);
    while (!stdin_closed()) {
        struct unit unit = begin_unit();
        sum = mix(sum ^ iterate(&walk, UNIT));
        end_unit(unit);
    }
    free_tree(walk.root);
    printf("checksum=%016llx\n", (unsigned long long)sum);
}

int main(int argc, char **argv)
{
    struct run run = parse_run(argc, argv, 3000000);
    if (run.timed) {
        say_ready();
        time_units(run.ops == UINT64_MAX ? 3000000 : run.ops);
        return 0;
    }
    if (run.waits) {
        if (run.ops == UINT64_MAX)
            run.ops = 30000;
        say_ready();
    }
    uint64_t sum = build(run.ops);
    int differs = 0;
    while (run.waits && !stdin_closed())
        differs |= build(run.ops) != sum;
    printf("checksum=%016llx%s\n", (unsigned long long)sum, differs ? " differs" : "");
    return differs;
}
