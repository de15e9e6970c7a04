/*
 * Events that are published to subscribers, which are kept as `std::function`: one of them takes long with some events.
 *
 * f0 = Bus::publish
 * fast peak (4 of 5 ops, ~0.3 ms):  Bus::publish -> … -> Board::show      function
 *     wrong: Bus::publish; Bus::publish -> … -> Journal::record
 * slow peak (1 of 5 ops, ~2.8 ms):  Bus::publish -> … -> Journal::record  function
 *     wrong: Bus::publish; Bus::publish -> … -> Board::show
 */
#include <functional>
#include <vector>

#include "work.h"

struct Board {
    uint64_t shown = 0;
    void show(uint64_t event);
};

struct Journal {
    uint64_t last = 0;
    void record(uint64_t event);
};

FUNCTION void Board::show(uint64_t event)
{
    spin_us(100);
    shown += mix(event);
}

FUNCTION void Journal::record(uint64_t event)
{
    if (event % 5 == 4)
        spin_us(2500);
    last = event;
}

class Bus {
public:
    void subscribe(std::function<void(uint64_t)> subscriber) { subscribers.push_back(std::move(subscriber)); }
    uint64_t publish(uint64_t event);

private:
    std::vector<std::function<void(uint64_t)>> subscribers;
};

FUNCTION uint64_t Bus::publish(uint64_t event)
{
    uint64_t count = 0;
    for (auto &subscriber : subscribers) {
        subscriber(event);
        count++;
    }
    return mix(event) + count;
}

static Bus bus;
static Board boards[3];
static Journal journal;

static uint64_t op(uint64_t event)
{
    return bus.publish(event);
}

int main(int argc, char **argv)
{
    for (Board &board : boards)
        bus.subscribe([&board](uint64_t event) { board.show(event); });
    bus.subscribe([](uint64_t event) { journal.record(event); });
    return run_ops(parse_run(argc, argv, 1500), op);
}
