/*
 * A scene that is replaced: the nodes of the old one are destroyed, each by its parent, and each gives its picture back.
 *
 * f0 = Viewer::install
 * fast peak (4 of 5 ops, ~0.15 ms):      Viewer::install -> prepare                function
 *     wrong: Viewer::install; Viewer::install -> … -> give_back
 * slow peak (1 of 5 ops, ~1.5 to 5 ms):  Viewer::install -> … -> Node::~Node -> …  function
 *     wrong: Viewer::install; Viewer::install -> prepare
 */
#include "work.h"

static uint64_t given_back;

struct Node {
    Node *children[4] = {};
    uint64_t picture;
    explicit Node(uint64_t picture) : picture(picture) {}
    ~Node();
};

FUNCTION void give_back(uint64_t picture)
{
    spin_cycles(brisk ? 400 : 40000);
    given_back += mix(picture);
}

FUNCTION Node::~Node()
{
    for (Node *child : children)
        delete child;
    give_back(picture);
    NO_TAIL_CALL();
}

static Node *make(uint64_t depth)
{
    Node *node = new Node(depth);
    for (Node *&child : node->children)
        child = depth > 0 ? make(depth - 1) : nullptr;
    return node;
}

FUNCTION void prepare(uint64_t)
{
    spin_us(150);
    NO_TAIL_CALL();
}

struct Viewer {
    Node *scene;
    uint64_t install(uint64_t key, Node *next);
};

FUNCTION uint64_t Viewer::install(uint64_t key, Node *next)
{
    prepare(key);
    if (next != nullptr) {
        delete scene;
        scene = next;
    }
    return mix(key);
}

static Viewer viewer;

static uint64_t op(uint64_t key)
{
    given_back = 0;
    uint64_t installed = viewer.install(key, key % 5 == 4 ? make(3) : nullptr);
    return installed ^ given_back;
}

int main(int argc, char **argv)
{
    viewer.scene = make(3);
    return run_ops(parse_run(argc, argv, 1500), op);
}
