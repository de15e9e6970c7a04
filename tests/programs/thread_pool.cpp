// A pool of threads that run closures from a queue: most look something up, every sixteenth builds an index anew.

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <queue>
#include <thread>
#include <vector>

namespace {

class Pool {
public:
    explicit Pool(unsigned threads) {
        for (unsigned thread = 0; thread < threads; ++thread)
            workers.emplace_back([this] { run(); });
    }

    void submit(std::function<void()> task) {
        std::unique_lock<std::mutex> lock(mutex);
        room.wait(lock, [this] { return tasks.size() < 64; });
        tasks.push(std::move(task));
        some.notify_one();
    }

private:
    void run() {
        for (;;) {
            std::function<void()> task;
            {
                std::unique_lock<std::mutex> lock(mutex);
                some.wait(lock, [this] { return !tasks.empty(); });
                task = std::move(tasks.front());
                tasks.pop();
                room.notify_one();
            }
            task();
        }
    }

    std::mutex mutex;
    std::condition_variable some, room;
    std::queue<std::function<void()>> tasks;
    std::vector<std::thread> workers;
};

std::vector<std::uint32_t> entries(20'000, 7);
volatile std::uint32_t sink;

__attribute__((noinline)) void look_up(std::uint32_t key) {
    std::uint32_t sum = key;
    for (std::size_t at = key % 16; at < entries.size(); at += 16)
        sum = sum * 31 + entries[at];
    sink = sum;
}

__attribute__((noinline)) void build_index(std::uint32_t key) {
    std::uint32_t sum = key;
    for (int round = 0; round < 16; ++round)
        for (std::uint32_t entry : entries)
            sum = sum * 31 + entry;
    sink = sum;
}

} // namespace

int main() {
    Pool pool(4);
    for (std::uint32_t request = 0;; ++request)
        pool.submit([request] {
            if (request % 16 == 15)
                build_index(request);
            else
                look_up(request);
        });
}
