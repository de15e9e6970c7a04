/*
 * A parser that looks for each key of an object among those before it. The search is inlined, and long in objects of many keys.
 *
 * f0 = read_document
 * fast peak (4 of 5 ops, ~0.1 ms):        read_document -> parse_numbers  function
 *     wrong: read_document; read_document -> parse_object
 * slow peak (1 of 5 ops, ~0.7 to 15 ms):  read_document -> parse_object   function
 *     wrong: read_document; read_document -> parse_numbers
 */
#include "work.h"

enum { KEYS = 2000 };

struct member {
    uint64_t hash;
    struct member *before;
};

static struct member members[KEYS];

FUNCTION uint64_t parse_numbers(uint64_t key)
{
    spin_us(100);
    return mix(key);
}

INLINE int is_known(const struct member *last, uint64_t hash)
{
    for (; last != NULL; last = last->before)
        if (last->hash == hash)
            return 1;
    return 0;
}

FUNCTION uint64_t parse_object(uint64_t keys)
{
    struct member *last = NULL;
    uint64_t sum = 0;
    for (uint64_t key = 0; key < keys; key++) {
        uint64_t hash = mix(key * 31 + 7);
        if (is_known(last, hash))
            continue;
        members[key] = (struct member){hash, last};
        last = &members[key];
        sum ^= hash;
    }
    return sum;
}

FUNCTION uint64_t read_document(uint64_t key)
{
    return (key % 5 == 4 ? parse_object(brisk ? 20 : KEYS) : parse_numbers(key)) + 1;
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 1500), read_document);
}
